"""The data that parts of a buffer exchange, and the protocols of these parts.

These words are used in the same way everywhere:

* a **row** is a time index `t` of the ring; a **slot** is the place `(t, n)` of one environment in that row, written as
  a flat index: `t * N + n` in lock-step, `n * T + t` with a cursor for each environment. Consecutive rows
  have neighboring slots: those of all environments in lock-step, those of one environment otherwise;
* a **start** is a slot from which a sample may begin; a **sample** is what the learner gets;
* a **position** is the number of a row among all rows ever written to an environment: `row = position mod T`. It counts
  modulo a large multiple of the ring's length, so it never overflows;
* the **age** of a row is the number of rows of its environment written after it: the newest row has age 0.

Axis letters: `T` rows, `N` environments, `K` rows of a chunk, `B` samples, `L` steps of a sequence, `A` actions,
`S` seeds, `D` devices.

To write your own sampler or view, make a frozen dataclass that is a pytree and has the attributes and methods of the
protocol below. Here is a sampler that draws only from one environment. For each start, it reports a `mass` out of a
`total`; a mass of 0 means that nothing was drawn:

    >>> import jax
    >>> import jax.numpy as jnp
    >>> import jaxrl_buffers as jb
    >>> from jaxrl_buffers import starts
    >>> from jaxrl_buffers.component import Component
    >>> from jaxrl_buffers.storage import ring
    >>> class OneEnv(jb.samplers.Stateless):
    ...     env: jb.Scalar = 0
    ...
    ...     def draw(self, state, storage, key, batch_size, window, progress=0.0):
    ...         count = starts.count_of_every_env(storage, window)[self.env]
    ...         number = jax.random.randint(key, (batch_size,), 0, jnp.maximum(count, 1))
    ...         slots = starts.slot_in_env(storage, window, number, jnp.full(batch_size, self.env))
    ...         return self.measure(state, storage, slots, window)
    ...
    ...     def measure(self, state, storage, slots, window, progress=0.0):
    ...         _, env = ring.unravel(storage, slots)
    ...         mass = starts.is_legal_slot(storage, window, slots) & (env == self.env)
    ...         count = starts.count_of_every_env(storage, window)[self.env]
    ...         least = jnp.where(count > 0, 1.0, jnp.inf)
    ...         return jb.Draw(slots, mass.astype(jnp.float32), least, count.astype(jnp.float32), count)

And here is a view for SARSA, which needs the next action too. At a time limit there is none, so the mask is False:

    >>> class Sarsa(Component):
    ...     gamma: jb.Scalar = 0.99
    ...
    ...     lookahead, lookback, span, stride = 1, 0, 2, 1
    ...     needs_episodes, is_random = False, False
    ...     fields = ("obs", "action", "reward", "terminated", "truncated", "next_obs")
    ...
    ...     def __call__(self, reader, slots, key):
    ...         row, env = reader.locate(slots)
    ...         step, after = reader.steps(row, env, 2).each()
    ...         discount = self.gamma * (1.0 - step.terminated)
    ...         mask = reader.is_complete(row, env) & (step.terminated | ~step.truncated)
    ...         extras = {"next_action": after.action}
    ...         return jb.Batch(step.obs, step.action, step.reward, discount, step.next_obs, mask, extras)

A buffer with both, and five steps of each of four environments:

    >>> buffer = jb.ReplayBuffer(OneEnv(env=2), Sarsa(gamma=0.5), length=5, num_envs=4)
    >>> time, env = jnp.meshgrid(jnp.arange(5), jnp.arange(4), indexing="ij")
    >>> chunk = jb.Transition(time, 10 * time + env, 1.0 * time, time == 0, time == 2, time + 1)
    >>> state = buffer.add(buffer.init(jax.tree.map(lambda leaf: leaf[0, 0], chunk)), chunk)
    >>> batch = buffer.sample(state, jax.random.key(0), batch_size=6).batch
    >>> print(batch.action, batch.extras["next_action"], batch.discount, batch.mask)
    [22 32 32 22  2  2] [32 42 42 32 12 12] [0.5 0.5 0.5 0.5 0.  0. ] [False  True  True False  True  True]

`docs/guides/own_parts.md` explains how to write such parts, with another one of each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import jax

from jaxrl_buffers._optional_parts import MarksRows as MarksRows
from jaxrl_buffers._optional_parts import NeedsEpisodes as NeedsEpisodes
from jaxrl_buffers._optional_parts import NeedsEveryEnv as NeedsEveryEnv
from jaxrl_buffers._optional_parts import PerSlot as PerSlot
from jaxrl_buffers._optional_parts import StaysWithinEpisode as StaysWithinEpisode

if TYPE_CHECKING:
    from jaxrl_buffers.storage.reader import Reader
    from jaxrl_buffers.storage.ring import Ring

PyTree = Any
Scalar = float | jax.Array  # a hyper-parameter: a Python number, or a traced scalar


class Transition(NamedTuple):
    """One step of an environment; `obs`, `action`, `next_obs` and `extras` may be any pytree.

    `terminated` means that the task ended, so targets do not bootstrap. `truncated` means that a time limit ended the
    episode, so targets bootstrap from `next_obs`. `next_obs` is the true successor, never the observation after an
    automatic reset.

    Example:
        >>> import jax.numpy as jnp
        >>> obs = {"camera": jnp.zeros((8, 8, 3), jnp.uint8), "speed": 0.5}
        >>> step = Transition(obs, action=1, reward=1.0, terminated=False, truncated=True, next_obs=obs)
        >>> step.reward, step.obs["speed"], step.extras
        (1.0, 0.5, ())
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

    Leaves are `[B, ...]` from `NStep` and `[B, L, ...]` from `Sequence`. `discount` is `gamma**k * (1 - terminated)`,
    where `k` is the number of steps that the target really uses. Entries whose `mask` is False carry no information.

    `Sequence` with `n > 1` also returns `k` as `num_steps`. A network with a memory needs it: the memory must have seen
    row `i + num_steps[:, i] - 1` before the network computes the value of `next_obs[:, i]`.
    """

    obs: PyTree  # leaves [B, ...] or [B, L, ...]
    action: PyTree  # leaves [B, ...] or [B, L, ...]
    reward: jax.Array  # float32[B] or [B, L]
    discount: jax.Array  # float32[B] or [B, L]
    next_obs: PyTree  # leaves [B, ...] or [B, L, ...]
    mask: jax.Array  # bool[B] or [B, L]
    extras: PyTree = ()
    num_steps: jax.Array | None = None  # int32[B, L], only from `Sequence` with `n > 1`


class Handle(NamedTuple):
    """Names stored rows. A handle is stale once its row was overwritten or removed; stale handles are ignored.

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

    Only starts that are followed by `fit` rows of their own episode are legal. `newest` and `oldest` are scalars in
    lock-step, and `[N]` with a cursor for each environment.
    """

    newest: jax.Array  # int32[] or [N]
    oldest: jax.Array  # int32[] or [N]
    stride: int = 1
    fit: int = 0  # how many rows of its own episode must follow a start
    is_narrowed: bool = False  # whether there may be legal starts that are too old for this window


class Draw(NamedTuple):
    """Drawn starts, and everything that a sampler needs to compute their weights.

    A `mass` of zero means that there was nothing to draw; its slot is then meaningless.
    """

    slots: jax.Array  # int32[B]
    mass: jax.Array  # float32[B], the unnormalized probability of each drawn start
    least: jax.Array  # float32[], the smallest mass of any start (inf when there is none)
    total: jax.Array  # float32[], the mass of all starts
    num_starts: jax.Array  # int32[]; float32[] if those of all devices are counted, which may be more than 2^31
    factor: Scalar = 1.0  # float32[] or [B], on the weights: it corrects a draw from a part of the starts


@runtime_checkable
class Sampler(Protocol):
    """Decides which starts are drawn.

    A sampler may also have what `NeedsEpisodes`, `NeedsEveryEnv` and `MarksRows` describe.
    """

    def init(self, storage_shape: tuple[int, int], platform: str | None = None) -> PyTree:
        """Return the state for a storage of shape `(T, N)`, laid out for a platform; `()` if the sampler has none."""
        ...

    def mark(self, state: PyTree, slots: jax.Array, legal: jax.Array, priorities: jax.Array | None = None) -> PyTree:
        """Record which slots are legal starts now.

        The buffer calls this when slots were written, and when slots became or ceased to be legal starts.

        Slots outside the storage are ignored. Priorities that are negative or not finite count as not given.
        """
        ...

    def draw(
        self, state: PyTree, storage: Ring, key: jax.Array, batch_size: int, window: Window, progress: Scalar
    ) -> Draw:
        """Draw `batch_size` starts inside `window`; consumes `key`. `progress` is that of `ReplayBuffer.sample`."""
        ...

    def measure(self, state: PyTree, storage: Ring, slots: jax.Array, window: Window, progress: Scalar) -> Draw:
        """Return the `Draw` of `slots[B]`, as if they had been drawn. A slot that cannot be drawn has mass zero."""
        ...

    def weights(self, draw: Draw) -> jax.Array:
        """Return the importance weights `float32[B]` of a draw."""
        ...

    def update(
        self, state: PyTree, slots: jax.Array, priorities: jax.Array, live: jax.Array, mask: jax.Array | None = None
    ) -> PyTree:
        """Set priorities `[B]`, or `[B, L]` with a mask, where `live` is True. This never turns a slot into a start.

        A sampler without a state returns `state` unchanged.
        """
        ...

    def reprioritize(self, state: PyTree, legal: jax.Array) -> PyTree:
        """Apply the present hyper-parameters to every stored priority. `legal[T * N]` is True for starts.

        A sampler without a state returns `state` unchanged.
        """
        ...

    def report_return(self, state: PyTree, mean_return: Scalar) -> PyTree:
        """Record how well the agent does. A sampler that does not adapt to it returns `state` unchanged."""
        ...


@runtime_checkable
class View(Protocol):
    """Turns drawn starts into a batch.

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
        """Whether the view uses its key. If not, no key is split for it. A split costs as much as a draw."""
        ...

    @property
    def fields(self) -> tuple[str, ...]:
        """The named fields that stored rows must have."""
        ...

    def __call__(self, reader: Reader, slots: jax.Array, key: jax.Array) -> PyTree:
        """Return the batch that begins at `slots`; consumes `key`."""
        ...
