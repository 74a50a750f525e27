"""Check what README.md and docs/why.md say about libraries that are installed: `python scripts/check_peers.py`.

Every line is a statement and what was seen. flashbax comes with `pip install 'jaxrl-buffers[peers]'`, Brax with
`pip install 'jaxrl-buffers[brax]'`.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import jaxrl_buffers as jb

STEP = jb.Transition(jnp.int32(0), 0, 0.0, False, False, jnp.int32(0))


def stale_updates() -> str:
    """Sample, overwrite rows, then update the priorities of what was sampled."""
    import flashbax as fbx

    options = {"add_batch_size": 1, "sample_batch_size": 64, "sample_sequence_length": 4, "period": 1}
    theirs = fbx.make_prioritised_trajectory_buffer(
        **options, min_length_time_axis=4, max_length_time_axis=16, priority_exponent=1.0
    )
    ours = jb.ReplayBuffer(jb.Prioritized(alpha=1.0), jb.Sequence(4), length=16)
    state, our_state = theirs.init(jnp.int32(0)), ours.init(jnp.int32(0))
    for time in range(16):
        row = jnp.full((1, 1), time)
        state, our_state = theirs.add(state, row), ours.add(our_state, row)
    drawn, sample = theirs.sample(state, jax.random.key(0)), ours.sample(our_state, jax.random.key(0), 64)
    for time in range(16, 19):
        row = jnp.full((1, 1), time)
        state, our_state = theirs.add(state, row), ours.add(our_state, row)
    state = theirs.set_priorities(state, drawn.indices, jnp.ones(64))
    our_state = ours.update_priorities(our_state, sample.handle, jnp.ones(64))
    rows = theirs.sample(state, jax.random.key(1)).experience, ours.sample(our_state, jax.random.key(1), 64).batch
    broken, our_broken = (int(np.any(np.diff(np.asarray(one), axis=1) != 1, axis=1).sum()) for one in rows)
    return f"of 64 sequences, {broken} join rows that do not follow each other; here {our_broken}"


def bad_priorities() -> str:
    """Set a priority to NaN, then to 1 again."""
    import flashbax as fbx

    theirs = fbx.make_prioritised_item_buffer(
        max_length=16, min_length=1, sample_batch_size=8, add_batches=True, priority_exponent=1.0
    )
    state = theirs.add(theirs.init(jnp.int32(0)), jnp.arange(16))
    for priority in (jnp.nan, 1.0):
        state = theirs.set_priorities(state, jnp.array([3]), jnp.array([priority]))
    drawn = theirs.sample(state, jax.random.key(0))
    ours = jb.prioritized(16)
    our_state = ours.add(ours.init(STEP), jax.tree.map(lambda leaf: jnp.full((16, 1), leaf), STEP))
    for priority in (jnp.nan, 1.0):
        handle = jb.Handle(jnp.array([0]), jnp.array([3]))
        our_state = ours.update_priorities(our_state, handle, jnp.array([priority]))
    theirs_are, ours_are = drawn.probabilities, ours.sample(our_state, jax.random.key(0), 8).weights
    return f"probabilities are {np.unique(theirs_are)} for ever; here weights are {np.unique(ours_are)}"


def exact_leaves() -> str:
    """Set sixteen priorities to 1e6, then to 1e-3, and look at their sum."""
    import flashbax as fbx

    theirs = fbx.make_prioritised_item_buffer(
        max_length=16, min_length=1, sample_batch_size=8, add_batches=True, priority_exponent=1.0
    )
    state = theirs.add(theirs.init(jnp.int32(0)), jnp.arange(16))
    tree = jb.segment_tree.init(16)
    for priority in (1e6, 1e-3):
        state = theirs.set_priorities(state, jnp.arange(16), jnp.full(16, priority))
        tree = jb.segment_tree.write(tree, jnp.arange(16), jnp.full(16, priority))
    total = float(jb.segment_tree.reduce(tree).total)
    return f"the sum is {float(state.sum_tree_state.nodes[0])}; here {total:.3f}"


def dtypes() -> str:
    """Store bytes and numbers together."""
    from brax.training import replay_buffers

    row = {"image": jnp.zeros(4, jnp.uint8), "reward": jnp.float32(0)}
    theirs = replay_buffers.UniformSamplingQueue(8, row, 2).init(jax.random.PRNGKey(0))
    ours = jb.ReplayBuffer(view=jb.Sequence(1), length=8)
    batch = ours.sample(ours.init(row), jax.random.key(0), 2).batch
    return f"bytes are stored as {theirs.data.dtype}; here they come back as {batch['image'].dtype}"


def bytes_of_frames() -> str:
    """Store stacked images of shape (84, 84, 4) whole, and with `Frames`."""
    obs = jnp.zeros((84, 84, 4), jnp.uint8)
    row = jb.Transition(obs, 0, 0.0, False, False, obs)
    sizes: list[int] = []
    for frames in (None, jb.Frames(stack=4)):
        state = jax.eval_shape(jb.prioritized(10_000, n=3, frames=frames).init, row)
        sizes.append(sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state.storage)))
    return f"{sizes[1] / sizes[0]:.2f} of the bytes"


STATEMENTS: dict[str, list[Callable[[], str]]] = {
    "flashbax": [stale_updates, bad_priorities, exact_leaves],
    "brax": [dtypes],
    "jaxrl_buffers": [bytes_of_frames],
}


if __name__ == "__main__":
    for library, checks in STATEMENTS.items():
        if importlib.util.find_spec(library) is None:
            print(f"{library}: not installed")
            continue
        for check in checks:
            print(f"{library} {importlib.metadata.version(library)}: {check.__doc__} -> {check()}")
