"""Evaluations play exactly the asked number of complete episodes, without favoring short ones."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments import environment, spaces

from algorithms import DDQN, Discrete, Torso, environments, evaluate


class Lottery(environment.Environment):
    """Episodes of one step or of nine, as likely; the observation says which."""

    @property
    def default_params(self):
        return environment.EnvParams(max_steps_in_episode=50)

    def reset_env(self, key, params):
        state = environment.EnvState(time=jnp.where(jax.random.bernoulli(key), 1, 9))
        return jnp.ones(1) * state.time, state

    def step_env(self, key, state, action, params):
        state = state.replace(time=state.time - 1)
        return jnp.ones(1) * state.time, state, 1.0 + 0.0 * action, state.time <= 0, {}

    name = "Lottery"

    def action_space(self, params=None):
        return spaces.Discrete(2)


ENV = environments.wrap(Lottery())
AGENT = DDQN(Discrete(2), Torso((4,)))
STATE = AGENT.init(jax.random.key(0), ENV.obs, ())
play = jax.jit(lambda key, num, det: evaluate(AGENT, STATE, ENV, key, num, det), static_argnums=(1, 2))


def test_short_episodes_are_not_favored():
    returns, lengths = play(jax.random.key(1), 1_000, True)
    np.testing.assert_array_equal(returns, lengths)
    assert set(np.unique(lengths)) == {1, 9}
    assert abs(np.mean(lengths) - 5) < 5 * 4 / np.sqrt(1_000)


def test_exactly_the_asked_number():
    returns, lengths = play(jax.random.key(1), 7, True)
    assert returns.shape == lengths.shape == (7,)
    assert jnp.all(lengths > 0)


def test_exploration_only_where_it_is_asked_for():
    env = environments.make("CartPole-v1")
    agent = DDQN(env.action_space, Torso((4,)))
    state = agent.init(jax.random.key(0), env.obs, ())
    lengths = [
        jax.jit(lambda key, det=det: evaluate(agent, state, env, key, 30, det))(jax.random.key(2))[1]
        for det in (True, False)
    ]
    assert jnp.mean(lengths[0]) < 12  # an untrained network keeps pushing one way
    assert jnp.mean(lengths[1]) > 15  # epsilon is 1: a random walk lasts longer


def test_an_environment_without_a_time_limit_needs_one():
    class Endless(Lottery):
        @property
        def default_params(self):
            return None

        def action_space(self, params=None):
            return spaces.Discrete(2)

    env = environments.Environment(Endless(), (), "Endless", Discrete(2))
    with pytest.raises(ValueError, match="Endless has no known time limit"):
        evaluate(AGENT, STATE, env, jax.random.key(0), 3)


@pytest.mark.parametrize("num", [0, -1, 2.5])
def test_bad_numbers_of_episodes(num):
    with pytest.raises(ValueError, match="num_episodes"):
        evaluate(AGENT, STATE, ENV, jax.random.key(0), num)
