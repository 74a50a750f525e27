"""Hindsight: replace the goal of a sample by a goal that was achieved, as if it had been the goal from the beginning.

Andrychowicz et al., Hindsight Experience Replay, https://arxiv.org/abs/1707.01495
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl_buffers import _needs as needs
from jaxrl_buffers import starts
from jaxrl_buffers._checks import require_choice, require_number
from jaxrl_buffers._fields import field_at, named_field, with_field
from jaxrl_buffers._random.hashing import split, unrolled
from jaxrl_buffers._random.integers import random_below
from jaxrl_buffers.component import Component, field
from jaxrl_buffers.storage import episodes, ring
from jaxrl_buffers.storage.reader import Reader
from jaxrl_buffers.types import PyTree, Scalar, View, Window
from jaxrl_buffers.views.n_step import NStep

STRATEGIES = ("final", "future", "episode", "random")


class Hindsight(Component):
    """Replace the goal of some samples by a goal that was achieved. Then another view makes a batch of their rows.

    All rows of a sample get the same goal. Stored rows do not change. If a step ended its episode, but is not
    terminated under the new goal, it counts as truncated. So no sample continues into the next episode.

    Args:
        view: makes a batch of the rows, such as `NStep(n=3)`.
        achieved: the achieved goal of a row: a dotted name such as `"next_obs.achieved_goal"`, or a function from one
            unbatched row to the goal.
        relabel: `relabel(transition, goal) -> transition` puts the goal into one unbatched row and recomputes its
            reward and termination. Structure, shapes and dtypes must stay the same.
        strategy: the step whose achieved goal becomes the goal. `"future"`: a random step between the sample's first
            step and the end of its episode, or the newest row if the episode has not ended. `"final"`: the last step of
            the episode; samples of episodes that have not ended keep their goal. `"episode"`: a random stored step of
            the episode. `"random"`: a random stored step of any episode.
        ratio: the probability with which a sample gets another goal.

    Example:
        >>> import jax.numpy as jnp, jaxrl_buffers as jb
        >>> def relabel(transition, goal):
        ...     reached = jnp.all(transition.next_obs["achieved_goal"] == goal)
        ...     return transition._replace(
        ...         obs=transition.obs | {"desired_goal": goal},
        ...         next_obs=transition.next_obs | {"desired_goal": goal},
        ...         reward=jnp.where(reached, 0.0, -1.0),
        ...         terminated=reached,
        ...     )
        >>> view = jb.Hindsight(jb.NStep(n=3), achieved="next_obs.achieved_goal", relabel=relabel)
        >>> buffer = jb.ReplayBuffer(sampler=jb.Prioritized(), view=view, length=1_000, num_envs=16)
    """

    view: View = NStep()
    achieved: str | Callable[[PyTree], PyTree] = field(static=True, kw_only=True)
    relabel: Callable[[PyTree, PyTree], PyTree] = field(static=True, kw_only=True)
    strategy: str = field(static=True, default="future", kw_only=True)
    ratio: Scalar = field(default=0.8, kw_only=True)

    def __post_init__(self) -> None:
        require_choice("Hindsight", "strategy", self.strategy, STRATEGIES)
        require_number(self, "ratio", self.ratio, 0, 1)
        if not _is_function(self.relabel):
            raise ValueError(
                f"Hindsight(relabel={self.relabel!r}): pass a function `(transition, goal) -> transition`."
            )
        if not isinstance(self.achieved, str) and not _is_function(self.achieved):
            raise ValueError(
                f"Hindsight(achieved={self.achieved!r}): pass the name of a field, such as 'next_obs.achieved_goal', "
                "or a function from a row to the goal."
            )

    needs_episodes = True
    is_random = True

    @property
    def lookahead(self) -> int:
        """How many newer rows a start needs."""
        return self.view.lookahead

    @property
    def lookback(self) -> int:
        """How many older rows a start needs."""
        return self.view.lookback

    @property
    def span(self) -> int:
        """How many consecutive rows a sample may read."""
        return self.view.span

    @property
    def stride(self) -> int:
        """Only every `stride`-th row may start a sample."""
        return self.view.stride

    @property
    def within_episode(self) -> bool:
        """Whether all rows of a sample must be in one episode."""
        return needs.one_episode(self.view)

    @property
    def fields(self) -> tuple[str, ...]:
        """The named fields that stored rows must have."""
        named = (self.achieved,) if isinstance(self.achieved, str) else ()
        return (*self.view.fields, *named)

    def __call__(self, reader: Reader, slots: jax.Array, key: jax.Array) -> PyTree:
        """Return the batch that begins at `slots[B]`; consumes `key`."""
        key_ratio, key_goal, key_view = split(key, 3)
        row, env = reader.locate(slots)
        uniforms = jax.random.uniform(unrolled(key_ratio), slots.shape, jnp.float32)
        chosen = uniforms < jnp.asarray(self.ratio, jnp.float32)
        goal_row, goal_env, exists = self._goal_slots(reader, row, env, key_goal)
        goal = self._achieved(reader.read(goal_row, goal_env))
        relabeled = chosen & exists & reader.is_complete(goal_row, goal_env)

        def change(rows: PyTree, row: jax.Array, env: jax.Array) -> PyTree:
            return self._relabeled(rows, goal, relabeled, row.ndim)

        return self.view(reader.map(change), slots, key_view)

    def _goal_slots(
        self, reader: Reader, row: jax.Array, env: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return the `(row, env)` whose achieved goal each sample gets, and whether there is such a row."""
        storage, age = reader.ring, reader.age(row, env)
        size = ring.of_env(storage.size, env)
        if self.strategy == "random":
            window = Window(jnp.zeros_like(storage.size), storage.size)
            count = jnp.maximum(starts.count(storage, window), 1)
            number = random_below(key, jnp.broadcast_to(count, row.shape))
            return *reader.locate(starts.slot_of_number(storage, window, number)), jnp.ones(row.shape, bool)
        span = episodes.of_rows(storage, row, env)
        oldest = {"final": span.end, "future": age, "episode": jnp.minimum(span.begin, size - 1)}[self.strategy]
        goal_age = span.end + random_below(key, jnp.maximum(oldest - span.end + 1, 1))
        exists = span.is_ended if self.strategy == "final" else jnp.ones(row.shape, bool)
        return ring.row_of_age(storage, jnp.where(goal_age < size, goal_age, 0), env), env, exists

    def _achieved(self, rows: PyTree) -> PyTree:
        return field_at(rows, self.achieved) if isinstance(self.achieved, str) else jax.vmap(self.achieved)(rows)

    def _relabeled(self, rows: PyTree, goal: PyTree, chosen: jax.Array, ndim: int) -> PyTree:
        """Relabel rows `[B, ...]`, or `[B, L, ...]`, of the chosen samples with their goals `[B, ...]`."""
        relabel = self.relabel
        for _ in range(1, ndim):
            relabel = jax.vmap(relabel, in_axes=(0, None))
        new = jax.vmap(relabel)(rows, goal)
        if jax.tree.structure(new) != jax.tree.structure(rows):
            raise ValueError(
                f"Hindsight(): `relabel` returned {jax.tree.structure(new)}, but was given "
                f"{jax.tree.structure(rows)}; return the same structure, such as by `transition._replace(...)`."
            )
        terminated, truncated = (named_field(rows, name).astype(bool) for name in ("terminated", "truncated"))
        still_ends = (terminated | truncated) & ~named_field(new, "terminated").astype(bool)
        new = with_field(new, "truncated", named_field(new, "truncated").astype(bool) | still_ends)
        return jax.tree.map(lambda one, other: _choose(chosen, one, other), new, rows)


def _choose(chosen: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
    if new.shape != old.shape:
        raise ValueError(
            f"Hindsight(): `relabel` turned a leaf of shape {old.shape} into {new.shape}, batch axes included; "
            "it must keep the shapes."
        )
    return jnp.where(chosen.reshape(-1, *[1] * (old.ndim - 1)), new.astype(old.dtype), old)


def _is_function(value: object) -> bool:
    """Return whether a value may be a function of rows. A view can be called too, but it takes something else."""
    return callable(value) and not isinstance(value, View)
