"""Many batches in one `scan`: a given number of random batches, or epochs that use every start exactly once."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from jaxrl_buffers import starts
from jaxrl_buffers._checks import require_integer
from jaxrl_buffers._random.hashing import fold_in, split, unrolled
from jaxrl_buffers._random.integers import permute, round_keys
from jaxrl_buffers.replay import ReplayBuffer, ReplayState
from jaxrl_buffers.rollouts import RolloutBatch, flatten_rows, take_rows
from jaxrl_buffers.storage import ring
from jaxrl_buffers.types import Draw, PyTree, Sample

# step(carry, state, sample) -> (carry, state, output). It may change the buffer's state, such as its priorities.
Step = Callable[[PyTree, ReplayState, Sample], tuple[PyTree, ReplayState, PyTree]]


def scan_batches(
    step: Step,
    carry: PyTree,
    buffer: ReplayBuffer,
    state: ReplayState,
    key: jax.Array,
    *,
    batch_size: int,
    num_batches: int,
) -> tuple[PyTree, ReplayState, PyTree]:
    """Call `step` on `num_batches` samples in turn; consumes `key`.

    Batch `k` is drawn with `fold_in(key, k)` and `progress = k / num_batches`.

    Args:
        step: called as `step(carry, state, sample)`; returns the next carry, the next buffer state and an output.
        carry: the first carry, such as an agent's state.
        buffer: the buffer.
        state: its state.
        key: a PRNG key.
        batch_size: `B`, the samples of each batch.
        num_batches: how many batches to draw.

    Returns:
        The last carry, the last buffer state, and the outputs `[num_batches, ...]`.

    Example:
        >>> import jaxrl_buffers as jb
        >>> buffer = jb.uniform(8)
        >>> state = buffer.init(jb.Transition(0.0, 0, 0.0, False, False, 0.0))
        >>> chunk = jax.tree.map(jnp.ones_like, state.storage.data)
        >>> state = buffer.add(state, chunk)
        >>> step = lambda total, state, sample: (total + sample.batch.reward.sum(), state, ())
        >>> total, state, _ = scan_batches(step, 0.0, buffer, state, jax.random.key(0), batch_size=4, num_batches=3)
        >>> print(total)
        12.0
    """
    require_integer("scan_batches", "num_batches", num_batches, 1)

    def one_batch(carries: tuple[PyTree, ReplayState], index: jax.Array):
        carry, state = carries
        progress = index.astype(jnp.float32) / num_batches
        sample = buffer.sample(state, fold_in(key, index), batch_size, progress)
        carry, state, output = step(carry, state, sample)
        return (carry, state), output

    (carry, state), outputs = lax.scan(one_batch, (carry, state), jnp.arange(num_batches))
    return carry, state, outputs


def scan_epochs(
    step: Step,
    carry: PyTree,
    buffer: ReplayBuffer,
    state: ReplayState,
    key: jax.Array,
    *,
    batch_size: int,
    num_epochs: int = 1,
    num_batches: int | None = None,
) -> tuple[PyTree, ReplayState, PyTree]:
    """Call `step` on batches that go through all legal starts, in a new random order every epoch; consumes `key`.

    Every legal start of `state` is used exactly once in an epoch. The buffer's sampler is not used. The number of
    batches is static: after the last start, samples have mask False and weight 0. `step` must neither add nor remove
    rows.

    Args:
        step: called as `step(carry, state, sample)`; returns the next carry, the next buffer state and an output.
        carry: the first carry.
        buffer: the buffer.
        state: its state.
        key: a PRNG key.
        batch_size: `B`.
        num_epochs: how often to go through all starts.
        num_batches: how many batches an epoch has; by default enough for a full buffer.

    Returns:
        The last carry, the last buffer state, and the outputs `[num_epochs * num_batches, ...]`.

    Example:
        >>> import jaxrl_buffers as jb
        >>> buffer = jb.ReplayBuffer(view=jb.Sequence(1), length=6)  # samples are single rows
        >>> state = buffer.init(jnp.int32(0))
        >>> state = buffer.add(state, jnp.arange(6)[:, None])
        >>> step = lambda carry, state, sample: (carry, state, sample.batch[:, 0])
        >>> _, _, seen = scan_epochs(step, (), buffer, state, jax.random.key(0), batch_size=2)
        >>> seen.shape, sorted(seen.ravel().tolist())
        ((3, 2), [0, 1, 2, 3, 4, 5])
    """
    require_integer("scan_epochs", "batch_size", batch_size, 1)
    require_integer("scan_epochs", "num_epochs", num_epochs, 1)
    if num_batches is None:
        length, num_envs = ring.shape(state.storage)
        starts_per_env = -(-(length - buffer.view.lookahead - buffer.lookback) // buffer.view.stride)
        num_batches = -(-num_envs * starts_per_env // batch_size)
    require_integer("scan_epochs", "num_batches", num_batches, 1)
    window = buffer.window(state)
    count = starts.count(state.storage, window)

    def one_batch(carries: tuple[PyTree, ReplayState], index: jax.Array):
        carry, state = carries
        epoch, batch = index // num_batches, index % num_batches
        key_order = fold_in(fold_in(key, 0), epoch)
        key_view = fold_in(fold_in(key, 1), index)
        rank = batch * batch_size + jnp.arange(batch_size, dtype=jnp.int32)
        number = permute(round_keys(key_order, 1), rank, count)
        slots = starts.slot_of_number(state.storage, window, number)
        draw = Draw(slots, (rank < count).astype(jnp.float32), jnp.float32(1), count.astype(jnp.float32), count)
        carry, state, output = step(carry, state, buffer.assemble(state, draw, key_view))
        return (carry, state), output

    (carry, state), outputs = lax.scan(one_batch, (carry, state), jnp.arange(num_epochs * num_batches))
    return carry, state, outputs


def scan_minibatches(
    step: Callable[[PyTree, RolloutBatch], tuple[PyTree, PyTree]],
    carry: PyTree,
    batch: RolloutBatch,
    key: jax.Array,
    *,
    num_epochs: int,
    num_minibatches: int,
) -> tuple[PyTree, PyTree]:
    """Call `step(carry, minibatch)` on all minibatches of a rollout, shuffled again in every epoch; consumes `key`.

    Every row is used exactly once in an epoch. A minibatch has `ceil(K N / num_minibatches)` rows. If there are too few
    rows to fill all minibatches, the remaining entries have mask False.

    Args:
        step: returns the next carry and an output.
        carry: the first carry, such as an agent's state.
        batch: `[K, N, ...]`, from `Rollout.advantages` or `Rollout.batch`.
        key: a PRNG key.
        num_epochs: how often to go through all rows.
        num_minibatches: how many minibatches an epoch has.

    Returns:
        The last carry, and the outputs `[num_epochs * num_minibatches, ...]`.

    Example:
        >>> rows = jnp.arange(8.0).reshape(4, 2)  # of 2 environments
        >>> batch = RolloutBatch(rows, rows, advantage=rows, return_=rows, mask=rows >= 0, extras=())
        >>> step = lambda total, part: (total + part.advantage.sum(), part.mask.sum())
        >>> total, counts = scan_minibatches(step, 0.0, batch, jax.random.key(0), num_epochs=2, num_minibatches=4)
        >>> print(total, counts)
        56.0 [2 2 2 2 2 2 2 2]
    """
    flat = flatten_rows(batch)
    num_rows = flat.mask.shape[0]
    require_integer("scan_minibatches", "num_epochs", num_epochs, 1)
    require_integer("scan_minibatches", "num_minibatches", num_minibatches, 1)
    if num_minibatches > num_rows:
        raise ValueError(
            f"scan_minibatches() was asked for {num_minibatches} minibatches, but the rollout has {num_rows} rows; "
            "ask for fewer."
        )
    size = -(-num_rows // num_minibatches)

    def one_epoch(carry: PyTree, key: jax.Array):
        order = jax.random.permutation(unrolled(key), jnp.arange(num_rows, dtype=jnp.int32))
        order = jnp.pad(order, (0, num_minibatches * size - num_rows), constant_values=num_rows)
        parts = order.reshape(num_minibatches, size)
        return lax.scan(lambda carry, index: step(carry, take_rows(flat, index)), carry, parts)

    carry, outputs = lax.scan(one_epoch, carry, split(key, num_epochs))
    return carry, jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), outputs)
