"""The adapter tells ends from time limits and hands over true successors."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from gymnax.environments import environment, spaces
from support.probes import Probe, ProbeParams

import jaxrl_buffers as jb
from algorithms import DDQN, Plan, Torso, environments
from algorithms.environments.spaces import Box, Discrete
from algorithms.training import loop

step_one = jax.jit(lambda env, state, action, key: env.step(state, action, key))


def test_unknown_names_suggest_near_ones():
    with pytest.raises(ValueError, match=r"'CartPole'; did you mean CartPole-v1"):
        environments.make("CartPole")


def test_names_far_from_all_point_to_the_list():
    with pytest.raises(ValueError, match="registered_envs"):
        environments.make("qqqqqqqq")


def test_equal_names_share_one_environment():
    assert environments.make("Acrobot-v1") is environments.make("Acrobot-v1")


@pytest.mark.parametrize(
    ("params", "terminated", "truncated"),
    [
        (ProbeParams(length=2), True, False),
        (ProbeParams(length=9, max_steps_in_episode=2), False, True),
        (ProbeParams(length=2, max_steps_in_episode=2), True, True),
    ],
)
def test_ends_and_time_limits(params, terminated, truncated):
    env = environments.wrap(Probe(True), params.replace(shows_time=1.0, constant=3.0))
    state = env.reset(jax.random.key(0), 2)
    action = jnp.zeros(2, jnp.int32)
    state, first, finished = step_one(env, state, action, jax.random.key(1))
    assert not finished.ended.any()
    state, second, finished = step_one(env, state, action, jax.random.key(2))
    np.testing.assert_array_equal(second.terminated, terminated)
    np.testing.assert_array_equal(second.truncated, truncated)
    np.testing.assert_array_equal(second.obs, first.next_obs)
    np.testing.assert_array_equal(second.next_obs[:, 1], 2)  # the last observation, not the one after the reset
    np.testing.assert_array_equal(state.obs[:, 1], 0)
    np.testing.assert_array_equal(finished.episode_return, 3)
    np.testing.assert_array_equal(finished.episode_length, 2)
    np.testing.assert_array_equal(state.episode_return, 0)


def test_true_successors_agree_with_the_environment_itself():
    """The adapter gives what gymnax gives for the same key, at every step of whole episodes."""
    env = environments.make("CartPole-v1")
    state = env.reset(jax.random.key(3), 1)

    def both(state, key):
        action = env.action_space.sample(key, 1)
        bare = env.env.step_env(key, jax.tree.map(lambda x: x[0], state.inner), action[0], env.params)[0]
        state, transition, finished = env.step(state, action, key[None])
        return state, (bare, transition, finished)

    _, (bare, transition, finished) = jax.lax.scan(both, state, jax.random.split(jax.random.key(4), 200))
    assert finished.ended.sum() >= 3
    # Speeds near 0 are differences of larger numbers, which the two programs may round otherwise.
    np.testing.assert_allclose(transition.next_obs[:, 0], bare, rtol=1e-6, atol=1e-7)
    ended = np.asarray(finished.ended[:-1, 0])
    np.testing.assert_array_equal(transition.obs[1:, 0][~ended], transition.next_obs[:-1, 0][~ended])
    assert np.all(np.any(transition.obs[1:, 0][ended] != transition.next_obs[:-1, 0][ended], axis=1))
    np.testing.assert_array_equal(finished.episode_return[finished.ended], finished.episode_length[finished.ended])


class Camera(environment.Environment):
    """Sees bytes, a flag and a vector; acts between bounds that differ from component to component."""

    @property
    def default_params(self):
        return environment.EnvParams(max_steps_in_episode=3)

    def _obs(self, state):
        image = jnp.full((4, 4, 1), state.time, jnp.uint8)
        return {"image": image, "flag": jnp.asarray(state.time == 0), "speed": jnp.ones(2) * state.time}

    def step_env(self, key, state, action, params):
        state = state.replace(time=state.time + 1)
        return self._obs(state), state, jnp.sum(action), jnp.asarray(False), {}

    def reset_env(self, key, params):
        state = environment.EnvState(time=0)
        return self._obs(state), state

    name = "Camera"

    def action_space(self, params=None):
        return spaces.Box(jnp.array([-1.0, 0.0]), jnp.array([1.0, 4.0]), (2,))


def test_pytree_observations_keep_their_dtypes():
    env = environments.wrap(Camera())
    state = env.reset(jax.random.key(0), 2)
    after, transition, _ = step_one(env, state, env.action_space.sample(jax.random.key(1), 2), jax.random.key(2))
    dtypes = {"image": "uint8", "flag": "bool", "speed": "float32"}
    for obs in (state.obs, transition.obs, transition.next_obs, after.obs, env.obs):
        assert {name: str(leaf.dtype) for name, leaf in obs.items()} == dtypes
    assert jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), state) == jax.tree.map(
        lambda x: (x.shape, x.dtype, x.weak_type), after
    )
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(after))


def test_vector_bounds():
    space = environments.wrap(Camera()).action_space
    assert space == Box((-1.0, 0.0), (1.0, 4.0))
    drawn = np.asarray(space.sample(jax.random.key(0), 2_000))
    np.testing.assert_allclose(drawn.min(0), [-1, 0], atol=0.02)
    np.testing.assert_allclose(drawn.max(0), [1, 4], atol=0.02)
    np.testing.assert_allclose(space.scale(space.normalize(drawn)), drawn, atol=1e-5)


def test_discrete_actions_are_all_drawn_alike():
    counts = np.bincount(np.asarray(Discrete(3).sample(jax.random.key(0), 30_000)), minlength=3)
    assert counts.size == 3
    assert np.all(np.abs(counts - 10_000) < 5 * np.sqrt(30_000 * 2 / 9))


class Unbounded(Camera):
    def action_space(self, params=None):
        return spaces.Box(-jnp.inf, jnp.inf, (1,))


class Pair(Camera):
    def action_space(self, params=None):
        return spaces.Tuple([spaces.Discrete(2), spaces.Discrete(2)])


@pytest.mark.parametrize(
    ("env", "message"), [(Unbounded(), "finite bounds"), (Pair(), "agents need Discrete, or Box of one axis")]
)
def test_other_action_spaces_are_refused(env, message):
    with pytest.raises(ValueError, match=message):
        environments.wrap(env)


@struct.dataclass
class WandererState(environment.EnvState):
    time: jax.Array
    key: jax.Array  # from which every step draws


class Wanderer(Probe):
    """Keeps a key of its own, as many environments do."""

    def step_env(self, key, state, action, params):
        key_step, key_next = jax.random.split(state.key)
        state = WandererState(state.time + 1, key_next)
        return jax.random.normal(key_step, (2,)), state, jnp.float32(1), state.time >= 3, {}

    def reset_env(self, key, params):
        return jnp.zeros(2), WandererState(jnp.zeros((), jnp.int32), key)


@pytest.mark.parametrize("make_key", [jax.random.key, jax.random.PRNGKey])
def test_environments_may_keep_keys(make_key):
    env = environments.wrap(Wanderer(True))
    state = jax.jit(lambda key: env.reset(key, 2))(make_key(0))
    state, first, _ = step_one(env, state, jnp.zeros(2, jnp.int32), make_key(1))
    state, second, _ = step_one(env, state, jnp.zeros(2, jnp.int32), make_key(2))
    assert state.inner.key.dtype == make_key(0).dtype
    assert state.inner.key.shape == (2, *make_key(0).shape)
    assert len(np.unique(np.stack([first.next_obs, second.next_obs]))) == 8


def _words(leaf):
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def test_runs_with_kept_keys_can_be_saved(tmp_path):
    env = environments.wrap(Wanderer(True))
    agent, buffer = DDQN(env.action_space, Torso((4,))), jb.uniform(16, 2)
    plan = Plan(total_steps=16, num_envs=2, start_steps=8, update_every=4, num_updates=1, mini_batch_size=4)
    state = jax.jit(lambda key: loop.init(key, agent, buffer, env, plan))(jax.random.key(0))
    state = jax.jit(lambda state: loop.run(state, agent, buffer, env, plan, 2))(state)
    jb.checkpoint.save(tmp_path / "state", state)
    restored = jb.checkpoint.restore(tmp_path / "state", state)
    words = jax.tree.map(_words, (state, restored))
    chex.assert_trees_all_equal(*words)
    assert state.collector.env.inner.key.dtype == jax.random.key(0).dtype
