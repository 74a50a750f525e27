"""Discounted returns of whole episodes, `G_t = r_t + gamma d_t G_{t+1}`, known as soon as an episode has ended.

A step is the affine map `G -> total + factor * G`, with `factor = gamma * discount`, and maps in a row compose:

    (total, factor) then (total', factor') = (total + factor * total', factor * factor')

Every row holds the composition of itself with what follows in its block of eight rows, every block with what follows
in its block of blocks, and so on. A new row is appended to the compositions that reach up to it, eight a level; the
return of any step is read off with one look a level. So nothing is filled in backwards when an episode ends, which
would cost its length, and nothing is divided by a power of `gamma`: episodes of any length have finite returns.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax

from jaxrl_buffers._checks import is_no_number, require_number, shown
from jaxrl_buffers._fields import check_fields, field_at, named_field, with_field
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
        gamma: the discount of one step. Above 1, returns that are too large for a float32 are not finite.
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
        require_number(self, "gamma", self.gamma, 0)
        if is_no_number(self, self.default) or isinstance(self.default, (str, bytes)):
            raise ValueError(f"EpisodicReturns(default={shown(self.default)}): `default` must be a number.")
        clip: Any = self.reward_clip
        if isinstance(clip, (tuple, list, int, float)) and not _is_range(clip):  # JAX may put a placeholder here
            raise ValueError(f"EpisodicReturns(reward_clip={clip}): `reward_clip` must be a pair (least, most).")

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
        """Append rows `[K, E]`, in order of time, leaving out rows behind the last one of the ring."""
        reward = steps.reward.astype(jnp.float32)
        if self.reward_clip is not None:
            reward = jnp.clip(reward, *(jnp.asarray(limit, jnp.float32) for limit in self.reward_clip))
        factor = jnp.where(steps.is_zero, 0, jnp.asarray(self.gamma, jnp.float32) * steps.discount.astype(jnp.float32))
        # Nothing that follows an end counts, so a composition may run on behind it.
        total = reward + jnp.where(steps.truncated, factor * steps.value.astype(jnp.float32), 0)
        maps = Affine(total, jnp.where(steps.truncated, 0, factor))

        def append_one(k: jax.Array | int, tree: Affine) -> Affine:
            return _append(tree, length, row[k], env[k], Affine(maps.total[k], maps.factor[k]))

        return append_one(0, tree) if row.shape[0] == 1 else lax.fori_loop(0, row.shape[0], append_one, tree)

    def cut(self, tree: Affine, length: int, row: jax.Array, env: jax.Array, value: jax.Array) -> Affine:
        """Let the newest rows `[E]` be followed by nothing but a value."""
        value = value.astype(jnp.float32)
        return _append(tree, length, row, env, Affine(value, jnp.zeros_like(value)), begins=False)

    def read(self, tree: Affine, length: int, row: jax.Array, env: jax.Array, is_settled: jax.Array) -> jax.Array:
        """Return the returns of rows where something that follows settles them; the default elsewhere."""
        return jnp.where(is_settled, _total(tree, length, row, env), jnp.asarray(self.default, jnp.float32))

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
    return Affine(first.total + _times(first.factor, second.total), _times(first.factor, second.factor))


def _times(factor: jax.Array, value: jax.Array) -> jax.Array:
    """Multiply; zero times infinity is zero, since an infinite factor is a product too large for a float32."""
    is_nothing = (factor == 0) | ((value == 0) & jnp.isinf(factor))
    return jnp.where(is_nothing, 0, factor * value)


def _append(tree: Affine, length: int, row: jax.Array, env: jax.Array, maps: Affine, begins: bool = True) -> Affine:
    """Append maps `[E]` to all compositions that reach up to their rows, on all levels at once.

    These are the siblings up to the node that holds the row. Those behind it are of the round before, and stay.
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
    """Compose all that follows from rows on, once around the ring, and return what it amounts to.

    What is composed behind the step that settles a return may be anything: that step's factor of zero hides it.
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


def _is_range(bounds: Any) -> bool:
    """Tell whether these are two bounds in their order, as far as they are known now."""
    if not isinstance(bounds, tuple) or len(bounds) != 2:
        return False
    are_known = [isinstance(bound, (int, float, np.number)) for bound in bounds]
    if any(isinstance(bound, (list, str)) or (bound is None and any(are_known)) for bound in bounds):
        return False
    return not all(are_known) or bool(bounds[0] <= bounds[1])
