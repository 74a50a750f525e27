"""The data that crosses the borders between parts, and the protocols of the parts.

Words, used the same way everywhere:

* a **row** is a time index `t` of the ring; a **slot** is `(t, n)`, held as a flat index in which the rows of any
  range of time lie side by side: `t * N + n` in lock-step, `n * T + t` with per-environment cursors;
* a **start** is a slot from which a sample may begin; a **sample** is what the learner gets;
* a **position** counts the rows ever written to an environment (modulo a large multiple of the ring's length, so that
  it never overflows): `row = position mod T`;
* the **age** of a row counts the rows written after it: the newest row has age 0.

Axis letters: `T` rows, `N` environments, `K` rows of a chunk, `B` samples, `L` steps of a sequence, `A` actions,
`S` seeds, `D` devices.

Parts of one's own
------------------

A sampler or a view is a frozen dataclass that is a pytree and has the methods of the protocols below. It works with
every part there is, under `jit`, `vmap` and `scan`. What such parts are built from:

* `jaxrl_buffers.starts`: the legal starts of a window, counted and numbered, newest first;
* `jaxrl_buffers.storage.ring`: arithmetic on rows, ages, positions and slots; `storage.episodes`: where episodes end;
* `jaxrl_buffers.samplers.Stateless` and `Wrapping`: all that samplers without a state, or around others, have alike;
* `Reader`, through which a view reads rows, whatever they lie in.

A sampler says of each start that it draws how likely it was, as a `mass` of some `total`. A mass of 0 says that nothing
was drawn; the sample then has mask False and weight 0. This sampler draws from every fourth environment only, so that a
critic can be judged by data which it is not trained on:

>>> import jax, jax.numpy as jnp, jaxrl_buffers as jb
>>> from jaxrl_buffers import starts
>>> from jaxrl_buffers.storage import ring
>>> class HeldOut(jb.samplers.Stateless):
...     every: jb.Scalar = 4
...
...     def draw(self, state, storage, key, batch_size, window, progress=0.0):
...         counts = self.counts(storage, window)
...         number = jax.random.randint(key, (batch_size,), 0, jnp.maximum(jnp.sum(counts), 1))
...         slots = starts.slot_in_env(storage, window, *starts.number_by_env(counts, number))
...         return self.measure(state, storage, slots, window)
...
...     def measure(self, state, storage, slots, window, progress=0.0):
...         _, env = ring.unravel(storage, slots)
...         mass = starts.is_legal_slot(storage, window, slots) & (env % self.every == 0)
...         count = jnp.sum(self.counts(storage, window))
...         least = jnp.where(count > 0, 1.0, jnp.inf)
...         return jb.Draw(slots, mass.astype(jnp.float32), least, count.astype(jnp.float32), count)
...
...     def counts(self, storage, window):
...         counts = starts.count_of_every_env(storage, window)
...         return jnp.where(jnp.arange(counts.size) % self.every == 0, counts, 0)

A view says which rows around a start it needs, and makes a batch of them. If that is a `Batch`, its mask is joined with
what the sampler found; where it is False the weight is 0. This one gives the return of the rest of an episode, if the
episode terminates within `horizon` rows. Fields that shape the program are static: `pytree_node=False`.

>>> from flax import struct
>>> class Outcome(struct.PyTreeNode):
...     horizon: int = struct.field(pytree_node=False, default=100)
...     gamma: jb.Scalar = 0.99
...
...     lookahead, lookback, stride, needs_episodes, is_random = 0, 0, 1, False, False
...     span = property(lambda self: self.horizon)
...     fields = ("obs", "action", "reward", "terminated", "truncated", "next_obs")
...
...     def __call__(self, reader, slots, key):
...         row, env = reader.locate(slots)
...         offset = jnp.arange(self.horizon)[None]
...         rows = reader.later(row[:, None], offset)
...         steps = reader.read(rows, jnp.broadcast_to(env[:, None], rows.shape))
...         ended = steps.terminated | steps.truncated
...         has_ended = jnp.cumsum(ended, axis=1) - ended > 0
...         used = (offset <= reader.age(row, env)[:, None]) & ~has_ended
...         reward = jnp.sum(jnp.where(used, steps.reward * self.gamma**offset, 0), axis=1)
...         mask = jnp.any(used & steps.terminated, axis=1) & reader.is_complete(row, env)
...         obs, action, next_obs = jax.tree.map(lambda leaf: leaf[:, 0], (steps.obs, steps.action, steps.next_obs))
...         return jb.Batch(obs, action, reward, jnp.zeros_like(reward), next_obs, mask)

Both in one buffer, with five steps of each of eight environments, in which the third terminates an episode:

>>> buffer = jb.ReplayBuffer(HeldOut(), Outcome(horizon=3, gamma=0.5), length=5, num_envs=8)
>>> time, env = jnp.meshgrid(jnp.arange(5), jnp.arange(8), indexing="ij")
>>> never = jnp.zeros((5, 8), bool)
>>> chunk = jb.Transition(time, env, jnp.ones((5, 8)), time == 2, never, time + 1)
>>> state = buffer.add(buffer.init(jax.tree.map(lambda leaf: leaf[0, 0], chunk)), chunk)
>>> sample = jax.jit(jb.ReplayBuffer.sample, static_argnames="batch_size")
>>> drawn = sample(buffer, state, jax.random.key(0), batch_size=6)
>>> print(drawn.handle.env, drawn.batch.obs)
[4 0 0 0 0 4] [0 4 2 1 3 2]
>>> print(drawn.batch.reward, drawn.weights)
[1.75 1.   1.   1.5  1.5  1.  ] [1. 0. 1. 1. 0. 1.]
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

    obs: PyTree
    action: PyTree
    reward: Any  # a number, or a vector of them
    terminated: Any  # a bool
    truncated: Any  # a bool
    next_obs: PyTree
    extras: PyTree = ()


class Batch(NamedTuple):
    """What a learner trains on: `target = reward + discount * V(next_obs)`.

    `[B, ...]` from `NStep`, `[B, L, ...]` from `Sequence`. `discount` is `gamma**k * (1 - terminated)` for the `k`
    steps really used. Entries whose `mask` is False carry no information.

    `Sequence(n=3)` also says how many steps those are, as `num_steps`: a network with a memory must have seen row
    `i + num_steps[:, i] - 1` when it values `next_obs[:, i]`.
    """

    obs: PyTree
    action: PyTree
    reward: jax.Array  # float32[B] or [B, L]
    discount: jax.Array  # float32[B] or [B, L]
    next_obs: PyTree
    mask: jax.Array  # bool[B] or [B, L]
    extras: PyTree = ()
    num_steps: jax.Array | None = None  # int32[B, L], only from `Sequence` with `n > 1`


class Handle(NamedTuple):
    """Names stored rows: a handle whose row was overwritten or cleared is recognized and ignored.

    Positions repeat after about 10^9 rows; until then an old handle cannot be mistaken for a new one.
    """

    env: jax.Array  # int32[B]
    position: jax.Array  # int32[B]


class Sample(NamedTuple):
    """What every buffer's `sample` returns."""

    batch: PyTree  # Batch, or the raw rows [B, L, ...] of something other than transitions
    handle: PyTree  # Handle, or MixtureHandle
    weights: jax.Array  # float32[B]; ones unless priorities bias the draw, zero where there was nothing to draw


class Window(NamedTuple):
    """The legal starts by age: `newest, newest + stride, ...` below `oldest`, as far as they fit into their episodes.

    Scalars in lock-step, `[N]` with per-environment cursors.
    """

    newest: jax.Array  # int32[] or [N]
    oldest: jax.Array  # int32[] or [N]
    stride: int = 1
    fit: int = 0  # how many rows of its own episode must follow a start
    is_narrowed: bool = False  # older legal starts may exist outside


class Draw(NamedTuple):
    """Drawn starts with what is needed to form weights for any sampler, mixture or shard.

    A `mass` of zero says that there was nothing to draw; its slot is then meaningless.
    """

    slots: jax.Array  # int32[B]
    mass: jax.Array  # float32[B], the unnormalized probability of each drawn start
    least: jax.Array  # float32[], the smallest mass of any start (inf when there is none)
    total: jax.Array  # float32[], the mass of all starts
    num_starts: jax.Array  # int32[]


@runtime_checkable
class Sampler(Protocol):
    """Decides which starts are drawn.

    One that asks the episode index, `storage.episodes`, says so by `needs_episodes = True`.
    """

    def init(self, storage_shape: tuple[int, int], platform: str | None = None) -> PyTree:
        """Return the state for a storage of shape `(T, N)`, laid out for a platform; `()` if there is none."""
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
        """Return what `draw` would tell of `slots[B]`, with a mass of zero for those that it cannot draw."""
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
        """Apply the present hyper-parameters to every stored priority; `legal[T * N]` are starts, and no others.

        Identity if stateless.
        """
        ...

    def observe(self, state: PyTree, mean_return: Scalar) -> PyTree:
        """Take note of how well the agent does. Identity if that changes nothing."""
        ...


@runtime_checkable
class MarksRows(Protocol):
    """What a sampler may have besides: a faster `mark` of rows that were written together in lock-step."""

    def mark_rows(
        self,
        state: PyTree,
        begin: jax.Array,
        slots: jax.Array,
        legal: jax.Array,
        priorities: jax.Array | None = None,
    ) -> PyTree:
        """Take note of slots `[K, N]` as `mark` does; those inside the storage are `begin, begin + 1, ...` in order.

        Behind the last slot of the storage they go on at slot 0, but not within a row.
        """
        ...


@runtime_checkable
class View(Protocol):
    """Decides what drawn starts mean.

    One whose samples must lie in one episode says so by `within_episode = True`; then it also asks the episode index.
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
        """Whether the view asks the episode index."""
        ...

    @property
    def is_random(self) -> bool:
        """Whether the view uses its key; splitting one for nothing would cost as much as a draw."""
        ...

    @property
    def fields(self) -> tuple[str, ...]:
        """The named fields that stored rows must have."""
        ...

    def __call__(self, reader: Reader, slots: jax.Array, key: jax.Array) -> PyTree:
        """Return the batch that begins at `slots`; consumes `key`."""
        ...
