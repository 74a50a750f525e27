"""Code that others write gets keys of the type that the caller passed, never ones of our own type."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from support.others import (
    KINDS,
    SEEN,
    OthersAddon,
    OthersAgent,
    OthersEnvironment,
    OthersSampler,
    OthersTorso,
    OthersView,
    assert_seen,
)

import jaxrl_buffers as jb
from algorithms import DDQN, PPO, Averaged, Normalized, Plan, Recurrent, Torso, environments
from algorithms.training import loop
from algorithms.training.evaluation import evaluate

ROLES = {"step", "reset", "network", "add-on init", "add-on loss", "init", "act", "gradients", "draw", "view"}
PLAN = Plan(total_steps=16, start_steps=8, update_every=4, num_updates=2, test_every=8, mini_batch_size=4, num_envs=2)


def replay(sampler=OthersSampler(), view=OthersView()):  # noqa: B008
    return jb.ReplayBuffer(sampler=sampler, view=view, length=32, num_envs=2)


BUFFERS = {
    "plain": replay(),
    "recent": replay(jb.Recent(OthersSampler())),
    "newest": replay(jb.LastN(4, OthersSampler())),
    "mix": replay(jb.Combined(OthersSampler(), (jb.Uniform(), OthersSampler()), (0.2, 0.3))),
    "hindsight": replay(view=jb.Hindsight(OthersView(), achieved="next_obs", relabel=lambda rows, goal: rows)),
    "mixture": jb.Mixture((replay(), replay())),
}


@pytest.fixture(autouse=True)
def fresh():
    """Trace everything anew, so that all keys are seen."""
    jax.clear_caches()
    SEEN.clear()


def agent_of_others(inner=DDQN):
    env = environments.wrap(OthersEnvironment(True))
    return OthersAgent(inner(env.action_space, OthersTorso(), addons=(OthersAddon(),))), env


@KINDS
@pytest.mark.parametrize("kind", BUFFERS)
def test_training(make_key, kind):
    agent, env = agent_of_others()
    state, _ = jax.eval_shape(lambda key: loop.train(key, agent, BUFFERS[kind], env, PLAN), make_key(0))
    assert_seen(make_key, ROLES)
    assert state.key.dtype == make_key(0).dtype


@KINDS
def test_training_from_rollouts(make_key):
    agent, env = agent_of_others(PPO)
    plan = Plan(total_steps=16, start_steps=0, update_every=8, num_updates=4, mini_batch_size=4, num_envs=2)
    jax.eval_shape(lambda key: loop.train(key, agent, jb.rollout(4, num_envs=2), env, plan), make_key(0))
    assert_seen(make_key, ROLES - {"draw", "view"})


@KINDS
def test_a_run_in_parts(make_key):
    agent, env = agent_of_others()
    buffer = BUFFERS["plain"]
    key = make_key(0)
    state = jax.eval_shape(lambda key: loop.init(key, agent, buffer, env, PLAN), key)
    state = jax.eval_shape(lambda state: loop.begin_anew(state, agent, buffer, env), state)
    jax.eval_shape(lambda state: loop.run(state, agent, buffer, env, PLAN, 2), state)
    parts = state.agent, state.buffer, state.iteration
    jax.eval_shape(lambda key, *parts: loop.adopt(key, *parts, agent, buffer, env, PLAN), key, *parts)
    assert_seen(make_key, ROLES)


@KINDS
@pytest.mark.parametrize("is_random", [True, False])
def test_collecting(make_key, is_random):
    agent, env = agent_of_others()

    def collect(key):
        state, *keys = agent.init(key, env.obs, env.action_space.example), *jax.random.split(key, 4)
        collector = loop.Collector(env.reset(key, 2), agent.initial_carry(2))
        return loop.collect(agent, state, env, collector, keys[0][None], jnp.stack(keys[1:3])[None], is_random)

    jax.eval_shape(collect, make_key(0))
    assert_seen(make_key, {"step", "reset", "network", "add-on init", "init", "act"})


@KINDS
@pytest.mark.parametrize("wrapped", [Averaged, Normalized, lambda agent: agent])
def test_evaluation(make_key, wrapped):
    agent, env = agent_of_others()
    agent = wrapped(agent)

    def play(key):
        state = agent.init(key, env.obs, env.action_space.example)
        return evaluate(agent, state, env, key, 3)

    jax.eval_shape(play, make_key(0))
    assert_seen(make_key, {"step", "reset", "network", "add-on init", "init", "act"})


@KINDS
def test_memories(make_key):
    """Behind which an agent acts and learns as ever, but from sequences."""
    env = environments.wrap(OthersEnvironment(True))
    inner = DDQN(env.action_space, Torso((8,), memory="gru"), addons=(OthersAddon(),))
    buffer = replay(view=jb.Sequence(2))
    jax.eval_shape(lambda key: loop.train(key, Recurrent(inner), buffer, env, PLAN), make_key(0))
    assert_seen(make_key, {"step", "reset", "draw", "add-on init", "add-on loss"})


EXAMPLE = jb.Transition(jnp.zeros(2), jnp.int32(0), jnp.float32(0), jnp.bool_(False), jnp.bool_(False), jnp.zeros(2))


@KINDS
@pytest.mark.parametrize("kind", BUFFERS)
def test_sampling_and_reading(make_key, kind):
    buffer = BUFFERS[kind]

    def sample(key):
        state = buffer.init(EXAMPLE)
        return buffer.read(state, buffer.sample(state, key, 6).handle, key)

    jax.eval_shape(sample, make_key(0))
    assert_seen(make_key, {"draw", "view"})


@KINDS
@pytest.mark.parametrize("scan", [jb.scan_batches, jb.scan_epochs])
def test_many_batches(make_key, scan):
    buffer = BUFFERS["plain"]

    def go_through(key):
        size = {"num_batches": 3, "batch_size": 4}
        return scan(lambda carry, state, sample: (carry, state, ()), 0, buffer, buffer.init(EXAMPLE), key, **size)

    jax.eval_shape(go_through, make_key(0))
    assert_seen(make_key, {"draw", "view"} if scan is jb.scan_batches else {"view"})
