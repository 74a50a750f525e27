"""Discounted returns of whole episodes, `G_t = r_t + gamma d_t G_{t+1}`, known as soon as an episode has ended.

A step is the affine map `G -> total + factor * G`, with `factor = gamma * discount`, and maps of neighbors compose:

    (total, factor) then (total', factor') = (total + factor * total', factor * factor')

A tree of such compositions over the rows of each environment answers for any step in `O(log T)`. So nothing is
filled in backwards when an episode ends, which inside a compiled program would cost an episode's length in every step,
and nothing is divided by a power of `gamma`: episodes of any length have finite returns.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_buffers.checks import check_fields, field_at, named_field, require_number, with_field
from jaxrl_buffers.types import PyTree, Scalar

FAN_OUT = 8
FIELD = "episodic_return"


class Steps(NamedTuple):
    """What returns need to know of rows."""

    terminated: jax.Array  # bool
    truncated: jax.Array  # bool
    is_zero: jax.Array  # bool: nothing that follows counts
    reward: jax.Array
    discount: jax.Array  # of what follows, without gamma
    value: jax.Array  # of what follows a time limit


class Affine(NamedTuple):
    """Maps `G -> total + factor * G`."""

    total: jax.Array  # float32[...]
    factor: jax.Array  # float32[...]


class EpisodicReturns(struct.PyTreeNode):
    """Record the discounted return of every step; batches carry it as `extras["episodic_return"]`.

    A step has one as soon as a later step of its episode, or the step itself, has a discount of zero; until then, and
    for ever if a time limit cuts the episode off, the return is `default`. A changed `gamma` or `reward_clip` affects
    rows written from then on.

    Args:
        gamma: the discount of one step.
        default: the return of steps that have none (yet).
        reward_clip: `(least, most)`, to which rewards are clipped first.
        bootstrap: the name of a stored value of what follows a step, such as `"extras.next_value"`; with it, time
            limits settle the returns of their episodes too.
        discount: the name of a stored discount of what follows a step, such as `"extras.discount"`, for environments
            that have their own; by default `1 - terminated`. Discounts multiply from step to step.

    Example:
        >>> import jaxrl_buffers as jb
        >>> buffer = jb.ReplayBuffer(returns=jb.EpisodicReturns(gamma=0.99, default=-1000.0), length=1_000)
    """

    gamma: Scalar = 0.99
    default: Scalar = 0.0
    reward_clip: tuple[Scalar, Scalar] | None = None
    bootstrap: str | None = struct.field(pytree_node=False, default=None)
    discount: str | None = struct.field(pytree_node=False, default=None)

    def __post_init__(self):
        require_number("EpisodicReturns", "gamma", self.gamma, 0)

    def init(self, structure: PyTree, shape: tuple[int, int]) -> Affine:
        """Return an empty tree for a ring of shape `(T, N)`."""
        names = [name for name in ("reward", "extras", self.bootstrap, self.discount) if name is not None]
        check_fields(structure, "EpisodicReturns", names)
        for name in {*names} - {"extras"}:
            if (field := field_at(structure, name)).shape != ():
                raise ValueError(f"init(): EpisodicReturns needs a single number as {name!r}, the example has {field}.")
        self.attach(structure, jnp.float32(0))
        shape = (sum(_nodes_by_level(shape[0])), shape[1])
        return Affine(jnp.zeros(shape, jnp.float32), jnp.zeros(shape, jnp.float32))

    def write(self, tree: Affine, length: int, steps: Steps, row: jax.Array, env: jax.Array) -> Affine:
        """Set the maps of rows `[K, E]` of a ring of the given length, leaving out rows behind the last one."""
        reward = steps.reward.astype(jnp.float32)
        if self.reward_clip is not None:
            reward = jnp.clip(reward, *(jnp.asarray(limit, jnp.float32) for limit in self.reward_clip))
        factor = jnp.where(steps.is_zero, 0, jnp.asarray(self.gamma, jnp.float32) * steps.discount.astype(jnp.float32))
        ends = steps.truncated & ~steps.is_zero
        total = reward + jnp.where(ends, factor * steps.value.astype(jnp.float32), 0)
        return _write(tree, length, row, env, Affine(total, jnp.where(ends, 0, factor)))

    def read(self, tree: Affine, length: int, row: jax.Array, env: jax.Array, num_rows: jax.Array) -> jax.Array:
        """Return the returns of rows, summed up over `num_rows` of them; the default where that is 0."""
        stop = row + num_rows
        unwrapped = _fold(tree, length, env, row, jnp.minimum(stop, length))
        wrapped = _fold(tree, length, env, jnp.zeros_like(row), jnp.maximum(stop - length, 0))
        return jnp.where(num_rows > 0, _then(unwrapped, wrapped).total, jnp.asarray(self.default, jnp.float32))

    def attach(self, rows: PyTree, value: jax.Array) -> PyTree:
        """Return rows with their returns among the extras."""
        extras = named_field(rows, "extras")
        if not isinstance(extras, dict) and jax.tree.leaves(extras):
            raise ValueError(
                f"init(): EpisodicReturns puts the return among the extras of a row, but these are "
                f"{type(extras).__name__}; make them a dict."
            )
        return with_field(rows, "extras", (extras if isinstance(extras, dict) else {}) | {FIELD: value})


def steps_of(rows: PyTree, recorded: EpisodicReturns | None) -> Steps:
    """Read off rows what the index and the returns need; unread fields cost nothing."""
    terminated, truncated = (named_field(rows, name).astype(bool) for name in ("terminated", "truncated"))
    one = jnp.ones(terminated.shape, jnp.float32)
    if recorded is None:
        return Steps(terminated, truncated, terminated, one, one, one)
    discount = one if recorded.discount is None else field_at(rows, recorded.discount)
    value = one * 0 if recorded.bootstrap is None else field_at(rows, recorded.bootstrap)
    return Steps(terminated, truncated, terminated | (discount == 0), named_field(rows, "reward"), discount, value)


def _nodes_by_level(length: int) -> list[int]:
    """Return how many nodes each level has, rows first."""
    nodes = [length]
    while nodes[-1] > FAN_OUT:
        nodes.append(-(-nodes[-1] // FAN_OUT))
    return nodes


def _then(first: Affine, second: Affine) -> Affine:
    """Compose maps in order of time. A factor of zero hides whatever follows, also what is not finite."""
    follows = jnp.where(first.factor == 0, 0, first.factor * second.total)
    return Affine(first.total + follows, first.factor * second.factor)


def _children(tree: Affine, offset: int, parent: jax.Array, env: jax.Array, begin: jax.Array, end: jax.Array) -> Affine:
    """Compose those children of nodes that lie in `begin..end-1` of their level, which begins at `offset`."""
    composed = Affine(jnp.zeros(parent.shape, jnp.float32), jnp.ones(parent.shape, jnp.float32))
    for child in range(FAN_OUT):
        node = parent * FAN_OUT + child
        inside = (node >= begin) & (node < end)
        total, factor = (leaf.at[offset + node, env].get(mode="clip") for leaf in tree)
        composed = _then(composed, Affine(jnp.where(inside, total, 0), jnp.where(inside, factor, 1)))
    return composed


def _write(tree: Affine, length: int, row: jax.Array, env: jax.Array, maps: Affine) -> Affine:
    """Set rows, and the nodes above that they complete.

    A node is right once its last row is written, and only asked about while all of its rows are stored; so it need not
    be kept right in between.
    """
    levels = _nodes_by_level(length)
    outside = sum(levels)
    completes = row < length
    tree = _set(tree, jnp.where(completes, row, outside), env, maps)
    for level in range(1, len(levels)):
        child_offset, offset, span = sum(levels[: level - 1]), sum(levels[:level]), FAN_OUT**level
        completes &= ((row + 1) % span == 0) | (row + 1 == length)
        node = row // span
        begin, end = node * FAN_OUT, jnp.minimum((node + 1) * FAN_OUT, levels[level - 1])
        composed = _children(tree, child_offset, node, env, begin, end)
        tree = _set(tree, jnp.where(completes, offset + node, outside), env, composed)
    return tree


def _set(tree: Affine, node: jax.Array, env: jax.Array, maps: Affine) -> Affine:
    return jax.tree.map(lambda leaf, new: leaf.at[node, env].set(new, mode="drop"), tree, maps)


def _fold(tree: Affine, length: int, env: jax.Array, begin: jax.Array, end: jax.Array) -> Affine:
    """Compose the maps of rows `begin..end-1`, from at most two groups of siblings a level."""
    levels = _nodes_by_level(length)
    left = right = Affine(jnp.zeros(begin.shape, jnp.float32), jnp.ones(begin.shape, jnp.float32))
    for level in range(len(levels)):
        offset = sum(levels[:level])
        up, down = -(-begin // FAN_OUT), end // FAN_OUT
        in_one = (up > down) | (level == len(levels) - 1)
        left_end, right_begin = jnp.where(in_one, end, up * FAN_OUT), jnp.where(in_one, end, down * FAN_OUT)
        left = _then(left, _children(tree, offset, begin // FAN_OUT, env, begin, left_end))
        right = _then(_children(tree, offset, down, env, right_begin, end), right)
        begin, end = jnp.where(in_one, 0, up), jnp.where(in_one, 0, down)
    return _then(left, right)
