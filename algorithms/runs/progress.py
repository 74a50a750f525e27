"""How far a run is, and what another one that is forked from it takes over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from algorithms.runs import memory_need
from algorithms.runs.run_folder import RunFolder
from algorithms.runs.settings import Settings
from algorithms.runs.side_by_side import shapes_of_all
from algorithms.training.loop import TrainState
from algorithms.training.plan import Plan
from jaxrl_buffers import _saved_leaves as saved_leaves
from jaxrl_buffers.types import PyTree


class Progress(NamedTuple):
    """Where the host is; `seconds` of training, without compilation and evaluation."""

    iteration: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> Progress:
        """Return what a checkpoint says of it."""
        try:
            return cls(iteration=int(saved["iteration"]), seconds=float(saved["seconds"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"the checkpoint is not one of a run: {error!r} in {dict(saved)}.") from None

    def steps(self, plan: Plan) -> int:
        """Return how many environment steps of each seed were made."""
        return plan.start_steps + self.iteration * plan.update_every

    def num_tests(self, plan: Plan) -> int:
        """Return how many evaluations there were on the grid, or at the end behind it.

        So a run whose budget was raised has the tests of one that had it from the beginning. (The one at the old end,
        and the next one, play the same episodes.)
        """
        return -(-self.iteration // plan.iterations_per_test)


def check_total(folder: RunFolder, plan: Plan, steps: int) -> None:
    """Refuse a budget below the steps that a run has made."""
    if steps > plan.total_steps:
        raise ValueError(
            f"total_steps is {plan.total_steps:,}, but {folder.path} has made {steps:,} steps already; choose at "
            "least that many."
        )


def read_origin(
    origin: RunFolder, settings: Settings, like_origin: TrainState, like: TrainState
) -> tuple[PyTree, PyTree, Progress]:
    """Return the agent, the buffer and the progress of another run, as a run of the new settings needs them.

    Args:
        origin: the other run.
        settings: of the new run.
        like_origin: shapes of the other run's state.
        like: shapes of the new run's state.
    """
    memory_need.check(like_origin)
    both = map(shapes_of_all, (like_origin, like))
    stored, wanted = (saved_leaves.kinds({"agent": one.agent, "buffer": one.buffer}) for one in both)
    for name in {**stored, **wanted}:
        if stored.get(name) != wanted.get(name):
            changed = ", ".join(origin.changed_settings(settings))
            raise ValueError(
                f"a fork of {origin.path} cannot change {changed} like this: its state has "
                f"{stored.get(name, 'nothing')} for {name}, and the new settings need {wanted.get(name, 'nothing')}."
            )
    state, saved = origin.restore(like_origin)
    progress = Progress.of(saved)
    return state.agent, state.buffer, progress._replace(iteration=_iteration(origin, settings.plan, progress))


def _iteration(origin: RunFolder, plan: Plan, progress: Progress) -> int:
    """Return after how many iterations of a new plan the steps of another run have been made."""
    steps = progress.steps(origin.settings().plan)
    check_total(origin, plan, steps)
    iteration, rest = divmod(steps - plan.start_steps, plan.update_every)
    if rest or iteration < 0:
        raise ValueError(
            f"a fork of {origin.path} begins after {steps:,} steps, which start_steps={plan.start_steps} and "
            f"iterations of update_every={plan.update_every} do not add up to; leave both as they are."
        )
    return iteration
