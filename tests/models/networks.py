"""The networks of the models of algorithms, on whole batches of observations."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from support.agents import BOX

from algorithms import Torso
from algorithms.networks import Critic, GaussianActor, QNetwork

NUM, ACTIONS, SIZE = 5, 3, 2
TORSO = Torso((4,), activation="tanh")
ROWS = np.arange(NUM)


def over_batch(network):
    return jax.vmap(network.apply, in_axes=(None, 0))


def scaled(action):
    """Return actions in [-1, 1]."""
    low, high = np.array(BOX.low, np.float32)[None], np.array(BOX.high, np.float32)[None]
    return 2 * (action - low) / (high - low) - 1


def values(params, obs, action):
    """Return the values of one critic."""
    return jax.vmap(Critic(TORSO).apply, in_axes=(None, 0, 0))(params, obs, action)


def all_values(params, obs):
    """Return the values of all discrete actions, of one critic."""
    return over_batch(QNetwork(ACTIONS, TORSO))(params, obs)


def gaussian(actor, obs):
    """Return the means and standard deviations of a policy."""
    mean, log_std = over_batch(GaussianActor(SIZE, TORSO))(actor, obs)
    return mean, jnp.exp(log_std)
