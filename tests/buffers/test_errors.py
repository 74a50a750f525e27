"""Bad input: a clear error that says what and why, and the state untouched."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.helpers import EXAMPLE, number_buffer, scalars, stack, transition

import jaxrl_buffers as jb

CHUNK = stack([[transition(0), transition(1)]])


def with_reward(reward):
    return CHUNK._replace(reward=reward)


BAD_CHUNKS = {
    "structure": (tuple(CHUNK), r"structure PyTreeDef.*same structure as the example"),
    "missing field": (CHUNK._replace(extras=()), r"structure PyTreeDef"),
    "shape": (with_reward(np.zeros((1, 2, 1), np.float32)), r"float32\[1, 2, 1\] for leaf \.reward.*float32\[1, 2\]"),
    "broadcastable": (
        CHUNK._replace(obs=CHUNK.obs | {"x": np.zeros((1, 2, 1), np.float32)}),
        r"leaf \.obs\['x'\].*float32\[1, 2, 2\] is needed",
    ),
    "dtype": (with_reward(np.zeros((1, 2), np.int32)), r"int32\[1, 2\] for leaf \.reward.*each entry is float32\[\]"),
    "environments": (stack([[transition(0)] * 3]), r"axes are \[rows, environments"),
    "too many rows": (stack([[transition(0)] * 2] * 5), r"got 5 rows but the ring holds 4; raise `length`"),
    "no rows": (jax.tree.map(lambda leaf: leaf[:0], CHUNK), r"chunk of 0 rows"),
    "unbatched": (EXAMPLE, r"uint8\[2, 1\] for leaf \.obs\['image'\].*axes are \[rows, environments"),
}


def init_with(extras):
    return jb.uniform(4).init(EXAMPLE._replace(extras=extras))


@pytest.mark.parametrize("case", BAD_CHUNKS)
@pytest.mark.parametrize("jitted", [False, True])
def test_bad_chunks_are_refused_by_name(case, jitted):
    chunk, message = BAD_CHUNKS[case]
    buffer = jb.prioritized(4, 2)
    state = buffer.add(buffer.init(EXAMPLE), CHUNK) if case == "shape" and not jitted else buffer.init(EXAMPLE)
    before = jax.tree.map(np.array, state)
    add = jax.jit(buffer.add, donate_argnums=0) if jitted else buffer.add
    with pytest.raises(ValueError, match=message):
        add(state, chunk)
    chex.assert_trees_all_equal(jax.tree.map(np.array, state), before)


def test_partial_adds_are_checked():
    buffer, state = number_buffer(4, 3, lockstep=False)
    two = scalars([0], 2)
    for env_ids, message in [
        ([1, 1], r"\[1, 1\] names an environment twice"),
        ([0, 3], "must lie between 0 and 2"),
        ([-1, 0], "must lie between 0 and 2"),
        ([[0, 1]], "pass one axis of whole numbers"),
        ([0.0, 1.0], "pass one axis of whole numbers"),
        (np.zeros(0, np.int32), "names no environment"),
    ]:
        with pytest.raises(ValueError, match=message):
            buffer.add(state, two, env_ids=np.array(env_ids))
    with pytest.raises(ValueError, match=r"float32\[1, 2\] for leaf.*float32\[1, 1\] is needed"):
        buffer.add(state, two, env_ids=np.array([0]))
    with pytest.raises(ValueError, match="both `env_ids` and `mask`"):
        buffer.add(state, two, env_ids=np.array([0, 1]), mask=np.ones(2, bool))
    with pytest.raises(ValueError, match=r"`mask` of shape \(2,\); \(1, 3\) or \(3,\) is needed"):
        buffer.add(state, scalars([0], 3), mask=np.ones(2, bool))
    with pytest.raises(ValueError, match=r"`priorities` of shape \(3,\); \(1, 3\) is needed"):
        buffer.add(state, scalars([0], 3), priorities=np.ones(3))
    lockstep, state = number_buffer(4, 3)
    for arguments in ({"env_ids": np.array([0, 1])}, {"mask": np.ones(3, bool)}):
        with pytest.raises(ValueError, match="build it with `lockstep=False`"):
            lockstep.add(state, scalars([0], 3), **arguments)
    with pytest.raises(ValueError, match="build it with `lockstep=False`"):
        lockstep.clear(state, np.array([0]))


def test_unknown_environments_under_jit_are_ignored():
    buffer, state = number_buffer(4, 3, lockstep=False, sampler=jb.Prioritized())
    state = buffer.add(state, scalars([0], 3))
    add = jax.jit(buffer.add)
    new = add(state, scalars([1], 2), env_ids=jnp.array([-1, 3]))
    chex.assert_trees_all_equal(new, state)
    chex.assert_trees_all_equal(jax.jit(buffer.clear)(state, jnp.array([-1, 3])), state)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: jb.uniform(0), r"length=0\): `length` must be a whole number of at least 1"),
        (lambda: jb.uniform(4, 0), r"num_envs=0"),
        (lambda: jb.uniform(4.5), r"length=4\.5"),
        (lambda: jb.uniform(2**20, 2**12), "can be counted in 32 bits"),
        (lambda: jb.uniform(4, method="iid"), r"method='iid'\): .*'independent', 'stratified', 'distinct'"),
        (lambda: jb.prioritized(4, alpha=-0.1), r"alpha=-0\.1\): `alpha` must be a number of at least 0"),
        (lambda: jb.prioritized(4, beta=float("nan")), r"beta=nan"),
        (lambda: jb.Prioritized(weighting="max"), r"weighting='max'.*'buffer', 'batch', 'alf'"),
        (lambda: jb.n_step(4, n=0), r"n=0"),
        (lambda: jb.n_step(4, n=2, gamma=-1.0), r"gamma=-1\.0"),
        (lambda: jb.sequences(4, sequence_length=5), "spans 5 rows, more than the ring holds"),
        (lambda: jb.sequences(10, sequence_length=4, period=4), r"multiple of the view's period, 4.*12 would do"),
        (lambda: jb.sequences(3, sequence_length=2, period=4), r"multiple of the view's period, 4.*4 would do"),
        (
            lambda: jb.sequences(15, sequence_length=13, period=5),
            r"length=15\): the ring is too short.*needs 12 other rows.*one row in 5.* use length=20 or more",
        ),
        (lambda: jb.n_step(4, n=5), "spans 5 rows, more than the ring holds"),
        (lambda: jb.Prioritized(alpha="0.6"), r"alpha=0\.6\): `alpha` must be a number"),
        (lambda: jb.Prioritized(alpha=np.float32(-0.5)), r"alpha=-0\.5"),
        (lambda: jb.Prioritized(fan_out=1), r"fan_out=1\): `fan_out` must be a whole number of at least 2"),
        (lambda: jb.Prioritized(fan_out=512), r"at most 256"),
        (lambda: jb.Prioritized(eta=2.0), r"eta=2\.0.*at least 0 and at most 1"),
        (lambda: jb.ReplayBuffer(jb.NStep(), jb.Uniform(), length=4), "sampler and view swapped"),
        (lambda: jb.Sequence(3, burn_in=3), "leaves no step to learn from"),
        (lambda: jb.uniform(4).init(()), "holds no arrays"),
        (lambda: init_with({"name": "a"}), r"init\(\).*leaf \.extras\['name'\].*'a'.*numbers"),
        (lambda: init_with(np.array(["a"])), r"init\(\).*leaf \.extras.*numbers"),
        (lambda: init_with(object()), r"init\(\).*leaf \.extras.*numbers"),
        (lambda: jb.EpisodicReturns(reward_clip=(1, -1)), r"reward_clip=\(1, -1\).*\(least, most\)"),
        (lambda: jb.EpisodicReturns(reward_clip=(1, 2, 3)), r"reward_clip=\(1, 2, 3\).*\(least, most\)"),
        (lambda: jb.EpisodicReturns(reward_clip=2.0), r"reward_clip=2\.0.*\(least, most\)"),
        (lambda: jb.Combined(others=[jb.Episodic()], ratios=(0.5,)), r"Combined\(others=.*must be a tuple"),
        (lambda: jb.Combined(others=jb.Uniform(), ratios=(0.5,)), r"Combined\(others=.*must be a tuple"),
        (lambda: jb.Combined(others=(jb.Uniform(),), ratios=[0.5]), r"Combined\(ratios=.*must be a tuple"),
        (lambda: jb.Combined(others=(jb.Uniform(),), ratios=0.5), r"Combined\(ratios=.*must be a tuple"),
        (lambda: jb.Mixture([jb.uniform(4)]), r"Mixture\(buffers=.*must be a tuple"),
        (lambda: jb.Mixture(jb.uniform(4)), r"Mixture\(buffers=.*must be a tuple"),
        (lambda: jb.Mixture((jb.uniform(4),), [1]), r"Mixture\(ratios=.*must be a tuple"),
    ],
)
def test_bad_construction(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_bad_priorities_and_batches():
    buffer, state = number_buffer(4, sampler=jb.Prioritized())
    state = buffer.add(state, scalars([0]))
    handle = jb.Handle(jnp.zeros(3, jnp.int32), jnp.zeros(3, jnp.int32))
    with pytest.raises(ValueError, match=r"`priorities` of shape \(2,\); \(3,\)"):
        buffer.update_priorities(state, handle, jnp.ones(2))
    with pytest.raises(ValueError, match=r"`priorities` of shape \(3, 1, 1\)"):
        buffer.update_priorities(state, handle, jnp.ones((3, 1, 1)))
    with pytest.raises(ValueError, match=r"`mask` of shape \(3,\); \(3, 2\)"):
        buffer.update_priorities(state, handle, jnp.ones((3, 2)), jnp.ones(3, bool))
    with pytest.raises(ValueError, match=r"goes with priorities \[B, L\]"):
        buffer.update_priorities(state, handle, jnp.ones(3), jnp.ones(3, bool))
    with pytest.raises(ValueError, match=r"`handle\.position` of shape \(\)"):
        buffer.update_priorities(state, jb.Handle(0, 0), jnp.ones(1))
    with pytest.raises(ValueError, match="batch_size=0"):
        buffer.sample(state, jax.random.key(0), 0)


def test_unknown_parameters_are_refused_with_the_known_names():
    buffer = jb.prioritized(4, n=3)
    changed = jb.with_parameters(buffer, {"sampler.beta": 0.9, "view.gamma": 0.5})
    assert (changed.sampler.beta, changed.view.gamma) == (0.9, 0.5)
    assert (buffer.sampler.beta, buffer.view.gamma) == (0.4, 0.99)
    with pytest.raises(ValueError, match=r"no parameter 'sampler\.betta'; its parameters are: sampler\.alpha, sampler"):
        jb.with_parameters(buffer, {"sampler.betta": 1.0})
    with pytest.raises(ValueError, match="no parameter 'length'"):  # a shape, not a hyper-parameter
        jb.with_parameters(buffer, {"length": 8})
