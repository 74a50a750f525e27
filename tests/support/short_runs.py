"""Short runs in folders that share their compiled programs, and comparisons of their outcomes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator

import chex
import jax

from algorithms import Plan
from algorithms.runs import run
from algorithms.runs.build import complete
from algorithms.runs.programs import Programs
from algorithms.runs.run_folder import RunFolder
from algorithms.runs.settings import Settings

PLAN = Plan(
    total_steps=300,
    num_envs=2,
    start_steps=60,
    update_every=4,
    num_updates=1,
    mini_batch_size=8,
    test_every=80,
    num_test_episodes=2,
)
SETTINGS = complete(
    Settings(
        "ddqn", "CartPole-v1", PLAN, {"name": "prioritized"}, n_step=2, capacity=200, hidden_sizes=(8,), num_seeds=2
    )
)
FEW = run.Options(final_episodes=2)  # as many as of other evaluations, which are then compiled with them


class SharedPrograms:
    """The programs of some settings, compiled when they are first needed: `programs()`.

    Args:
        settings: of the runs.
        fits: whether the programs fit other settings, too.
    """

    def __init__(self, settings: Settings, fits: Callable[[Settings], bool] | None = None):
        self._fits = fits or (lambda given: given == settings)
        self._compile_anew = run.compile_programs
        self._compiled = functools.cache(lambda: self._compile_anew(settings))

    def __call__(self) -> Programs:
        return self._compiled()

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Let all runs that these programs fit use them."""
        before = run.compile_programs
        run.compile_programs = lambda given, *rest: self() if self._fits(given) else self._compile_anew(given, *rest)
        yield
        run.compile_programs = before

    def last_state(self, folder: RunFolder):
        """Return the state of the last checkpoint."""
        return folder.restore(self().shapes())[0]

    def assert_same_outcome(self, *folders: RunFolder) -> None:
        """Check that two runs have the same last state and the same metrics, except for times."""
        chex.assert_trees_all_equal(*(jax.tree.map(_plain, self.last_state(folder)) for folder in folders))
        one, two = map(metrics_without_times, folders)
        assert one == two


def metrics_without_times(folder: RunFolder) -> list[dict]:
    """Return the lines of a run's metrics without what depends on the clock."""
    return [{name: value for name, value in line.items() if "second" not in name} for line in folder.metrics()]


def _plain(leaf: jax.Array) -> jax.Array:
    return jax.random.key_data(leaf) if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
