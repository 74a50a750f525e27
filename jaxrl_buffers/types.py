"""The data that parts of a buffer exchange, and the protocols of these parts.

These words are used in the same way everywhere:

* a **row** is a time index `t` of the ring; a **slot** is `(t, n)`, held as a flat index in which the rows of any
  range of time lie side by side: `t * N + n` in lock-step, `n * T + t` with per-environment cursors;
* a **start** is a slot from which a sample may begin; a **sample** is what the learner gets;
* a **position** counts the rows ever written to an environment (modulo a large multiple of the ring's length, so that
  it never overflows): `row = position mod T`;
* the **age** of a row counts the rows written after it: the newest row has age 0.

Axis letters: `T` rows, `N` environments, `K` rows of a chunk, `B` samples, `L` steps of a sequence, `A` actions,
`S` seeds, `D` devices.

A sampler or view of your own is a frozen dataclass that is a pytree and has the attributes and methods of the protocol
below; `docs/guides/own_parts.md` shows one of each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import jax

if TYPE_CHECKING:
    from jaxrl_buffers.storage.reader import Reader
    from jaxrl_buffers.storage.ring import Ring

PyTree = Any
Scalar = float | jax.Array  # a hyper-parameter: a Python number, or a traced scalar


class Transition(NamedTuple):
    """One step of an environment; `obs`, `action`, `next_obs` and `extras` may be any pytree.

    `terminated` ends the task (no bootstrap); `truncated` is a time limit (bootstrap from `next_obs`). `next_obs` is
    the true successor, never the observation after an automatic reset.
    """

    obs: PyTree  # what the agent saw
    action: PyTree  # what it then did
    reward: Any  # a number, or a vector of them
    terminated: Any  # a bool
    truncated: Any  # a bool
    next_obs: PyTree  # what it saw next
    extras: PyTree = ()  # anything else, such as the log-probability of the action; memories are under "carry"


class Batch(NamedTuple):
    """What a learner trains on: `target = reward + discount * V(next_obs)`.

    `[B, ...]` from `NStep`, `[B, L, ...]` from `Sequence`. `discount` is `gamma**k * (1 - terminated)` for the `k`
    steps really used. Entries whose `mask` is False carry no information.

    `Sequence(n=3)` also says how many steps those are, as `num_steps`: a network with a memory must have seen row
    `i + num_steps[:, i] - 1` when it values `next_obs[:, i]`.
    """

    obs: PyTree  # leaves [B, ...] or [B, L, ...]
    action: PyTree  # likewise
    reward: jax.Array  # float32[B] or [B, L]
    discount: jax.Array  # float32[B] or [B, L]
    next_obs: PyTree  # leaves [B, ...] or [B, L, ...]
    mask: jax.Array  # bool[B] or [B, L]
    extras: PyTree = ()
    num_steps: jax.Array | None = None  # int32[B, L], only from `Sequence` with `n > 1`


class Handle(NamedTuple):
    """Names stored rows. A handle is stale once its row was overwritten or cleared; stale handles are ignored.

    Positions repeat after about 10^9 rows; until then a stale handle cannot name a newer row.
    """

    env: jax.Array  # int32[B]
    position: jax.Array  # int32[B]


class Sample(NamedTuple):
    """What every buffer's `sample` returns.

    A learner multiplies the loss of each sample by its weight, such as `mean(weights * (Q(obs, action) - target)**2)`,
    and gives the handle back with new priorities: `buffer.update_priorities(state, sample.handle, abs(td_error))`.
    """

    batch: PyTree  # Batch, or the raw rows [B, L, ...] of something other than transitions
    handle: PyTree  # Handle, or MixtureHandle
    weights: jax.Array  # float32[B]; ones unless priorities bias the draw, zero where there was nothing to draw


class Window(NamedTuple):
    """The ages of legal starts: `newest, newest + stride, ...` below `oldest`.

    Of these, only starts count that are followed by `fit` rows of their own episode. `newest` and `oldest` are scalars
    in lock-step, and `[N]` with a cursor for each environment.
    """

    newest: jax.Array  # int32[] or [N]
    oldest: jax.Array  # int32[] or [N]
    stride: int = 1
    fit: int = 0  # how many rows of its own episode must follow a start
    is_narrowed: bool = False  # whether there may be legal starts that are too old for this window


class Draw(NamedTuple):
    """Drawn starts, and all that a sampler needs in order to form their weights.

    A `mass` of zero means that there was nothing to draw; its slot is then meaningless.
    """

    slots: jax.Array  # int32[B]
    mass: jax.Array  # float32[B], the unnormalized probability of each drawn start
    least: jax.Array  # float32[], the smallest mass of any start (inf when there is none)
    total: jax.Array  # float32[], the mass of all starts
    num_starts: jax.Array  # int32[]


@runtime_checkable
class Sampler(Protocol):
    """Decides which starts are drawn.

    A sampler may also have what `NeedsEpisodes`, `NeedsEveryEnv` and `MarksRows` describe.
    """

    def init(self, storage_shape: tuple[int, int], platform: str | None = None) -> PyTree:
        """Return the state for a storage of shape `(T, N)`, laid out for a platform; `()` if the sampler has none."""
        ...

    def mark(self, state: PyTree, slots: jax.Array, legal: jax.Array, priorities: jax.Array | None = None) -> PyTree:
        """Take note that slots were written, or became or ceased to be legal starts.

        Slots outside the storage are ignored. Priorities that are not finite and non-negative count as not given.
        """
        ...

    def draw(
        self, state: PyTree, storage: Ring, key: jax.Array, batch_size: int, window: Window, progress: Scalar
    ) -> Draw:
        """Draw `batch_size` starts inside `window`; consumes `key`. `progress` in `[0, 1)` says which update it is."""
        ...

    def measure(self, state: PyTree, storage: Ring, slots: jax.Array, window: Window, progress: Scalar) -> Draw:
        """Return the `Draw` that would be reported for `slots[B]`; the mass is zero where a slot cannot be drawn."""
        ...

    def weights(self, draw: Draw) -> jax.Array:
        """Return the importance weights `float32[B]` of a draw."""
        ...

    def update(
        self, state: PyTree, slots: jax.Array, priorities: jax.Array, live: jax.Array, mask: jax.Array | None = None
    ) -> PyTree:
        """Set priorities `[B]`, or `[B, L]` with a mask, where `live`; never turns a slot into a start.

        Identity if stateless.
        """
        ...

    def reprioritize(self, state: PyTree, legal: jax.Array) -> PyTree:
        """Apply the present hyper-parameters to every stored priority; `legal[T * N]` says which slots are starts.

        Identity if stateless.
        """
        ...

    def report_return(self, state: PyTree, mean_return: Scalar) -> PyTree:
        """Take note of how well the agent does. Identity if the sampler does not adapt to it."""
        ...


@runtime_checkable
class MarksRows(Protocol):
    """An optional part of a sampler: a faster `mark` of rows that were written together in lock-step."""

    def mark_rows(
        self,
        state: PyTree,
        begin: jax.Array,
        slots: jax.Array,
        legal: jax.Array,
        priorities: jax.Array | None = None,
    ) -> PyTree:
        """Take note of slots `[K, N]` as `mark` does; those inside the storage are `begin, begin + 1, ...` in order.

        After the last slot of the storage they go on at slot 0, but not within a row.
        """
        ...


@runtime_checkable
class NeedsEpisodes(Protocol):
    """An optional part of a sampler: it says whether it reads the episode index, `storage.episodes`."""

    @property
    def needs_episodes(self) -> bool:
        """Whether the episode index must be kept."""
        ...


@runtime_checkable
class NeedsEveryEnv(Protocol):
    """An optional part of a sampler: it says whether every environment must hold a start."""

    @property
    def needs_every_env(self) -> bool:
        """Whether a batch holds draws from every environment."""
        ...


@runtime_checkable
class StaysWithinEpisode(Protocol):
    """An optional part of a view, which then also needs the episode index."""

    @property
    def within_episode(self) -> bool:
        """Whether all rows of a sample must lie in one episode."""
        ...


@runtime_checkable
class View(Protocol):
    """Decides what drawn starts mean.

    A view may also have what `StaysWithinEpisode` describes.
    """

    @property
    def lookahead(self) -> int:
        """How many newer rows a start needs."""
        ...

    @property
    def lookback(self) -> int:
        """How many older rows a start needs."""
        ...

    @property
    def span(self) -> int:
        """How many rows a sample may read."""
        ...

    @property
    def stride(self) -> int:
        """Only every `stride`-th row may start a sample."""
        ...

    @property
    def needs_episodes(self) -> bool:
        """Whether the view reads the episode index."""
        ...

    @property
    def is_random(self) -> bool:
        """Whether the view uses its key. If not, none is split for it, which would cost as much as a draw."""
        ...

    @property
    def fields(self) -> tuple[str, ...]:
        """The named fields that stored rows must have."""
        ...

    def __call__(self, reader: Reader, slots: jax.Array, key: jax.Array) -> PyTree:
        """Return the batch that begins at `slots`; consumes `key`."""
        ...
