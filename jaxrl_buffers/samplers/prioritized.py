"""Draw starts in proportion to their priority.

    P(i) = leaf_i / sum(leaf),   leaf_i = (priority_i + epsilon)^alpha,   w_i = (N P(i))^-beta / max_j w_j

Schaul et al., Prioritized Experience Replay, https://arxiv.org/abs/1511.05952
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_buffers import _mesh as mesh
from jaxrl_buffers import segment_tree, starts
from jaxrl_buffers._checked import check
from jaxrl_buffers._checks import require_choice, require_integer, require_number
from jaxrl_buffers._mesh import Axis
from jaxrl_buffers._xla import order_after, set_last_wins, set_run, without_duplicates
from jaxrl_buffers.component import MESH_AXIS, Component, field
from jaxrl_buffers.segment_tree import SegmentTree
from jaxrl_buffers.storage.ring import Ring
from jaxrl_buffers.storage.rows import platform_of
from jaxrl_buffers.types import Draw, Scalar, Window

WEIGHTINGS = ("buffer", "batch", "alf")


class PrioritizedState(NamedTuple):
    """The leaf and the priority of every slot. A leaf is zero if and only if its slot is not a legal start."""

    tree: SegmentTree  # T * N leaves
    raw: jax.Array  # float32[T * N], kept so that a new alpha can be applied to old rows

    @property
    def is_per_slot(self) -> bool:
        """Whether every leaf has one entry for each slot; see `jaxrl_buffers.types.PerSlot`."""
        return True


class Prioritized(Component):
    """Draw starts in proportion to `(priority + epsilon)^alpha`.

    This is a sampler, which can be used in any buffer. `jb.prioritized`, in lower case, makes a whole buffer with it.

    A new start gets the priority that was passed to `add`. If none was passed, it gets the largest priority of all
    starts, or `initial` if that is larger. Priorities that are negative or not finite change nothing. A changed `alpha`
    or `epsilon` affects only later writes; `buffer.reprioritize(state)` applies it to all rows.

    Args:
        alpha: how much priorities matter; 0 draws uniformly.
        beta: how much of the bias the weights correct; 1 corrects all of it.
        epsilon: added to every priority. With an epsilon of 0, a priority of zero counts as the smallest positive
            number. The weight of such a start is so large that, with `weighting="buffer"`, all other weights are nearly
            zero.
        initial: the priority of new starts while no larger one is stored.
        eta: how the priorities of a sequence are reduced to one: `eta * max + (1 - eta) * mean`.
        stratified: draw one start from each of `B` equal parts of the mass. With False, all starts are drawn
            independently. Parts may differ by 1e-6 of the mass because of rounding.
        weighting: `"buffer"` divides the weights by the largest weight of all starts, `"batch"` by the largest weight
            in the batch. `"alf"` gives the weights `P(i) * N` and ignores `beta`.
        fan_out: how many children a node of the segment tree has. The default depends on the buffer's `platform`: 8 on
            CPUs, 64 on GPUs, 128 on TPUs. It changes only the speed and the last bit of sums.

    Example:
        >>> import jaxrl_buffers as jb
        >>> sampler = jb.Prioritized(alpha=0.6, beta=0.4)
        >>> annealed = sampler.replace(beta=0.7)
    """

    alpha: Scalar = 0.6
    beta: Scalar = 0.4
    epsilon: Scalar = 1e-6
    initial: Scalar = 1.0
    eta: Scalar = 0.9
    stratified: bool = field(static=True, default=True)
    weighting: str = field(static=True, default="buffer")
    fan_out: int | None = field(static=True, default=None)
    axis: Axis = field(static=True, default=None, kw_only=True, repr=False, metadata=MESH_AXIS)

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "epsilon", "initial"):
            require_number(self, name, getattr(self, name), 0)
        require_number(self, "eta", self.eta, 0, 1)
        require_choice("Prioritized", "weighting", self.weighting, WEIGHTINGS)
        if self.fan_out is not None:
            require_integer("Prioritized", "fan_out", self.fan_out, 2, segment_tree.SMALL_LEVEL)

    def init(self, storage_shape: tuple[int, int], platform: str | None = None) -> PrioritizedState:
        """Return a state without any legal start."""
        length, num_envs = storage_shape
        tree = segment_tree.init(length * num_envs, self.fan_out or segment_tree.FAN_OUTS[platform_of(platform)])
        return PrioritizedState(tree, jnp.zeros(length * num_envs, jnp.float32))

    def mark(
        self, state: PrioritizedState, slots: jax.Array, legal: jax.Array, priorities: jax.Array | None = None
    ) -> PrioritizedState:
        """Give legal slots their first priority; the leaves of other slots become zero."""
        leaf, raw = self._first(state, legal, priorities)
        return _set(state, slots, leaf, raw, jnp.ones_like(legal), unique=True)

    def mark_rows(
        self,
        state: PrioritizedState,
        begin: jax.Array,
        slots: jax.Array,
        legal: jax.Array,
        priorities: jax.Array | None = None,
    ) -> PrioritizedState:
        """Do what `mark` does, but faster, for consecutive slots. In wide trees their nodes are side by side."""
        flat, given = legal.reshape(-1), None if priorities is None else priorities.reshape(-1)
        if not state.tree.is_wide:
            return self.mark(state, slots.reshape(-1), flat, given)
        leaf, raw = self._first(state, flat, given)
        capacity, wraps = state.tree.capacity, slots.shape[0] > 1
        inside = slots.reshape(-1) < capacity
        tree = segment_tree.write_run(state.tree, begin, leaf, inside, wraps)
        return PrioritizedState(tree, set_run(state.raw, begin, raw, inside, capacity, wraps))

    def _first(
        self, state: PrioritizedState, legal: jax.Array, priorities: jax.Array | None
    ) -> tuple[jax.Array, jax.Array]:
        """Return the leaves and the priorities of new slots."""
        largest = mesh.largest(segment_tree.reduce(state.tree).largest, self.axis)
        leaf = jnp.maximum(largest, self._leaf(self.initial, state))
        raw = self._priority(leaf)
        if priorities is not None:
            priorities = priorities.astype(jnp.float32)
            given = _is_priority(priorities)
            raw = jnp.where(given, priorities, raw)
            leaf = jnp.where(given, self._leaf(jnp.where(given, priorities, 0), state), leaf)
        return jnp.where(legal, leaf, 0), jnp.broadcast_to(raw, legal.shape)

    def draw(
        self, state: PrioritizedState, storage: Ring, key: jax.Array, batch_size: int, window: Window, progress: Scalar
    ) -> Draw:
        """Draw `batch_size` starts; consumes `key`."""
        if window.is_narrowed:
            ranges = starts.slot_ranges(storage, window)
            slots, mass, summary = segment_tree.draw_ranges(state.tree, key, batch_size, *ranges, self.stratified)
        else:
            slots, mass, summary = segment_tree.draw(state.tree, key, batch_size, self.stratified)
        # Leaves are positive for starts that were legal for the view when their rows were added. The buffer may have
        # another view now. The slots depend on all that is read here, and so does a later write to the tree.
        is_legal = order_after(starts.is_legal_slot(storage, window, slots), summary.least)
        mass = jnp.where(is_legal, mass, 0)
        count = starts.count(storage, window)
        return Draw(jnp.where(mass > 0, slots, 0), mass, summary.least, summary.total, count)

    def measure(
        self, state: PrioritizedState, storage: Ring, slots: jax.Array, window: Window, progress: Scalar = 0.0
    ) -> Draw:
        """Return the `Draw` of `slots`, as if they had been drawn. A slot that cannot be drawn has a mass of zero."""
        mass, summary = segment_tree.read(state.tree, slots), segment_tree.reduce(state.tree)
        mass = jnp.where(starts.is_legal_slot(storage, window, slots), mass, 0)
        if window.is_narrowed:
            summary = segment_tree.reduce_ranges(state.tree, *starts.slot_ranges(storage, window))
        return Draw(slots, mass, summary.least, summary.total, starts.count(storage, window))

    def weights(self, draw: Draw) -> jax.Array:
        """Return the importance weights of a draw."""
        mass = jnp.where(draw.mass > 0, draw.mass, jnp.inf)
        if self.weighting == "alf":
            return draw.mass * draw.num_starts.astype(jnp.float32) / jnp.where(draw.total > 0, draw.total, 1)
        # (N P_i)^-beta / max_j (N P_j)^-beta = (p_min / p_i)^beta: neither N nor the total can overflow or cancel.
        least = draw.least if self.weighting == "buffer" else jnp.min(mass)
        # For beta < 1 the powers are taken before the ratio, because the ratio itself may be too small for a float32.
        # For beta > 1 they are taken after the ratio, because powers of single masses may be too small or too large.
        root, power = jnp.minimum(_float32(self.beta), 1), jnp.maximum(_float32(self.beta), 1)
        return (jnp.where(jnp.isfinite(least), least, 0) ** root / mass**root) ** power

    def update(
        self,
        state: PrioritizedState,
        slots: jax.Array,
        priorities: jax.Array,
        live: jax.Array,
        mask: jax.Array | None = None,
    ) -> PrioritizedState:
        """Set the priorities of live starts."""
        priorities = priorities.astype(jnp.float32)
        if priorities.ndim == 2:
            priorities = self._sequence_priority(priorities, mask)
        valid = _is_priority(priorities)
        check(lambda: jnp.all(valid | ~live), "update_priorities() got priorities that are negative or not finite")
        leaf = self._leaf(jnp.where(valid, priorities, 0), state)
        is_start = segment_tree.read(state.tree, slots) > 0
        return _set(state, slots, leaf, priorities, live & valid & is_start)

    def reprioritize(self, state: PrioritizedState, legal: jax.Array) -> PrioritizedState:
        """Recompute the leaves of legal starts from their priorities with the present `alpha` and `epsilon`."""
        leaves = jnp.where(legal, self._leaf(state.raw, state), 0)
        return PrioritizedState(segment_tree.from_leaves(leaves, state.tree.fan_out), state.raw)

    def report_return(self, state: PrioritizedState, mean_return: Scalar) -> PrioritizedState:
        """Do nothing."""
        return state

    def _sequence_priority(self, priorities: jax.Array, mask: jax.Array | None) -> jax.Array:
        """Reduce `[B, L]` by `eta * max + (1 - eta) * mean` over the mask; zero where the mask is False everywhere."""
        mask = jnp.ones(priorities.shape, bool) if mask is None else jnp.asarray(mask, bool)
        largest = jnp.max(jnp.where(mask, priorities, -jnp.inf), axis=1)
        mean = jnp.sum(jnp.where(mask, priorities, 0), axis=1) / jnp.maximum(jnp.sum(mask, axis=1), 1)
        eta = _float32(self.eta)
        return jnp.where(jnp.any(mask, axis=1), eta * largest + (1 - eta) * mean, 0)

    def _leaf(self, priority: Scalar, state: PrioritizedState) -> jax.Array:
        """Return `(priority + epsilon)^alpha`, clipped: it is positive, and the sum of all leaves is finite.

        The inverse of that sum must not be subnormal either, because XLA turns a division by a scalar into a product
        with its inverse.
        """
        limits = jnp.finfo(jnp.float32)
        leaf = (_float32(priority) + _float32(self.epsilon)) ** _float32(self.alpha)
        return jnp.clip(leaf, limits.tiny, limits.max / (8 * state.tree.capacity))

    def _priority(self, leaf: jax.Array) -> jax.Array:
        """Return the priority that gives this leaf. With `alpha = 0` all priorities give it; then return `initial`."""
        alpha = _float32(self.alpha)
        priority = leaf ** (1 / jnp.where(alpha > 0, alpha, 1)) - _float32(self.epsilon)
        return jnp.where(alpha > 0, jnp.clip(priority, 0, jnp.finfo(jnp.float32).max), _float32(self.initial))


def _float32(value: Scalar) -> jax.Array:
    return jnp.asarray(value, jnp.float32)


def _is_priority(priorities: jax.Array) -> jax.Array:
    return jnp.isfinite(priorities) & (priorities >= 0)


def _set(
    state: PrioritizedState, slots: jax.Array, leaf: jax.Array, raw: jax.Array, where: jax.Array, unique: bool = False
) -> PrioritizedState:
    inside = where & (slots >= 0) & (slots < state.raw.shape[0])
    if state.tree.is_wide and not unique:  # then duplicates are removed once for both arrays
        slots, (leaf, raw), inside = without_duplicates(slots, (leaf, raw), inside)
        where, unique = inside, True
    tree = segment_tree.write(state.tree, slots, leaf, where, unique)
    return PrioritizedState(tree, set_last_wins(state.raw, slots, raw, inside, unique))
