"""Every agent with a memory, and what it makes of sequences."""

from __future__ import annotations

import functools

import chex
import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.agents import BOX, leaves, num_drawn

import jaxrl_buffers as jb
from algorithms import DDPG, DDQN, MPO, PPO, SAC, TD3, Discrete, Plan, Recurrent, Torso, environments
from algorithms.addons import AttractionKL, RepulsionKL, RewardPrediction, behavior
from algorithms.addons.behaviors import divergence
from algorithms.environments.masked import Masked
from algorithms.networks import QNetwork, apply_batch
from algorithms.networks.distributions import Categorical
from algorithms.networks.memories import History, RecurrentCore
from algorithms.runs.build import build
from algorithms.runs.settings import Settings
from algorithms.wrappers.recurrence import flatten
from jaxrl_buffers.rollouts import RolloutBatch

GRU = Torso((8,), memory="gru", memory_size=6)
LSTM = Torso((8,), memory="lstm", memory_size=6)
AGENTS = {
    "ddqn": DDQN(Discrete(3), GRU, dueling=True),
    "sac": SAC(BOX, LSTM),
    "sac_discrete": SAC(Discrete(3), GRU),
    "ddpg": DDPG(BOX, GRU, noise="ornstein_uhlenbeck"),
    "td3": TD3(BOX, GRU),
    "mpo": MPO(BOX, GRU, num_samples=5),
    "mpo_discrete": MPO(Discrete(3), LSTM),
    "ppo": PPO(BOX, GRU),
    "ppo_discrete": PPO(Discrete(3), LSTM),
}
names = pytest.mark.parametrize("name", AGENTS)
LENGTH = 5


def observations(key, num):
    """Draw observations, a pytree of two vectors."""
    one, two = jnp.split(jax.random.normal(key, (num, 5)), [2], axis=1)
    return {"one": one, "two": two}


def sequences(agent, key, num=3, length=LENGTH):
    """Draw sequences that could have come out of a buffer or rollout, with some rows that do not count."""
    keys = jax.random.split(key, 5)
    shape = (num, length)

    def rows(flat):
        return jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), flat)

    obs, next_obs = (rows(observations(k, num * length)) for k in keys[:2])
    action = rows(agent.action_space.sample(keys[2], num * length))
    reward, mask = jax.random.normal(keys[3], shape), jnp.arange(length)[None] < jnp.array([[length], [2], [3]])
    carry = agent.initial_carry(num)[1]
    if isinstance(agent.agent, PPO):
        spread = jax.tree.map(lambda leaf: jnp.repeat(leaf[:, None], length, axis=1), carry)
        spread["is_first"] = jnp.arange(length)[None] == jnp.zeros((num, 1), jnp.int32)
        extras = {"action": action, "log_prob": reward - 1, "carry": spread}
        batch = RolloutBatch(obs, action, reward, reward, mask, extras)
    else:
        batch = jb.Batch(obs, action, reward, jnp.full(shape, 0.9), next_obs, mask, {"carry": carry})
    handle = jb.Handle(jnp.zeros(num, jnp.int32), jnp.arange(num, dtype=jnp.int32))
    return jb.Sample(batch, handle, jnp.ones(num))


def update(agent, state, sample, key):
    grads, info = agent.gradients(state, sample, key)
    return agent.apply(state, grads), grads, info


@functools.cache
def initial(name):
    """Return an agent, and its states of two seeds."""
    agent = Recurrent(AGENTS[name])
    key_init, key_sample, key = jax.random.split(jax.random.key(0), 3)
    example = jax.tree.map(lambda leaf: leaf[0], observations(key, 1))
    init, action = jax.jit(agent.init), agent.action_space.sample(key, 1)[0]
    return agent, [init(key, example, action) for key in (key_init, key_sample)]


@functools.cache
def start(name):
    agent, (state, _) = initial(name)
    _, key_sample, key = jax.random.split(jax.random.key(0), 3)
    return agent, state, sequences(agent, key_sample), key, jax.jit(lambda *args: update(*args))


@names
def test_an_update_keeps_its_promises(name):
    agent, state, sample, key, jit_update = start(name)
    after, grads, info = jit_update(agent, state, sample, key)
    jit_update(agent, after, sample, key)
    assert jit_update._cache_size() == 1
    chex.assert_trees_all_equal_shapes_and_dtypes(state, after)
    assert not any(leaf.weak_type for leaf in jax.tree.leaves((state, after)))
    chex.assert_tree_all_finite((after, grads, info))
    chex.assert_shape(info.priorities, sample.batch.mask.shape)
    for before, now in zip(leaves(state.params), leaves(after.params), strict=True):
        assert np.any(before != now)

    # Rows that do not count teach nothing.
    mask = sample.batch.mask
    disturbed = sample.batch.reward if isinstance(sample.batch, jb.Batch) else sample.batch.advantage
    disturbed = np.where(mask, disturbed, np.float32(99))
    field = "reward" if isinstance(sample.batch, jb.Batch) else "advantage"
    other = sample._replace(batch=sample.batch._replace(**{field: disturbed}))
    chex.assert_trees_all_equal(jit_update(agent, state, other, key)[0], after)
    _, grads, _ = jit_update(agent, state, sample._replace(weights=jnp.zeros(3)), key)
    assert all(np.all(leaf == 0) for leaf in leaves(grads))


@pytest.mark.parametrize("name", ["ddqn", "sac"])
def test_all_hyper_parameters_are_vmapped_together(name):
    agent, state, sample, key, jit_update = start(name)
    parameters = {name: value for name, value in jb.parameters(agent).items() if value is not None}
    rates = {name: 0.0 for name in parameters if "learning_rate" in name}
    assert rates
    many = jb.with_parameters(agent, {name: jnp.array([rates.get(name, v), v]) for name, v in parameters.items()})
    axes = jax.tree.map(lambda _: 0, many)
    states = jax.jit(jax.vmap(lambda agent: update(agent, state, sample, key)[0], in_axes=(axes,)))(many)
    still, moved = (jax.tree.map(lambda leaf: leaf[index], jax.device_get(states)) for index in range(2))  # noqa: B023
    chex.assert_trees_all_equal(still.params, state.params)
    chex.assert_trees_all_close(moved, jit_update(agent, state, sample, key)[0], rtol=1e-3, atol=1e-5)


@names
def test_seeds_give_other_parameters(name):
    one, two = initial(name)[1]
    assert num_drawn(one.params, two.params) >= 4


@names
def test_acting_remembers_and_forgets(name):
    agent, state, *_ = start(name)
    obs = observations(jax.random.key(5), 4)
    act = jax.jit(type(agent).act, static_argnames="deterministic")
    fresh = agent.initial_carry(4)
    _, carry, extras = act(agent, state, obs, fresh, jax.random.key(0), deterministic=True)
    chex.assert_trees_all_equal_shapes_and_dtypes(carry, fresh)
    chex.assert_trees_all_equal(extras["carry"], fresh[1])
    for role, memory in carry[1].items():
        assert jnp.any(memory != fresh[1][role])
    assert not jnp.any(carry[1]["is_first"])


def test_add_ons_see_the_rows_of_sequences():
    """A function and an agent without memory are behaviors for one that has a memory; only rows that count do."""
    teacher, known = SAC(Discrete(3), Torso((8,))), lambda obs: Categorical(jax.nn.log_softmax(obs["two"]))
    _, _, sample, key, _ = start("ddqn")
    example = jax.tree.map(lambda leaf: leaf[0, 0], (sample.batch.obs, sample.batch.action))
    taught = behavior(teacher, jax.jit(teacher.init)(key, *example))
    addons = AttractionKL((behavior(known),)), RepulsionKL((taught,)), RewardPrediction()
    agent = Recurrent(AGENTS["ddqn"].replace(addons=addons))

    @jax.jit
    def run():
        state = agent.init(key, *example)
        grads, info = agent.gradients(state, sample, key)
        policy = agent.agent.distribution(state, flatten(sample).batch.obs)
        rows = jax.tree.map(lambda leaf: leaf.reshape(-1, leaf.shape[-1]), sample.batch.obs)
        return (
            agent.apply(state, grads),
            info.metrics,
            [divergence(known, policy, rows), divergence(taught, policy, rows)],
        )

    after, metrics, expected = run()
    counts = sample.batch.mask.reshape(-1)
    for index, each in enumerate(expected):
        np.testing.assert_allclose(metrics[f"addon{index}_kl"], each[counts].mean(), rtol=1e-5)
        assert each[counts].std() > 0
    chex.assert_tree_all_finite((after, metrics))
    with pytest.raises(ValueError, match=r"memory.*memory=None"):
        behavior(agent.agent, after)
    with pytest.raises(ValueError, match=r"behavior\(Recurrent.*memory=None"):
        behavior(agent, after)


def test_stored_sequences_are_valued_as_they_were_met(key):
    """What the values were while acting is what learning sees, from carries stored at any row."""
    agent = Recurrent(DDQN(Discrete(2), GRU))
    state = jax.jit(agent.init)(key, jnp.zeros(4), jnp.int32(0))
    obs = jax.random.normal(key, (12, 2, 4))

    def step(carry, obs):
        memory = {"critic": carry[1]["critic"]}
        q = apply_batch(
            QNetwork(2, GRU), state.params.critic, History(obs[:, None], memory, carry[1]["is_first"][:, None])
        )
        action, carry, extras = agent.act(state, obs, carry, key)
        flags = jnp.zeros(2, bool)
        return carry, jb.Transition(obs, action, q[:, 0], flags, flags, obs, extras)

    _, chunk = jax.lax.scan(step, agent.initial_carry(2), obs)
    buffer = jb.sequences(12, num_envs=2, sequence_length=LENGTH)
    example = jax.tree.map(lambda leaf: leaf[0, 0], chunk)
    sample = buffer.sample(buffer.add(buffer.init(example), chunk), key, 16)
    q = apply_batch(QNetwork(2, GRU), state.params.critic, flatten(sample).batch.obs)
    np.testing.assert_allclose(q[:, 0], sample.batch.reward.reshape(-1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("torso", [GRU, LSTM])
def test_the_burn_in_only_refreshes_the_memory(key, torso):
    """Gradients are those of the later rows, begun with the refreshed memory: none goes back through the burn-in."""
    agent, num_rows = Recurrent(DDQN(Discrete(3), torso)), 2
    sample = sequences(agent, key)
    mask = jnp.broadcast_to(jnp.arange(LENGTH)[None] >= num_rows, sample.batch.mask.shape)
    sample = sample._replace(batch=sample.batch._replace(mask=mask))

    @jax.jit
    def run():
        state = agent.init(key, *jax.tree.map(lambda leaf: leaf[0, 0], (sample.batch.obs, sample.batch.action)))
        whole = agent.gradients(state, sample, key)
        history = flatten(sample).batch.obs
        first = jax.tree.map(lambda leaf: leaf[:, :num_rows], history._replace(carry=None))
        memory = agent._remember(state, first._replace(carry=history.carry), "critic", ())
        later = jax.tree.map(lambda leaf: leaf[:, num_rows:], sample.batch._replace(extras=()))
        later = later._replace(extras={"carry": {"critic": memory, "is_first": jnp.zeros(3, bool)}})
        part = agent.gradients(state, sample._replace(batch=later), key)

        def values(obs):
            counts = flatten(sample).weights > 0
            return jnp.sum(
                jnp.where(counts, agent.agent.distribution(state, history._replace(obs=obs)).log_probs[:, 0], 0)
            )

        return whole, part, jax.grad(values)(sample.batch.obs)

    (grads, info), (expected, told), slopes = run()
    chex.assert_trees_all_close(grads, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(info.priorities[:, num_rows:], told.priorities, rtol=1e-5, atol=1e-6)
    for slope in jax.tree.leaves(slopes):
        assert jnp.all(slope[:, :num_rows] == 0)
        assert jnp.all(slope[:, num_rows:] != 0)


@pytest.mark.parametrize("torso", [GRU, LSTM])
def test_targets_of_several_steps_see_the_memory_of_the_row_they_end_with(key, torso):
    """Against a network that goes through the rows one by one."""
    length, last = 5, [2, 3, 3, 3, 4]
    network = QNetwork(3, torso)
    obs, next_obs = (observations(k, length) for k in jax.random.split(key))
    is_first = jnp.zeros(length, bool)
    ends = jax.tree.map(lambda leaf: leaf[np.array(last)], next_obs)
    carry = RecurrentCore(torso.memory, torso.memory_size).carry
    params = network.init(key, History(obs, carry, is_first))
    found = network.apply(params, History(obs, carry, is_first, ends, jnp.array(last)))
    for i, row in enumerate(last):
        seen = jax.tree.map(
            lambda rows, following, row=row: jnp.concatenate([rows[: row + 1], following[row : row + 1]]), obs, next_obs
        )
        expected = network.apply(params, History(seen, carry, jnp.zeros(row + 2, bool)))[-1]
        np.testing.assert_allclose(found[i], expected, rtol=1e-5, atol=1e-6)


def test_an_agent_without_memory_is_refused():
    with pytest.raises(ValueError, match=r"DDQN.*no memory.*Torso\(memory='gru'\)"):
        Recurrent(DDQN(Discrete(2)))
    with pytest.raises(ValueError, match="kind"):
        RecurrentCore("rnn")


def test_settings_build_recurrent_agents():
    plan = Plan(2_000, start_steps=1_000)
    settings = Settings("sac", "MaskedPendulum-v1", plan, memory="lstm", memory_size=8, sequence_length=10, burn_in=3)
    agent, buffer, env, _ = build(settings)
    assert isinstance(agent, Recurrent)
    assert (agent.agent.torso.memory, agent.agent.torso.memory_size) == ("lstm", 8)
    assert buffer.view == jb.Sequence(10, burn_in=3)
    assert env.obs.shape == (2,)
    assert agent.n_step == 1
    with pytest.raises(ValueError, match="memory='rnn'"):
        build(Settings("sac", "MaskedPendulum-v1", plan, memory="rnn"))


def test_masked_environments_show_a_part_of_the_same(key):
    masked, whole = environments.make("MaskedCartPole-v1"), environments.make("CartPole-v1")
    one, two = masked.reset(key, 3), whole.reset(key, 3)
    for step in range(30):
        action = jnp.full(3, step % 3 > 0, jnp.int32)
        one, seen, ended = masked.step(one, action, jax.random.key(step))
        two, all_of_it, as_well = whole.step(two, action, jax.random.key(step))
        np.testing.assert_array_equal(seen.next_obs, all_of_it.next_obs[:, [0, 2]])
        np.testing.assert_array_equal(seen.terminated, all_of_it.terminated)
        chex.assert_trees_all_equal(ended, as_well)
    assert masked.max_episode_length == whole.max_episode_length
    with pytest.raises(ValueError, match=r"kept=\(0, 4\).*shape \(4,\)"):
        Masked(gymnax.make("CartPole-v1")[0], kept=(0, 4))
