"""Environments, networks, agents and parts of buffers as others may write them. They note the keys that they get."""

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
from algorithms import Torso

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


def noted_kernel(key, num_rows):
    note("network", key)
    return jax.random.normal(key, (num_rows, 8))


class OthersTorso(nn.Module):
    """Draws its parameters by a function of its own."""

    @nn.compact
    def __call__(self, obs):
        return obs @ self.param("kernel", noted_kernel, obs.shape[-1])


class OthersHead(nn.Module):
    """Draws the parameters above the torso by a function of its own."""

    torso: nn.Module = Torso((8,))

    role = "critic"

    @nn.compact
    def __call__(self, obs):
        features = self.torso(obs)
        return features @ self.param("kernel", noted_kernel, features.shape[-1])


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


KINDS = pytest.mark.parametrize("make_key", [jax.random.key, jax.random.PRNGKey])


def assert_seen(make_key, roles):
    """Check that those in all the roles got keys, and only single ones of the type that the caller has."""
    like = make_key(0)
    assert {who for who, _, _ in SEEN} == set(roles)
    for role in roles:
        kinds = {(dtype, shape) for who, dtype, shape in SEEN if who == role}
        if role in ("step", "reset", "network"):  # we, and flax, also ask them for shapes, with a typed key
            kinds -= {(TYPED.dtype, TYPED.shape)} - {(like.dtype, like.shape)}
        assert kinds == {(like.dtype, like.shape)}, role
