"""Parts of a training run that write down what they get."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import jaxrl_buffers as jb
from algorithms import Discrete, Plan
from algorithms.environments import EnvironmentState, Finished
from algorithms.training import loop
from algorithms.types import StepInfo

LENGTHS = jnp.array([3, 5])  # of the episodes of either environment
PLAN = Plan(
    total_steps=26,
    num_envs=2,
    start_steps=6,
    update_every=4,
    num_updates=3,
    mini_batch_size=4,
    test_every=8,
    num_test_episodes=2,
)
NUM_LOGGED = 20
NO_KEYS = jnp.zeros((NUM_LOGGED, 2), jnp.uint32)


class Counting:
    """Two environments that observe the number of steps in their episode; rewards are the actions."""

    name, max_episode_length, action_space = "Counting", 5, Discrete(50)
    obs = jax.ShapeDtypeStruct((), jnp.float32)

    def transition(self, extras=()):
        flag = jax.ShapeDtypeStruct((), jnp.bool_)
        return jb.Transition(self.obs, self.action_space.example, self.obs, flag, flag, self.obs, extras)

    def reset(self, key, num_envs):
        zeros = jnp.zeros(num_envs, jnp.float32)
        keys = jax.random.key_data(jax.random.split(key, num_envs))
        return EnvironmentState(keys, zeros, zeros, jnp.zeros(num_envs, jnp.int32))

    def step(self, state, action, keys):
        length, total = state.episode_length + 1, state.episode_return + action
        ended = length == LENGTHS
        row = jb.Transition(state.obs, action, action.astype(jnp.float32), ended, ended & False, state.obs + 1)
        finished = Finished(ended, jnp.where(ended, total, 0), jnp.where(ended, length, 0))
        length, total = jnp.where(ended, 0, length), jnp.where(ended, 0, total)
        inner = jax.random.key_data(keys)
        return EnvironmentState(inner, length.astype(jnp.float32), total, length), row, finished


class Learned(NamedTuple):
    """What the agent was told."""

    rows: Any  # that it observed
    rewards: Any  # their sum
    num_steps: Any
    rows_at_steps: Any  # in the buffer, when each step's gradient was taken
    keys: Any


class Agent:
    """Acts by 7 when it counts and by 2 otherwise; its gradients are notes."""

    action_space = Discrete(50)

    def __init__(self, has_sequences=False):
        self.has_sequences = has_sequences

    def init(self, key, obs, action):
        zeros = jnp.zeros(NUM_LOGGED, jnp.float32)
        return Learned(jnp.int32(0), jnp.float32(0), jnp.int32(0), zeros, NO_KEYS)

    def initial_carry(self, num_envs):
        return {"steps": jnp.zeros(num_envs, jnp.float32), "pairs": jnp.full((num_envs, 2), 9.0)}

    def act(self, state, obs, carry, key, deterministic=False):
        after = jax.tree.map(lambda leaf: leaf + 1, carry)
        action = jnp.full(obs.shape, 7 if deterministic else 2, jnp.int32)
        return action, after, {"carry": carry, "rows": jnp.broadcast_to(state.rows, obs.shape)}

    def observe(self, state, chunk):
        return state._replace(rows=state.rows + chunk.reward.size, rewards=state.rewards + jnp.sum(chunk.reward))

    def gradients(self, state, sample, key):
        grads = sample.batch.reward[0], jax.random.key_data(key)
        priorities = 10.0 * state.num_steps + jnp.arange(4.0)
        if self.has_sequences:
            priorities = jnp.stack([priorities] * 2, axis=1)
        return grads, StepInfo(priorities, {"step": jnp.float32(state.num_steps)})

    def apply(self, state, grads):
        rows, key = grads
        index = state.num_steps
        return state._replace(
            num_steps=index + 1,
            rows_at_steps=state.rows_at_steps.at[index].set(rows),
            keys=state.keys.at[index].set(key),
        )


class Stored(NamedTuple):
    """What the buffer was told."""

    rows: Any
    observed: Any
    num_draws: Any
    progress: Any
    keys: Any
    told: Any  # the first priorities of each batch
    masked: Any  # how many entries counted; -1 without a mask
    breaks: Any


class Buffer:
    """Gives the number of its rows as rewards."""

    num_envs, length, lookback, view = 2, 100, 0, SimpleNamespace(lookahead=0, stride=1)

    def init(self, example):
        assert example.extras["carry"]["pairs"].shape == (2,)
        zeros = jnp.zeros(NUM_LOGGED, jnp.float32)
        return Stored(jnp.int32(0), zeros, jnp.int32(0), zeros, NO_KEYS, zeros, zeros, jnp.int32(0))

    def add(self, state, chunk):
        return state._replace(rows=state.rows + chunk.reward.size)

    def report_return(self, state, value):
        return state._replace(observed=state.observed.at[state.num_draws].set(value))

    def sample(self, state, key, batch_size, progress):
        rewards = jnp.full(batch_size, state.rows, jnp.float32)
        batch = jb.Batch((), (), rewards, rewards, (), jnp.arange(2 * batch_size).reshape(batch_size, 2) < 3)
        return jb.Sample(batch, (progress, key), jnp.arange(1.0, batch_size + 1))

    def update_priorities(self, state, handle, priorities, mask):
        index, (progress, key) = state.num_draws, handle
        return state._replace(
            num_draws=index + 1,
            progress=state.progress.at[index].set(progress),
            keys=state.keys.at[index].set(jax.random.key_data(key)),
            told=state.told.at[index].set(jnp.ravel(priorities)[0]),
            masked=state.masked.at[index].set(-1 if mask is None else jnp.sum(mask)),
        )

    def age(self, state, handle):
        return jnp.full(4, state.num_draws)  # behind the update of the priorities

    def mark_break(self, state):
        return state._replace(breaks=state.breaks + 1)


ENV, BUFFER = Counting(), Buffer()


def begun(agent, plan=PLAN):
    return loop.init(jax.random.key(3), agent, BUFFER, ENV, plan)
