"""Networks that remember: cores, histories, and every agent with a memory."""

from __future__ import annotations

import functools

import chex
import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agents import BOX
from flax import linen as nn
from flax import struct
from gymnax.environments import environment, spaces

import jaxrl_buffers as jb
from algorithms import DDPG, DDQN, MPO, PPO, SAC, TD3, Discrete, Plan, Recurrent, Torso, environments, train
from algorithms.addons import AttractionKL, RepulsionKL, RewardPrediction, behavior
from algorithms.addons.behaviors import divergence
from algorithms.distributions import Categorical
from algorithms.masked_environments import Masked
from algorithms.memory import History, Memory
from algorithms.networks import QNetwork, apply_batch
from algorithms.recurrence import flatten, sum_steps
from algorithms.settings import Settings
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


def history(key, length=LENGTH, carry=None):
    return History(jax.random.normal(key, (length, 4)), carry, jnp.zeros(length, bool))


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_cores_are_those_of_flax(key, kind):
    key_init, key_inputs, key_params = jax.random.split(key, 3)
    inputs = jax.random.normal(key_inputs, (7, 4))
    core = Memory(kind, 3)
    params = core.init(key_init, inputs, None, jnp.zeros(7, bool))
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(key_params, len(leaves))
    params = structure.unflatten([jax.random.normal(k, leaf.shape) for k, leaf in zip(keys, leaves, strict=True)])
    last, outputs = core.apply(params, inputs, None, jnp.zeros(7, bool))

    ours = params["params"]
    gates = list("rzn") if kind == "gru" else list("ifgo")
    parts = {
        name: jnp.split(leaf, len(gates), axis=-1)
        for name, leaf in (
            ("kernel", ours["Dense_0"]["kernel"]),
            ("bias", ours["Dense_0"]["bias"]),
            ("recurrent", ours["recurrent_kernel"]),
            ("recurrent_bias", ours["recurrent_bias"]),
        )
    }
    theirs = {}
    for index, gate in enumerate(gates):
        if kind == "gru":
            bias = parts["bias"][index] + (parts["recurrent_bias"][index] if gate in "rz" else 0)
            theirs[f"i{gate}"] = {"kernel": parts["kernel"][index], "bias": bias}
            theirs[f"h{gate}"] = {"kernel": parts["recurrent"][index]}
        else:
            theirs[f"i{gate}"] = {"kernel": parts["kernel"][index]}
            bias = parts["bias"][index] + parts["recurrent_bias"][index]
            bias = bias + (1 if gate == "f" else 0)  # our forget gates begin open
            theirs[f"h{gate}"] = {"kernel": parts["recurrent"][index], "bias": bias}
    if kind == "gru":
        theirs["hn"]["bias"] = parts["recurrent_bias"][2]
    cell = nn.GRUCell(3) if kind == "gru" else nn.LSTMCell(3)
    carry = cell.initialize_carry(key, (4,))
    expected = []
    for row in inputs:
        carry, output = cell.apply({"params": theirs}, carry, row)
        expected.append(output)
    np.testing.assert_allclose(outputs, jnp.stack(expected), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(last, carry if kind == "gru" else jnp.stack(carry), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("torso", [GRU, LSTM])
def test_a_history_is_its_rows_one_after_the_other(key, torso):
    rows = history(key)
    params = torso.init(key, rows)
    whole = torso.apply(params, rows)
    carry, parts = None, []
    encoder = {"params": params["params"]["encoder"]}
    for index in range(LENGTH):
        part = History(rows.obs[index : index + 1], carry, rows.is_first[:1])
        parts.append(torso.apply(params, part)[0])
        carry = torso.encoder.apply(encoder, part)[1]
    np.testing.assert_allclose(whole, jnp.stack(parts), rtol=1e-5, atol=1e-6)
    assert jnp.any(whole[1:] != torso.apply(params, rows._replace(obs=rows.obs.at[0].add(1.0)))[1:])  # it remembers


def test_nothing_is_remembered_behind_the_first_row_of_an_episode(key):
    rows = history(key)._replace(is_first=jnp.arange(LENGTH) == 2)
    params = GRU.init(key, rows)
    fresh = GRU.apply(params, History(rows.obs[2:], None, jnp.zeros(LENGTH - 2, bool)))
    np.testing.assert_allclose(GRU.apply(params, rows)[2:], fresh, rtol=1e-5, atol=1e-6)


def test_successors_are_seen_with_the_memory_of_their_rows(key):
    rows = history(key)
    params = GRU.init(key, rows)
    following = jnp.concatenate([rows.obs[1:], jnp.ones((1, 4))])
    successors = GRU.apply(params, rows._replace(following=following))
    np.testing.assert_allclose(successors[:-1], GRU.apply(params, rows)[1:], rtol=1e-5, atol=1e-6)
    # A final observation that is not the next row's changes its own answer only.
    other = GRU.apply(params, rows._replace(following=following.at[1].add(1.0)))
    changed = jnp.any(other != successors, axis=1)
    np.testing.assert_array_equal(changed, jnp.arange(LENGTH) == 1)


def test_a_network_without_memory_takes_histories_row_by_row(key):
    rows, torso = history(key), Torso((8,))
    params = torso.init(key, rows.obs[0])
    expected = jax.vmap(torso.apply, in_axes=(None, 0))(params, rows.obs)
    np.testing.assert_allclose(torso.apply(params, rows), expected, rtol=1e-6)
    np.testing.assert_allclose(torso.apply(params, rows._replace(following=rows.obs)), expected, rtol=1e-6)


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
    grads, info = agent.gradients(state, sample, key, 0)
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
    for before, now in zip(jax.tree.leaves(state.params), jax.tree.leaves(after.params), strict=True):
        assert jnp.any(before != now)

    # Rows that do not count teach nothing.
    mask = sample.batch.mask
    disturbed = sample.batch.reward if isinstance(sample.batch, jb.Batch) else sample.batch.advantage
    disturbed = jnp.where(mask, disturbed, 99.0)
    field = "reward" if isinstance(sample.batch, jb.Batch) else "advantage"
    other = sample._replace(batch=sample.batch._replace(**{field: disturbed}))
    chex.assert_trees_all_equal(jit_update(agent, state, other, key)[0], after)
    _, grads, _ = jit_update(agent, state, sample._replace(weights=jnp.zeros(3)), key)
    assert all(jnp.all(leaf == 0) for leaf in jax.tree.leaves(grads))


@pytest.mark.parametrize("name", ["ddqn", "sac"])
def test_all_hyper_parameters_are_vmapped_together(name):
    agent, state, sample, key, jit_update = start(name)
    leaves = {name: value for name, value in jb.parameters(agent).items() if value is not None}
    rates = {name: 0.0 for name in leaves if "learning_rate" in name}
    assert rates
    many = jb.with_parameters(agent, {name: jnp.array([rates.get(name, v), v]) for name, v in leaves.items()})
    axes = jax.tree.map(lambda _: 0, many)
    states = jax.jit(jax.vmap(lambda agent: update(agent, state, sample, key)[0], in_axes=(axes,)))(many)
    still, moved = (jax.tree.map(lambda leaf: leaf[index], states) for index in range(2))  # noqa: B023
    chex.assert_trees_all_equal(still.params, state.params)
    chex.assert_trees_all_close(moved, jit_update(agent, state, sample, key)[0], rtol=1e-3, atol=1e-5)


@names
def test_seeds_give_other_parameters(name):
    one, two = initial(name)[1]
    pairs = zip(jax.tree.leaves_with_path(one.params), jax.tree.leaves(two.params), strict=True)
    drawn = [(a, b) for (path, a), b in pairs if "kernel" in jax.tree_util.keystr(path)]
    assert len(drawn) >= 4
    assert all(jnp.any(a != b) for a, b in drawn)


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
    """A function and an agent without memory are behaviours for one that has a memory; only rows that count do."""
    teacher, known = SAC(Discrete(3), Torso((8,))), lambda obs: Categorical(jax.nn.log_softmax(obs["two"]))
    _, _, sample, key, _ = start("ddqn")
    example = jax.tree.map(lambda leaf: leaf[0, 0], (sample.batch.obs, sample.batch.action))
    taught = behavior(teacher, jax.jit(teacher.init)(key, *example))
    addons = AttractionKL((behavior(known),)), RepulsionKL((taught,)), RewardPrediction()
    agent = Recurrent(AGENTS["ddqn"].replace(addons=addons))

    @jax.jit
    def run():
        state = agent.init(key, *example)
        grads, info = agent.gradients(state, sample, key, 0)
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
        whole = agent.gradients(state, sample, key, 0)
        history = flatten(sample).batch.obs
        first = jax.tree.map(lambda leaf: leaf[:, :num_rows], history._replace(carry=None))
        memory = agent._remember(state, first._replace(carry=history.carry), "critic", ())
        later = jax.tree.map(lambda leaf: leaf[:, num_rows:], sample.batch._replace(extras=()))
        later = later._replace(extras={"carry": {"critic": memory, "is_first": jnp.zeros(3, bool)}})
        part = agent.gradients(state, sample._replace(batch=later), key, 0)

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


@pytest.mark.parametrize("n_step", [1, 3])
def test_targets_of_several_steps(key, n_step):
    """Against brute force: sums stop where rows do not count any more, at the end of an episode or of the sequence."""
    reward = jax.random.normal(key, (4, 7))
    discount = jnp.where(jax.random.bernoulli(key, 0.2, (4, 7)), 0.0, 0.9)
    end = np.array([6, 3, 5, 2])  # the last row that counts; the first one is burn-in
    mask = (np.arange(7)[None] <= end[:, None]) & (np.arange(7)[None] >= 1)
    total, product, last = sum_steps(reward, discount, jnp.array(mask), n_step)
    for row, column in zip(*np.nonzero(mask), strict=True):
        stop = min(column + n_step, end[row] + 1)
        factors = np.cumprod(np.append(1.0, discount[row, column:stop]))
        np.testing.assert_allclose(total[row, column], factors[:-1] @ reward[row, column:stop], rtol=1e-5)
        np.testing.assert_allclose(product[row, column], factors[-1], rtol=1e-6)
        assert last[row, column] == stop - 1


def test_values_behind_several_steps_are_those_of_the_last_row(key):
    rows = history(key)
    params = GRU.init(key, rows)
    following = rows._replace(following=rows.obs + 1)
    last = jnp.array([2, 3, 4, 4, 4])
    np.testing.assert_allclose(
        GRU.apply(params, following._replace(last=last)), GRU.apply(params, following)[last], rtol=1e-6
    )


def test_an_agent_without_memory_is_refused():
    with pytest.raises(ValueError, match=r"DDQN.*no memory.*Torso\(memory='gru'\)"):
        Recurrent(DDQN(Discrete(2)))
    with pytest.raises(ValueError, match="kind"):
        Memory("rnn")


@struct.dataclass
class RecallState(environment.EnvState):
    time: jax.Array
    sign: jax.Array


class Recall(environment.Environment):
    """Shows a sign in the first of three steps; the last action is worth 1 if it tells which one it was, else -1."""

    @property
    def default_params(self):
        return environment.EnvParams(max_steps_in_episode=100)

    def step_env(self, key, state, action, params):
        is_last = state.time == 2
        reward = jnp.where(is_last, (2.0 * action - 1) * state.sign, 0.0)
        state = RecallState(time=state.time + 1, sign=state.sign)
        return self.get_obs(state), state, reward, is_last, {}

    def reset_env(self, key, params):
        state = RecallState(time=jnp.zeros((), jnp.int32), sign=jnp.where(jax.random.bernoulli(key), 1.0, -1.0))
        return self.get_obs(state), state

    def get_obs(self, state, params=None, key=None):
        return jnp.stack([jnp.where(state.time == 0, state.sign, 0.0), state.time.astype(jnp.float32)])

    @property
    def name(self):
        return "Recall"

    def action_space(self, params=None):
        return spaces.Discrete(2)


SMALL = Torso((16,), memory="gru", memory_size=16)
PLAN = Plan(3_600, num_envs=4, start_steps=400, update_every=8, num_updates=1, mini_batch_size=32, test_every=0)


def test_ddqn_recalls_with_a_memory_only(key):
    agent = DDQN(Discrete(2), SMALL, learning_rate=5e-3, polyak=0.9, max_grad_norm=10.0)
    buffer = jb.sequences(1_000, num_envs=4, sequence_length=6, burn_in=1)
    assert final_return(Recurrent(agent, n_step=2), buffer, PLAN, key) > 0.9
    agent = agent.replace(torso=Torso((16,)))
    assert final_return(agent, jb.uniform(1_000, num_envs=4), PLAN, key) < 0.6


def test_ppo_recalls(key):
    agent = Recurrent(PPO(Discrete(2), SMALL, learning_rate_pi=5e-3, learning_rate_v=5e-3))
    plan = Plan(9_600, num_envs=16, start_steps=0, update_every=128, num_updates=8, mini_batch_size=32, test_every=0)
    assert final_return(agent, jb.rollout(8, 16), plan, key) > 0.9


def test_sac_recalls_with_priorities_of_sequences(key):
    agent = SAC(Discrete(2), SMALL, learning_rate_q=5e-3, learning_rate_pi=5e-3, polyak=0.9, max_grad_norm=10.0)
    agent = Recurrent(agent.replace(learns_alpha=False, initial_alpha=0.01))
    buffer = jb.ReplayBuffer(jb.Prioritized(eta=0.9), jb.Sequence(6, burn_in=1), length=1_000, num_envs=4)
    assert final_return(agent, buffer, PLAN, key) > 0.9


def final_return(agent, buffer, plan, key):
    env = environments.wrap(Recall())
    plan = Plan(**(vars(plan) | {"num_test_episodes": 50}))
    _, metrics = jax.jit(lambda key: train(key, agent, buffer, env, plan))(key)
    return metrics["returns"][-1].mean()


def test_settings_build_recurrent_agents():
    plan = Plan(2_000, start_steps=1_000)
    settings = Settings("sac", "MaskedPendulum-v1", plan, memory="lstm", memory_size=8, sequence_length=10, burn_in=3)
    agent, buffer, env, _ = settings.build()
    assert isinstance(agent, Recurrent)
    assert (agent.agent.torso.memory, agent.agent.torso.memory_size) == ("lstm", 8)
    assert buffer.view == jb.Sequence(10, burn_in=3)
    assert env.obs.shape == (2,)
    assert agent.n_step == 1
    with pytest.raises(ValueError, match="memory='rnn'"):
        Settings("sac", "MaskedPendulum-v1", plan, memory="rnn")


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
