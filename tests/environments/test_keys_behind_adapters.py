"""Code of others that is inside of ours gets keys of the type that the caller passed, too."""

from __future__ import annotations

import importlib.util

import jax
import jax.numpy as jnp
import pytest
from support.others import KINDS, SEEN, OthersEnvironment, OthersHead, assert_seen, note

from algorithms import environments
from algorithms.environments.masked import Masked
from algorithms.networks import init_network, init_stack


@pytest.fixture(autouse=True)
def fresh():
    """Trace everything anew, so that all keys are seen."""
    jax.clear_caches()
    SEEN.clear()


def walk(env, key):
    """Reset two environments, and take two steps in a loop."""

    def steps(key):
        actions = jax.vmap(lambda _: env.action_space.example)(jnp.arange(2))
        return jax.lax.fori_loop(0, 2, lambda _, state: env.step(state, actions, key)[0], env.reset(key, 2))

    jax.eval_shape(steps, key)


@KINDS
def test_environments_behind_a_mask(make_key):
    """The mask is ours, what it is put on is not."""
    walk(environments.wrap(Masked(OthersEnvironment(True), kept=(0,))), make_key(0))
    assert_seen(make_key, {"step", "reset"})


@KINDS
def test_environments_behind_two_masks(make_key):
    walk(environments.wrap(Masked(Masked(OthersEnvironment(True), kept=(0, 1)), kept=(0,))), make_key(0))
    assert_seen(make_key, {"step", "reset"})


@KINDS
def test_environments_of_brax(make_key):
    """Brax's environments may keep the key in their state, so that another type in a loop would be an error."""
    if importlib.util.find_spec("brax") is None:
        pytest.skip("brax is not installed: pip install 'jaxrl-buffers[brax]'")
    from algorithms.environments.brax import envs, from_brax

    class OthersBrax(envs.Env):
        observation_size, action_size, backend = 2, 1, "generalized"

        def reset(self, rng):
            note("reset", rng)
            return envs.State(None, jnp.zeros(2), jnp.zeros(()), jnp.zeros(()), info={"rng": rng})

        def step(self, state, action):
            rng, key = jax.random.split(state.info["rng"])
            note("step", key)
            return state.replace(obs=state.obs + jax.random.normal(key, (2,)), info={"rng": rng})

    walk(from_brax(OthersBrax(), "others"), make_key(0))
    assert_seen(make_key, {"step", "reset"})


@KINDS
@pytest.mark.parametrize("init", [init_network, init_stack])
def test_heads(make_key, init):
    """The torso is ours, the head on top of it is not."""
    obs = jnp.zeros(2)
    sizes = (obs,) if init is init_network else (3, obs)
    jax.eval_shape(lambda key: init(OthersHead(), key, *sizes), make_key(0))
    assert_seen(make_key, {"network"})
