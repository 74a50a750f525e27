"""Training on observations of several kinds at once, and the policy that comes of it."""

from __future__ import annotations

import gymnasium
import jax
import numpy as np

import jaxrl_buffers as jb
from algorithms import DDQN, Plan, Policy, Torso, train_on_host
from algorithms.environments.gymnasium import from_factory

SPACE = gymnasium.spaces.Dict(
    {
        "image": gymnasium.spaces.Box(0, 255, (8, 8, 3), np.uint8),
        "choice": gymnasium.spaces.Discrete(3, start=1),
        "choices": gymnasium.spaces.MultiDiscrete([3, 2]),
        "place": gymnasium.spaces.Box(-1, 1, (2,), np.float64),
    }
)


class Guess(gymnasium.Env):
    """The reward is 1 for the action that the second choice shows."""

    observation_space, action_space = SPACE, gymnasium.spaces.Discrete(2, start=4)

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.observation_space.seed(seed)
        self.shown = self.observation_space.sample()
        return self.shown, {}

    def step(self, action):
        assert action in self.action_space
        reward = float(action - 4 == self.shown["choices"][1])
        self.shown = self.observation_space.sample()
        return self.shown, reward, False, False, {}


def test_an_agent_learns_from_a_dict_of_images_and_choices(key):
    env = from_factory(lambda: gymnasium.wrappers.TimeLimit(Guess(), 8), "Guess")
    agent = DDQN(env.action_space, Torso((16,), channels=(4,)), learning_rate=3e-3)
    buffer = jb.ReplayBuffer(view=jb.NStep(1, gamma=0.0), length=800, num_envs=2)
    plan = Plan(1_600, 2, start_steps=200, update_every=20, num_updates=20, mini_batch_size=32, test_every=1_400)
    state, metrics = train_on_host(key, agent, buffer, env, plan)
    stored = jb.host.gather_all(buffer, state.buffer).obs
    assert {name: (leaf.shape[2:], leaf.dtype) for name, leaf in stored.items()} == {
        "image": ((8, 8, 3), np.uint8),
        "choice": ((3,), np.bool_),
        "choices": ((5,), np.bool_),
        "place": ((2,), np.float32),
    }
    assert np.mean(metrics["returns"]) > 6  # of 8; by chance 4
    policy, samples = Policy(agent, state.agent, env), [SPACE.sample() for _ in range(40)]
    actions = policy(jax.tree.map(lambda *leaves: np.stack(leaves), *samples))
    assert set(actions.tolist()) == {4, 5}
    assert np.mean(actions - 4 == [one["choices"][1] for one in samples]) > 0.7
    assert policy(samples[0]) == actions[0]
