"""Discounted returns of whole episodes, `G_t = r_t + gamma d_t G_{t+1}`, known as soon as an episode has ended.

A step is the affine map `G -> total + factor * G`, with `total = r_t` and `factor = gamma * d_t`. The return of a row
is the composition of the maps from that row to the end of its episode:

    (total, factor) then (total', factor') = (total + factor * total', factor * factor')

The compositions are kept in a tree over the rows of the ring, in which each node has eight children. A node composes
the rows from its first row to the end of its parent's block:

    level 0, rows          0-7  1-7  2-7  ...  7   |  8-15  9-15  ...  15  |  ...
    level 1, blocks        0-63                       8-63                 |  ...
    level 2, and so on

While a block is being filled, its end is the newest row. A new row is composed onto all nodes that reach up to it, at
most eight on each level. To compute the return of a row, one node is read on each level. For row 2 these are the nodes
of rows 2-7, rows 8-63, and so on, once around the ring.

The end of an episode costs as much as any other row, because nothing is filled in backwards. Nothing is divided by a
power of `gamma`, so episodes of any length have finite returns.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxrl_buffers._checks import is_number, require_number, shown
from jaxrl_buffers._fields import check_fields, field_at, named_field, with_field
from jaxrl_buffers.component import Component, field
from jaxrl_buffers.types import PyTree, Scalar

FAN_OUT = 8  # children of a node
FIELD = "episodic_return"  # the name of the return in the extras of a row


class Outcomes(NamedTuple):
    """What the episode index and the returns need to know of rows: what each step gave, and whether it was the last."""

    terminated: jax.Array  # bool
    truncated: jax.Array  # bool
    is_zero: jax.Array  # bool: the discount is zero, so nothing after the row counts
    reward: jax.Array
    discount: jax.Array  # d_t, without gamma
    value: jax.Array  # the value of what follows, where a time limit ends the episode


class Affine(NamedTuple):
    """Maps `G -> total + factor * G`."""

    total: jax.Array  # float32[...]
    factor: jax.Array  # float32[...]


class EpisodicReturns(Component):
    """Record the discounted return of every step. Batches contain it as `extras["episodic_return"]`.

        G_t = r_t + gamma d_t G_{t+1}

    The return of a step is known once this step, or a later step of its episode, has the discount `d_t = 0`. Until then
    `default` is returned instead. If a time limit ends the episode, the return stays `default`, unless `bootstrap` is
    given. A change of `gamma` or `reward_clip` affects only rows that are added afterwards.

    Args:
        gamma: the discount of one step. With a gamma above 1, returns that are too large for a float32 are not finite.
        default: the return of steps whose return is not known.
        reward_clip: `(least, most)`, the range to which rewards are clipped first. An infinite number is no limit, as
            in `(-inf, 1.0)`.
        bootstrap: the name of a stored field with the value of the next observation, such as `"extras.next_value"`.
            With it, returns are also known once a time limit ends the episode: `G_{t+1}` of its last step is that
            value.
        discount: the name of a stored field with `d_t`, such as `"extras.discount"`, for environments that have
            discounts of their own; by default `1 - terminated`.

    Example:
        >>> import jaxrl_buffers as jb
        >>> buffer = jb.ReplayBuffer(returns=jb.EpisodicReturns(gamma=0.99, default=-1000.0), length=1_000)
    """

    gamma: Scalar = 0.99
    default: Scalar = 0.0
    reward_clip: tuple[Scalar, Scalar] | None = None
    bootstrap: str | None = field(static=True, default=None)
    discount: str | None = field(static=True, default=None)

    def __post_init__(self) -> None:
        require_number(self, "gamma", self.gamma, 0)
        if not is_number(self.default):
            raise ValueError(f"EpisodicReturns(default={shown(self.default)}): `default` must be a number.")
        if self.reward_clip is not None and not _is_range(self.reward_clip):
            raise ValueError(
                f"EpisodicReturns(reward_clip={shown(self.reward_clip)}): `reward_clip` must be a pair (least, most)."
            )

    def init(self, structure: PyTree, shape: tuple[int, int]) -> Affine:
        """Return the tree of an empty ring of shape `(T, N)`: `float32[nodes, N]`, level by level, rows first."""
        names = [name for name in ("reward", "extras", self.bootstrap, self.discount) if name is not None]
        check_fields(structure, "EpisodicReturns", names)
        for name in {*names} - {"extras"}:
            if (field := field_at(structure, name)).shape != ():
                raise ValueError(
                    f"init(): EpisodicReturns needs a single number as {name!r}, but the example has {field}; name "
                    "another field, or store a scalar."
                )
        self.attach(structure, jnp.float32(0))
        shape = (sum(_nodes_by_level(shape[0])), shape[1])
        return Affine(jnp.zeros(shape, jnp.float32), jnp.zeros(shape, jnp.float32))

    def write(self, tree: Affine, length: int, steps: Outcomes, row: jax.Array, env: jax.Array) -> Affine:
        """Append rows `[K, E]` in order of time; rows at `T` are left out."""
        reward = steps.reward.astype(jnp.float32)
        if self.reward_clip is not None:
            reward = jnp.clip(reward, *(jnp.asarray(limit, jnp.float32) for limit in self.reward_clip))
        factor = jnp.where(steps.is_zero, 0, jnp.asarray(self.gamma, jnp.float32) * steps.discount.astype(jnp.float32))
        # The factor is zero at the end of an episode. So a composition may include rows after the end; they do not
        # count.
        total = reward + jnp.where(steps.truncated, factor * steps.value.astype(jnp.float32), 0)
        maps = Affine(total, jnp.where(steps.truncated, 0, factor))

        def append_one(k: jax.Array | int, tree: Affine) -> Affine:
            return _append(tree, length, row[k], env[k], Affine(maps.total[k], maps.factor[k]))

        return append_one(0, tree) if row.shape[0] == 1 else lax.fori_loop(0, row.shape[0], append_one, tree)

    def cut(self, tree: Affine, length: int, row: jax.Array, env: jax.Array, value: jax.Array) -> Affine:
        """End the episodes of the newest rows `[E]`: the value of what follows is `value[E]`."""
        value = value.astype(jnp.float32)
        return _append(tree, length, row, env, Affine(value, jnp.zeros_like(value)), begins=False)

    def read(self, tree: Affine, length: int, row: jax.Array, env: jax.Array, is_settled: jax.Array) -> jax.Array:
        """Return the returns of rows, and `default` where `is_settled` is False."""
        return jnp.where(is_settled, _total(tree, length, row, env), jnp.asarray(self.default, jnp.float32))

    def attach(self, rows: PyTree, value: jax.Array) -> PyTree:
        """Return rows with `value` as their return among the extras."""
        extras = named_field(rows, "extras")
        if not isinstance(extras, dict) and jax.tree.leaves(extras):
            raise ValueError(
                f"init(): EpisodicReturns adds the return to the extras of a row, but these are "
                f"{type(extras).__name__}; make them a dict."
            )
        return with_field(rows, "extras", (extras if isinstance(extras, dict) else {}) | {FIELD: value})


def outcomes_of(rows: PyTree, recorded: EpisodicReturns | None) -> Outcomes:
    """Return what the episode index and the returns need to know of rows."""
    terminated, truncated = (named_field(rows, name).astype(bool) for name in ("terminated", "truncated"))
    one = jnp.ones(terminated.shape, jnp.float32)
    if recorded is None:
        return Outcomes(terminated, truncated, terminated, one, one, one)
    discount = one if recorded.discount is None else field_at(rows, recorded.discount)
    value = one * 0 if recorded.bootstrap is None else field_at(rows, recorded.bootstrap)
    is_zero = terminated | (discount == 0)
    return Outcomes(terminated, truncated, is_zero, named_field(rows, "reward"), discount, value)


def _nodes_by_level(length: int) -> list[int]:
    """Return how many nodes each level has, from the rows to the top, where at most eight are left."""
    nodes = [length]
    while nodes[-1] > FAN_OUT:
        nodes.append(-(-nodes[-1] // FAN_OUT))
    return nodes


def _then(first: Affine, second: Affine) -> Affine:
    """Compose two maps in order of time. A factor of zero hides all that follows, NaN and infinity included."""
    return Affine(first.total + _times(first.factor, second.total), _times(first.factor, second.factor))


def _times(factor: jax.Array, value: jax.Array) -> jax.Array:
    """Multiply; zero times infinity is zero. An infinite factor is a product that was too large for a float32."""
    is_nothing = (factor == 0) | ((value == 0) & jnp.isinf(factor))
    return jnp.where(is_nothing, 0, factor * value)


def _append(tree: Affine, length: int, row: jax.Array, env: jax.Array, maps: Affine, begins: bool = True) -> Affine:
    """Append maps `[E]` to all nodes that reach up to their rows, on all levels at once.

    On each level these are the node above the row and its siblings before it. Siblings after it belong to the previous
    round of the ring and do not change.

    Args:
        tree: the compositions.
        length: `T`.
        row: `int32[E]`, rows in the ring; `T` where nothing is appended.
        env: `int32[E]`.
        maps: `[E]`.
        begins: whether the rows are new. If so, a node whose first row is a new row starts again.
    """
    nodes = _nodes_by_level(length)
    level = np.arange(len(nodes), dtype=np.int32)[:, None, None]
    offset = np.cumsum([0, *nodes[:-1]], dtype=np.int32)[:, None, None]
    node = row[None, None] // FAN_OUT**level
    sibling = node - node % FAN_OUT + np.arange(FAN_OUT, dtype=np.int32)[None, :, None]
    reaches = (sibling <= node) & (row < length)[None, None]
    is_new = (sibling == node) & (row[None, None] % FAN_OUT**level == 0) & begins
    index, env = jnp.where(reaches, offset + sibling, sum(nodes)), jnp.broadcast_to(env[None, None], sibling.shape)
    total, factor = (leaf.at[index, env].get(mode="clip") for leaf in tree)
    before = Affine(jnp.where(is_new, 0, total), jnp.where(is_new, 1, factor))
    after = _then(before, jax.tree.map(lambda leaf: leaf[None, None], maps))
    return jax.tree.map(lambda leaf, new: leaf.at[index, env].set(new, mode="drop"), tree, after)


def _total(tree: Affine, length: int, row: jax.Array, env: jax.Array) -> jax.Array:
    """Compose all maps from each row on, once around the ring, and return the total.

    Maps after the step that makes the return known do not matter: the factor of that step is zero and hides them.
    """
    nodes = _nodes_by_level(length)

    def composition(level: int, node: jax.Array) -> Affine:
        return Affine(*(leaf.at[sum(nodes[:level]) + node, env].get(mode="clip") for leaf in tree))

    composed = composition(0, row)
    for level in range(1, len(nodes)):
        following = row // FAN_OUT**level + 1
        exists = (following % FAN_OUT > 0) & (following < nodes[level])
        total, factor = composition(level, following)
        composed = _then(composed, Affine(jnp.where(exists, total, 0), jnp.where(exists, factor, 1)))
    return _then(composed, composition(len(nodes) - 1, jnp.zeros_like(row))).total


def _is_range(bounds: object) -> bool:
    """Return whether `bounds` is a pair in ascending order, as far as the values are known while tracing."""
    if not isinstance(bounds, tuple) or len(bounds) != 2 or not all(map(is_number, bounds)):
        return False
    are_known = [isinstance(bound, (int, float, np.number)) for bound in bounds]
    return not all(are_known) or bool(bounds[0] <= bounds[1] and bounds[0] < np.inf and bounds[1] > -np.inf)
