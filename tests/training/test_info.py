"""Numbers that an environment tells by its info are stored with steps, and averaged into metrics."""

from __future__ import annotations

import dataclasses

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import jaxrl_buffers as jb
from algorithms import DDQN, PPO, Plan, Torso, environments, train, train_on_host
from algorithms.environments.gymnasium import from_factory, from_vectors
from algorithms.runs import command_line
from algorithms.runs.build import build

PLAN = Plan(40, num_envs=2, start_steps=16, update_every=8, num_updates=2, mini_batch_size=4, test_every=24)


def test_what_gymnax_tells_is_stored_and_averaged():
    env = environments.make("CartPole-v1").with_info(("discount",))
    agent = DDQN(env.action_space, Torso((8,)))
    buffer, plan = jb.uniform(80, num_envs=2), dataclasses.replace(PLAN, total_steps=160, test_every=0)
    state, metrics = train(jax.random.key(0), agent, buffer, env, plan)
    rows = jb.host.gather_all(buffer, state.buffer)
    told = np.asarray(rows.extras["info"]["discount"])
    np.testing.assert_array_equal(told, 1 - np.asarray(rows.terminated | rows.truncated, np.float32))
    assert (told.min(), told.max()) == (0, 1)
    np.testing.assert_allclose(metrics["info_discount"], [told[8:].mean()], rtol=1e-5)
    np.testing.assert_array_equal(metrics["info_discount_at_end"], [0])
    sample = buffer.sample(state.buffer, jax.random.key(1), 4)
    assert sample.batch.extras["info"]["discount"].shape == (4,)


def test_agents_with_extras_of_their_own_keep_them():
    env = environments.make("CartPole-v1").with_info(("discount",))
    plan = Plan(64, 2, start_steps=0, update_every=32, num_updates=2, mini_batch_size=16, test_every=0)
    _, metrics = train(jax.random.key(0), PPO(env.action_space, Torso((8,))), jb.rollout(16, 2), env, plan)
    assert 0.5 < float(metrics["info_discount"][0]) <= 1


class Telling(gymnasium.Env):
    """Counts its steps, and tells the number."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.number += 1
        return np.zeros(1, np.float32), 1.0, False, self.number == 5, {"number": self.number}


def test_what_gymnasium_tells_is_stored_and_averaged(key):
    env = from_factory(lambda: gymnasium.wrappers.TimeLimit(Telling(), 5), "Telling").with_info(("number",))
    agent, buffer = DDQN(env.action_space, Torso((8,))), jb.uniform(40, num_envs=2)
    env = dataclasses.replace(env, max_episode_length=5)  # which Gymnasium knows only of registered environments
    state, metrics = train_on_host(key, agent, buffer, env, PLAN)
    told = np.asarray(jb.host.gather_all(buffer, state.buffer).extras["info"]["number"])
    np.testing.assert_array_equal(told, (np.arange(20)[:, None] % 5 + 1) * np.ones(2))
    np.testing.assert_allclose(metrics["info_number"], [told[8:].mean()], rtol=1e-5)
    np.testing.assert_array_equal(metrics["info_number_at_end"], [5])
    assert not [name for name in metrics if "count" in name]
    with pytest.raises(ValueError, match="Telling gave no info 'speed' in a whole episode; it has: number"):
        train_on_host(key, agent, buffer, env.with_info(("speed",)), PLAN)


class TellingLate(Telling):
    """Tells its score only with the last step of an episode, and a number with all but the last."""

    def step(self, action):
        *told, truncated, _ = super().step(action)
        return *told, truncated, {"score": 10.0} if truncated else {"early": self.number}


@pytest.mark.parametrize("mode", AutoresetMode)
def test_what_only_some_steps_tell(key, mode):
    """Steps that do not tell a number do not count; the number of the last step is not that of the reset."""

    def vectors(num_envs):
        return SyncVectorEnv([TellingLate] * num_envs, autoreset_mode=mode)

    env = dataclasses.replace(from_vectors(vectors, "Late"), max_episode_length=5).with_info(("score", "early"))
    agent, buffer = DDQN(env.action_space, Torso((8,))), jb.uniform(40, num_envs=2)
    state, metrics = train_on_host(key, agent, buffer, env, PLAN)
    told = jb.host.gather_all(buffer, state.buffer).extras["info"]
    number = np.arange(20)[:, None] % 5 + 1 + np.zeros((1, 2))
    np.testing.assert_array_equal(told["score"], np.where(number == 5, 10, np.nan))
    np.testing.assert_array_equal(told["early"], np.where(number == 5, np.nan, number))
    np.testing.assert_array_equal(metrics["info_score"], [10])
    np.testing.assert_array_equal(metrics["info_score_at_end"], [10])
    np.testing.assert_allclose(metrics["info_early"], [np.nanmean(told["early"][8:])], rtol=1e-6)
    assert np.isnan(metrics["info_early_at_end"]).all()


def test_info_that_is_no_number_is_refused(key):
    class Words(Telling):
        def step(self, action):
            return *super().step(action)[:4], {"name": "x", "pair": np.zeros(2)}

    for name in ("name", "pair"):
        env = dataclasses.replace(from_factory(Words, "Words"), max_episode_length=5).with_info((name,))
        steps = env.start(2, seed=0)
        with pytest.raises(ValueError, match=f"Words has an info '{name}' that is not one number"):
            steps.step(np.zeros(2, int))
        steps.close()


def test_the_metrics_go_on_through_offline_updates(key):
    """Offline updates have no new rows, and so nothing told."""
    env = environments.make("CartPole-v1").with_info(("discount",))
    agent, buffer = DDQN(env.action_space, Torso((8,))), jb.uniform(80, num_envs=2)
    plan = dataclasses.replace(PLAN, offline_updates=4, test_every=8)
    rows = jax.tree.map(lambda leaf: np.ones((20, 2, *leaf.shape), leaf.dtype), env.transition())
    stored = buffer.add(buffer.init(env.transition()), rows)
    _, metrics = train(key, agent, buffer, env, plan, buffer_state=stored)
    told = np.asarray(metrics["info_discount"])
    assert np.isnan(told[metrics["steps"] == 0]).all()
    assert np.isfinite(told[metrics["steps"] > 0]).all()


def test_names_on_the_command_line():
    command = command_line.parse(["ddqn", "CartPole-v1", "--info", "discount"])
    assert build(command.settings).env.transition().extras["info"].keys() == {"discount"}
    assert type(command.settings).from_dict(command.settings.to_dict()).info == ("discount",)
    with pytest.raises(ValueError, match="not every step of CartPole-v1 has the info 'speed'; choose from: discount"):
        build(command_line.parse(["ddqn", "CartPole-v1", "--info", "speed"]).settings)
