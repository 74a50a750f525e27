"""The training loop keeps its budgets, and its state is the same however it is cut, jitted or vmapped."""

from __future__ import annotations

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from support.compiled import compiled_as_usual, whole_array_operations
from support.helpers import leaves, rewards_chunk

import jaxrl_buffers as jb
from algorithms import DDQN, MPO, SAC, Plan, Torso, environments, train
from algorithms.training import learning, loop, off_policy
from algorithms.types import StepInfo

ENV = environments.make("CartPole-v1")
AGENT = DDQN(ENV.action_space, Torso((8,)), learning_rate=1e-2)
BUFFER = jb.prioritized(200, 2, n=3)
PLAN = Plan(
    total_steps=340,
    num_envs=2,
    start_steps=100,
    update_every=4,
    num_updates=2,
    mini_batch_size=8,
    test_every=100,
    num_test_episodes=3,
)
run = jax.jit(lambda state, num: loop.run(state, AGENT, BUFFER, ENV, PLAN, num), static_argnums=1)


@functools.cache
def trained():
    """Train two seeds in one program."""
    keys = jax.random.split(jax.random.key(0), 2)
    program = jax.jit(jax.vmap(lambda key, agent: train(key, agent, BUFFER, ENV, PLAN), in_axes=(0, None)))
    return program, keys, program(keys, AGENT)


@functools.cache
def begun():
    return jax.jit(lambda key: loop.init(key, AGENT, BUFFER, ENV, PLAN))(jax.random.key(1))


def same(one, other):
    chex.assert_trees_all_equal(*(state._replace(key=jax.random.key_data(state.key)) for state in (one, other)))


def test_budgets_are_met_exactly():
    _, _, (state, metrics) = trained()
    np.testing.assert_array_equal(state.buffer.storage.head, 340 // 2)
    np.testing.assert_array_equal(state.agent.num_updates, (340 - 100) // 4 * 2)
    np.testing.assert_array_equal(metrics["steps"], [[200, 300, 340]] * 2)
    assert metrics["returns"].shape == (2, 3, 3)
    assert jnp.all(metrics["returns"] >= 8)


def test_metrics_have_names():
    _, _, (_, metrics) = trained()
    expected = {"steps", "returns", "loss_q", "q", "grad_norm_q", "epsilon", "priority", "weight", "sample_age"}
    expected |= {"nonfinite_rewards", "nonfinite_observations", "nonfinite_losses", "nonfinite_gradients"}
    expected |= {"truncated_episodes", "ended_both_ways"}
    assert expected | {"episodes", "episode_return", "episode_length"} == set(metrics)
    assert all(jnp.all(jnp.isfinite(value)) for value in metrics.values())
    np.testing.assert_allclose(metrics["episode_return"], metrics["episode_length"])
    assert jnp.all(metrics["sample_age"][:, -1] > metrics["sample_age"][:, 0])


def test_the_same_seed_gives_the_same_bits_and_another_seed_others():
    program, keys, (state, _) = trained()
    again, _ = program(keys, AGENT)
    same(state, again)
    assert program._cache_size() == 1
    for leaf in jax.tree.leaves(state.agent.params) + jax.tree.leaves(state.buffer.storage.data)[:2]:
        assert jnp.any(leaf[0] != leaf[1])


def test_a_changed_hyper_parameter_does_not_recompile():
    program, keys, (state, _) = trained()
    slow, _ = program(keys, AGENT.replace(learning_rate=0.0))
    assert program._cache_size() == 1
    pairs = zip(jax.tree.leaves(slow.agent.params), jax.tree.leaves(state.agent.params), strict=True)
    assert all(jnp.any(a != b) for a, b in pairs)
    chex.assert_trees_all_close(slow.agent.params.critic, slow.agent.target, rtol=1e-5)  # nothing was learned


def test_many_chunks_are_one_long_run():
    state = begun()
    whole = run(state, 12)
    parts = run(run(run(state, 4), 4), 4)
    same(whole, parts)


def test_the_state_keeps_its_types():
    state = begun()
    after = run(state, 4)
    chex.assert_trees_all_equal_shapes_and_dtypes(state._replace(key=()), after._replace(key=()))
    assert not any(leaf.weak_type for leaf in jax.tree.leaves((state._replace(key=()), after._replace(key=()))))


def test_warm_up_acts_at_random_and_does_not_learn():
    state = begun()
    rows, stored = BUFFER.gather_all(state.buffer)
    assert stored.sum() == 100
    share = rows.action[stored].mean()
    assert abs(share - 0.5) < 5 * 0.5 / 10
    assert state.agent.num_updates == 0
    key_agent = jax.random.split(jax.random.key(1), 4)[0]
    fresh = jax.jit(lambda key: AGENT.init(key, ENV.obs, ENV.action_space.example))(key_agent)
    chex.assert_trees_all_close(state.agent.params, fresh.params, rtol=1e-6)


def test_stored_rows_follow_one_another():
    """Rows of an environment are one stream: each begins where the one before led, except behind an end."""
    _, _, (state, _) = trained()
    rows, stored = BUFFER.gather_all(jax.tree.map(lambda leaf: leaf[0], state.buffer))
    ended = (rows.terminated | rows.truncated)[:-1]
    follows = jnp.all(rows.next_obs[:-1] == rows.obs[1:], axis=-1)
    both = stored[:-1] & stored[1:]
    assert jnp.all(follows[both & ~ended])
    assert not jnp.any(follows[both & ended])


@pytest.mark.parametrize("agent", [AGENT, MPO(ENV.action_space, Torso((8,)), num_passes=3)], ids=["ddqn", "mpo"])
def test_a_train_step_is_a_sample_gradients_and_their_application(agent):
    """Sampled rows get their errors as priorities."""
    buffer, keys = begun().buffer, (jax.random.key(7), jax.random.key(8))
    state = jax.jit(lambda key: agent.init(key, ENV.obs, ENV.action_space.example))(jax.random.key(2))
    sample = BUFFER.sample(buffer, keys[0], 8)
    grads, info = jax.jit(lambda state: agent.gradients(state, sample, keys[1]))(state)
    expected = jax.jit(lambda state, grads: agent.apply(state, grads))(state, grads)
    found, after, metrics = jax.jit(lambda: off_policy.train_step(agent, BUFFER, state, buffer, *keys, 8))()
    chex.assert_trees_all_close(found, expected, rtol=1e-4, atol=1e-6)
    assert found.num_updates == 1
    updated = BUFFER.update_priorities(buffer, sample.handle, info.priorities)
    chex.assert_trees_all_close(after.sampler, updated.sampler, rtol=1e-5)
    np.testing.assert_allclose(metrics["priority"], jnp.mean(info.priorities), rtol=1e-5)


class Ruler(struct.PyTreeNode):
    """A buffer that only notes what it is asked and told."""

    num_envs = 1

    def add(self, state, chunk):
        return state | {"added": state["added"] + chunk.reward.size}

    def report_return(self, state, mean_return):
        # Behind `add`, and before any sample of the iteration.
        return state | {"observed": jnp.append(state["observed"][1:], mean_return), "updates": jnp.int32(0)}

    def sample(self, state, key, batch_size, progress):
        # The progress goes where `update_priorities` finds it.
        rows = jax.tree.map(lambda leaf: jnp.zeros((batch_size, *leaf.shape), leaf.dtype), ENV.transition())
        batch = jb.Batch(rows.obs, rows.action, rows.reward, rows.reward, rows.next_obs, rows.terminated, ())
        none = jnp.zeros(batch_size, jnp.int32)
        return jb.Sample(batch, jb.Handle(none, none + jnp.int32(1_000 * progress)), jnp.ones(batch_size))

    def update_priorities(self, state, handle, priorities, mask):
        progress = state["progress"].at[state["updates"]].set(handle.position[0])
        return state | {"progress": progress, "updates": state["updates"] + 1}

    def age(self, state, handle):
        return handle.position


def test_a_buffer_is_told_the_progress_and_the_returns():
    """Each of the updates of an iteration tells how far that has come; episodes that ended are told before them."""
    plan = Plan(total_steps=200, start_steps=0, update_every=100, num_updates=4, mini_batch_size=2)
    state = {"added": jnp.int32(0), "updates": jnp.int32(0)}
    state |= {"progress": jnp.full(4, -1), "observed": jnp.full(2, jnp.nan)}

    @jax.jit
    def learn(key):
        agent_state = AGENT.init(key, ENV.obs, ENV.action_space.example)
        collector = loop.Collector(ENV.reset(key, 1), ())
        keys = loop.iteration_keys(key, plan)
        _, chunk, finished = loop.collect(AGENT, agent_state, ENV, collector, keys.act, keys.env)
        return learning.learn(AGENT, Ruler(), agent_state, state, chunk, finished, keys, plan)[1], finished

    after, finished = learn(jax.random.key(3))
    assert after["added"] == 100
    assert after["progress"].tolist() == [0, 250, 500, 750]
    assert finished.ended.sum() > 0
    expected = finished.episode_return.sum() / finished.ended.sum()
    np.testing.assert_allclose(after["observed"], [jnp.nan, expected], rtol=1e-6)


def test_old_names_of_arguments_still_work():
    state, (key_act, key_env) = begun(), jax.random.split(jax.random.key(5))
    parts = AGENT, state.agent, ENV, state.collector, key_act[None], jax.random.split(key_env, (1, 2))
    with pytest.warns(DeprecationWarning, match="`is_random` of collect\\(\\) is now called `random`"):
        old = jax.make_jaxpr(lambda: loop.collect(*parts, is_random=True))()
    assert str(old) == str(jax.make_jaxpr(lambda: loop.collect(*parts, random=True))())


def test_keys_are_never_reused():
    """The parts one by one: JAX takes slices of one array of keys, as the loop makes them, for the same key."""
    state, (key_act, key_env, key_sample, key_gradients) = begun(), jax.random.split(jax.random.key(5), 4)
    with jax.debug_key_reuse(True):  # checks while tracing
        jax.jit(lambda *keys: loop.collect(AGENT, state.agent, ENV, state.collector, *keys, random=True)).trace(
            jax.random.split(key_act, 2), jax.random.split(key_env, (2, 2))
        )
        jax.jit(lambda *keys: off_policy.train_step(AGENT, BUFFER, state.agent, state.buffer, *keys, 8)).trace(
            key_sample, key_gradients
        )
    with pytest.raises(jax.errors.KeyReuseError), jax.debug_key_reuse(True):
        jax.jit(lambda key: jax.random.normal(key) + jax.random.uniform(key)).trace(jax.random.key(0))


class Errors:
    """Learns nothing; its errors are 2 where the mask of a sequence is True, and 100 elsewhere."""

    def gradients(self, state, sample, key):
        return (), StepInfo(jnp.where(sample.batch.mask, 2.0, 100.0), {})

    def apply(self, state, grads):
        return state


def test_what_is_masked_in_a_sequence_gives_it_no_priority():
    """Neither the burn-in nor what follows an end counts."""
    sampler = jb.Prioritized(alpha=1.0, epsilon=0.0, eta=0.5)
    buffer = jb.sequences(6, sequence_length=4, burn_in=1, sampler=sampler)
    chunk = rewards_chunk(np.zeros(6), terminated=[0, 0, 0, 1, 0, 0])
    state = buffer.add(buffer.init(jax.tree.map(lambda leaf: leaf[0, 0], chunk)), chunk)
    step = jax.jit(lambda state, *keys: off_policy.train_step(Errors(), buffer, (), state, *keys, batch_size=16))
    _, state, _ = step(state, *jax.random.split(jax.random.key(0)))
    assert leaves(state).tolist() == [2, 2, 2, 0, 0, 0]


@pytest.mark.parametrize(("kind", "num_seeds"), [("uniform", None), ("prioritized", None), ("prioritized", 2)])
def test_training_is_in_place(kind, num_seeds):
    """No operation of a training step touches the whole ring or the whole tree."""
    env = environments.make("Pendulum-v1")
    agent = SAC(env.action_space, Torso((8,)))
    length = 2**16
    buffer = jb.uniform(length) if kind == "uniform" else jb.prioritized(length, n=3)
    plan = Plan(total_steps=100, start_steps=50, update_every=1, num_updates=1, mini_batch_size=8)
    over_seeds = (lambda function: function) if num_seeds is None else jax.vmap
    key = jax.random.key(0) if num_seeds is None else jax.random.split(jax.random.key(0), num_seeds)
    state = jax.eval_shape(over_seeds(lambda key: loop.init(key, agent, buffer, env, plan)), key)
    step = over_seeds(lambda state: loop.run(state, agent, buffer, env, plan, 3))
    compiled = compiled_as_usual(jax.jit(step, donate_argnums=0).lower(state))
    assert whole_array_operations(compiled, length // 8) == []
