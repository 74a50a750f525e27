"""A task that only agents with a memory can solve."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment, spaces

import jaxrl_buffers as jb
from algorithms import DDQN, PPO, SAC, Discrete, Plan, Recurrent, Torso, environments, train


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
    buffer = jb.sequences(1_000, num_envs=4, sequence_length=6, burn_in=1, n=2)
    assert final_return(Recurrent(agent), buffer, PLAN, key) > 0.9
    agent = agent.replace(torso=Torso((16,)))
    assert final_return(agent, jb.uniform(1_000, num_envs=4), PLAN, key) < 0.6


def test_ppo_recalls(key):
    agent = Recurrent(PPO(Discrete(2), SMALL, learning_rate_pi=5e-3, learning_rate_v=5e-3))
    plan = Plan(9_600, num_envs=16, start_steps=0, update_every=128, num_updates=8, mini_batch_size=32, test_every=0)
    assert final_return(agent, jb.rollout(8, 16), plan, key) > 0.9


def test_sac_recalls_with_priorities_of_sequences(key):
    agent = SAC(Discrete(2), SMALL, learning_rate_q=5e-3, learning_rate_pi=5e-3, polyak=0.9, max_grad_norm=10.0)
    agent = Recurrent(agent.replace(learn_alpha=False, initial_alpha=0.01))
    buffer = jb.ReplayBuffer(jb.Prioritized(eta=0.9), jb.Sequence(6, burn_in=1), length=1_000, num_envs=4)
    assert final_return(agent, buffer, PLAN, key) > 0.9


def final_return(agent, buffer, plan, key):
    env = environments.wrap(Recall())
    plan = Plan(**(vars(plan) | {"num_test_episodes": 50}))
    _, metrics = jax.jit(lambda key: train(key, agent, buffer, env, plan))(key)
    return metrics["returns"][-1].mean()
