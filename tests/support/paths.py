"""Paths for rollouts, and a slow model of their advantages and returns."""

from __future__ import annotations

import jax
import numpy as np

import jaxrl_buffers as jb

GAMMA, LAMBDA = 0.9, 0.8
GOLDEN_ADVANTAGE, GOLDEN_RETURN = [5.14792, 5.136, 3.8], [6.688, 6.32, 4.8]

add, finish_path, batch_of = jb.Rollout.add, jb.Rollout.finish_path, jb.Rollout.batch


def make(length, num_envs=1, **options):
    options = {"gamma": GAMMA, "gae_lambda": LAMBDA, "normalize": False, "returns": "rewards_to_go"} | options
    rollout = jb.rollout(length, num_envs, **options)
    return rollout, rollout.init(steps([[0.0]], [[0.0]], unbatched=True))


def steps(reward, value, terminated=None, truncated=None, obs=None, unbatched=False):
    """Return transitions `[K, N]` whose observation is their number, by default counted from 0."""
    reward = np.asarray(reward, np.float32)
    numbers = np.arange(reward.size, dtype=np.int32).reshape(reward.shape) if obs is None else np.asarray(obs, np.int32)
    no = np.zeros(reward.shape, bool)
    chunk = jb.Transition(
        obs=numbers,
        action=-numbers,
        reward=reward,
        terminated=no if terminated is None else np.asarray(terminated, bool),
        truncated=no if truncated is None else np.asarray(truncated, bool),
        next_obs=(),
        extras={"value": np.asarray(value, np.float32), "log_prob": numbers.astype(np.float32)},
    )
    return jax.tree.map(lambda leaf: leaf[0, 0], chunk) if unbatched else chunk


def column(values):
    return np.asarray(values)[:, None]


GOLDEN = steps(column([1, 2, 3]), column([0, 0.5, 1]))


def reference_path(reward, value, last_value, gamma=GAMMA, lam=LAMBDA):
    """Return the advantages and rewards-to-go of one path, each by its defining sum."""
    value = [*value, last_value]
    count = len(reward)
    delta = [reward[t] + gamma * value[t + 1] - value[t] for t in range(count)]
    advantage = [sum((gamma * lam) ** (i - t) * delta[i] for i in range(t, count)) for t in range(count)]
    returns = [
        sum(gamma ** (i - t) * reward[i] for i in range(t, count)) + gamma ** (count - t) * last_value
        for t in range(count)
    ]
    return advantage, returns


def random_chunk(rng, num_rows, num_envs, first=0):
    shape = (num_rows, num_envs)
    numbers = np.arange(first * num_envs, (first + num_rows) * num_envs).reshape(shape)
    ends = rng.random(shape)
    return steps(rng.normal(size=shape), rng.normal(size=shape), ends < 0.15, (ends > 0.1) & (ends < 0.3), numbers)
