"""Code that others write gets keys of the type that the caller passed, never ones of our own type."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn
from flax import struct
from gymnax.environments import spaces
from support.probes import Probe

import jaxrl_buffers as jb
from algorithms import DDQN, PPO, Averaged, Normalized, Plan, Recurrent, Torso, environments
from algorithms.environments.masked import Masked
from algorithms.training import loop
from algorithms.training.evaluation import evaluate

TYPED = jax.random.key(0)
SEEN: list[tuple[str, Any, tuple[int, ...]]] = []  # who got a key, its dtype and its shape


def note(who: str, key: jax.Array) -> None:
    SEEN.append((who, key.dtype, key.shape))


class OthersEnvironment(Probe):
    """Steps and resets with a key each."""

    def observation_space(self, params):
        return spaces.Box(-1.0, 1.0, (2,))

    def step_env(self, key, state, action, params):
        note("step", key)
        return super().step_env(key, state, action, params)

    def reset_env(self, key, params):
        note("reset", key)
        return super().reset_env(key, params)


class OthersTorso(nn.Module):
    """Draws its parameters by a function of its own."""

    @nn.compact
    def __call__(self, obs):
        def draw(key):
            note("network", key)
            return jax.random.normal(key, (obs.shape[-1], 8))

        return obs @ self.param("kernel", draw)


class OthersAddon(struct.PyTreeNode):
    """Has a parameter, and draws in its loss."""

    learning_rate: float = 0.001

    def init(self, key, obs, action, features):
        note("add-on init", key)
        return jax.random.normal(key, (2,))

    def loss(self, params, policy, features, sample, key):
        note("add-on loss", key)
        return jnp.sum(params * jax.random.normal(key, (2,))), {}


class OthersAgent(struct.PyTreeNode):
    """Does what another agent does."""

    agent: Any

    @property
    def action_space(self):
        return self.agent.action_space

    @property
    def learns_from_columns(self):
        return self.agent.learns_from_columns

    def init(self, key, obs, action):
        note("init", key)
        return self.agent.init(key, obs, action)

    def initial_carry(self, num_envs):
        return self.agent.initial_carry(num_envs)

    def act(self, state, obs, carry, key, deterministic=False):
        note("act", key)
        return self.agent.act(state, obs, carry, key, deterministic)

    def values(self, state, chunk):
        return self.agent.values(state, chunk)

    def observe(self, state, chunk):
        return self.agent.observe(state, chunk)

    def gradients(self, state, sample, key):
        note("gradients", key)
        return self.agent.gradients(state, sample, key)

    def apply(self, state, grads):
        return self.agent.apply(state, grads)


class OthersSampler(jb.Uniform):
    """Draws as `Uniform` does."""

    def draw(self, state, storage, key, batch_size, window, progress=0.0):
        note("draw", key)
        return super().draw(state, storage, key, batch_size, window, progress)


class OthersView(jb.NStep):
    """Says that it is random."""

    is_random = True

    def __call__(self, reader, slots, key):
        note("view", key)
        return super().__call__(reader, slots, key)


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
KINDS = pytest.mark.parametrize("make_key", [jax.random.key, jax.random.PRNGKey])


@pytest.fixture(autouse=True)
def fresh():
    """Trace everything anew, so that all keys are seen."""
    jax.clear_caches()
    SEEN.clear()


def assert_seen(make_key, roles):
    """Check that those in all the roles got keys, and only single ones of the type that the caller has."""
    like = make_key(0)
    assert {who for who, _, _ in SEEN} == set(roles)
    for role in roles:
        kinds = {(dtype, shape) for who, dtype, shape in SEEN if who == role}
        if role in ("step", "reset", "network"):  # we, and flax, also ask them for shapes, with a typed key
            kinds -= {(TYPED.dtype, TYPED.shape)} - {(like.dtype, like.shape)}
        assert kinds == {(like.dtype, like.shape)}, role


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
def test_environments_behind_a_mask(make_key):
    """The mask is ours, what it is put on is not."""
    env = environments.wrap(Masked(OthersEnvironment(True), kept=(0,)))
    state = jax.eval_shape(lambda key: env.reset(key, 2), make_key(0))
    jax.eval_shape(lambda state, key: env.step(state, jnp.zeros(2, jnp.int32), key), state, make_key(0))
    assert_seen(make_key, {"step", "reset"})


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
