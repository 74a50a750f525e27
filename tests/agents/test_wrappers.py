"""What wrappers hand to the agent inside of them, with an agent that returns what it gets."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.inner import Inner, State

import jaxrl_buffers as jb
from algorithms import DDQN, PPO, Averaged, Discrete, Normalized, Recurrent, Torso
from algorithms.types import Agent
from algorithms.wrappers.normalization import Moments, NormalizedState
from jaxrl_buffers import Batch, Sample, Transition
from jaxrl_buffers.rollouts import RolloutBatch

OBS = jnp.array([[1.0, 5.0], [3.0, 9.0]])  # two environments
SEEN = jnp.array([[0.0, 1.0], [2.0, 3.0]])  # less the mean (1, 3), by the deviation (1, 2)
KEY = jax.random.key(5)
GRU = Torso(memory="gru", memory_size=4)


def chunk_of(obs):
    """Return one row of both environments."""
    return Transition(obs[None], (), jnp.zeros((1, 2)), (), (), obs[None] + 1)


def normalized():
    moments = (Moments(jnp.array([1.0, 3.0]), jnp.array([1.0, 4.0])),)
    return Normalized(Inner()), NormalizedState(State(jnp.zeros(2)), jnp.float32(6), moments)


def averaged():
    agent = Averaged(Inner(), 0.75)
    return agent, agent.init(KEY, OBS, "action")._replace(params=jnp.full(2, 5.0))


@pytest.mark.parametrize("make", [normalized, averaged])
def test_what_the_agent_is_like_is_what_the_wrapper_is_like(make):
    agent, _ = make()
    assert (agent.action_space, agent.learns_from_columns) == ("space", True)
    assert agent.initial_carry(4) == "carry of 4"


def test_an_average_begins_with_the_parameters_and_follows_them():
    agent = Averaged(Inner(), 0.75)
    state = agent.init(KEY, OBS, "action")
    assert state.agent.other == (KEY, OBS, "action")
    np.testing.assert_array_equal(state.params, [1, 1])
    after = agent.apply(state, jnp.array([4.0, -4.0]))
    np.testing.assert_array_equal(after.agent.params, [5, -3])
    np.testing.assert_allclose(after.params, [0.75 + 0.25 * 5, 0.75 - 0.25 * 3])


def test_only_what_counts_goes_by_the_average():
    agent, state = averaged()
    by_average = state.agent._replace(params=state.params)
    assert agent.act(state, OBS, "carry", KEY) == ("act", (state.agent, OBS, "carry", KEY, False))
    assert agent.act(state, OBS, "carry", KEY, True) == ("act", (by_average, OBS, "carry", KEY, True))
    assert agent.distribution(state, OBS) == ("distribution", (by_average, OBS))
    assert agent.values(state, "chunk") == ("values", (state.agent, "chunk"))
    assert agent.gradients(state, "sample", KEY) == ("gradients", (state.agent, "sample", KEY))
    observed = agent.observe(state, "chunk")
    assert (observed.agent.other, observed.params is state.params) == ("chunk", True)


def test_the_agent_sees_normalized_observations():
    agent, state = normalized()

    def check(found, name, before, seen, *after):
        told, arguments = found
        assert told == name
        assert arguments[: len(before)] == before
        np.testing.assert_allclose(arguments[len(before)], seen, atol=1e-5)
        assert arguments[len(before) + 1 :] == after

    check(agent.act(state, OBS, "carry", KEY), "act", (state.agent,), SEEN, "carry", KEY, False)
    check(agent.act(state, OBS, "carry", KEY, True), "act", (state.agent,), SEEN, "carry", KEY, True)
    check(agent.distribution(state, OBS), "distribution", (state.agent,), SEEN)
    name, (inner, chunk) = agent.values(state, chunk_of(OBS))
    assert (name, inner) == ("values", state.agent)
    np.testing.assert_allclose(chunk.obs[0], SEEN, atol=1e-5)
    np.testing.assert_allclose(chunk.next_obs[0], SEEN + jnp.array([[1.0, 0.5]]), atol=1e-5)


def test_batches_are_normalized_where_they_have_observations():
    agent, state = normalized()
    batch = Batch(OBS, "action", "reward", "discount", OBS + 1, "mask")
    name, (inner, sample, key) = agent.gradients(state, Sample(batch, "handle", "weights"), KEY)
    assert (name, inner, key) == ("gradients", state.agent, KEY)
    assert sample[1:] == ("handle", "weights")
    np.testing.assert_allclose(sample.batch.obs, SEEN, atol=1e-5)
    np.testing.assert_allclose(sample.batch.next_obs, SEEN + jnp.array([[1.0, 0.5]]), atol=1e-5)
    rollout = RolloutBatch(OBS, "action", "advantage", "return", "mask", {})
    _, (_, sample, _) = agent.gradients(state, Sample(rollout, (), "weights"), KEY)
    np.testing.assert_allclose(sample.batch.obs, SEEN, atol=1e-5)
    assert sample.batch[1:] == rollout[1:]


def test_observing_merges_statistics():
    """Six rows with mean (1, 3) and variance (1, 4), and then two more."""
    agent, state = normalized()
    chunk = chunk_of(OBS)
    after = agent.observe(state, chunk)
    assert after.agent.other is chunk
    assert after.num_observed == 8
    mean = (6 * np.array([1.0, 3.0]) + np.array([4.0, 14.0])) / 8
    square = (6 * np.array([1 + 1.0, 4 + 9.0]) + np.array([1 + 9.0, 25 + 81.0])) / 8
    np.testing.assert_allclose(after.moments[0].mean, mean, rtol=1e-6)
    np.testing.assert_allclose(after.moments[0].variance, square - mean**2, rtol=1e-5)
    stepped = agent.apply(after, 2.0)
    np.testing.assert_array_equal(stepped.agent.params, [2, 2])
    assert stepped[1:] == after[1:]


def test_normalized_observations_are_clipped_and_the_unknown_are_as_they_are():
    agent = Normalized(Inner(), clip=2.5)
    first = agent.init(KEY, {"x": jnp.zeros(2), "n": jnp.zeros(1, jnp.int32)}, "action")
    assert first.agent.other[0] is KEY
    assert (first.num_observed, len(first.moments), first.moments[0]) == (0, 2, ())
    seen = agent.normalize(first, {"x": jnp.array([[-9.0, 2.0]]), "n": jnp.array([[9]])})
    np.testing.assert_allclose(seen["x"], [[-2.5, 2.0]], rtol=1e-5)
    assert seen["n"].tolist() == [[9]]
    half = agent.normalize(first, {"x": jnp.ones((1, 2), jnp.bfloat16), "n": jnp.array([[9]])})
    assert half["x"].dtype == jnp.bfloat16


def whole(name, **config):
    return {"name": name, "config": config}


SPACE = whole("Discrete", num_actions=2)
REMEMBERING = whole("DDQN", action_space=SPACE, torso=whole("Torso", memory="gru", memory_size=4))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (whole("Averaged", agent=whole("DDQN", action_space=SPACE), rate=0.9), Averaged(DDQN(Discrete(2)), 0.9)),
        (whole("Normalized", agent=whole("PPO", action_space=SPACE), clip=5), Normalized(PPO(Discrete(2)), 5.0)),
        (whole("Recurrent", agent=REMEMBERING), Recurrent(DDQN(Discrete(2), GRU))),
        (
            whole("Normalized", agent=whole("Averaged", agent=whole("Recurrent", agent=REMEMBERING))),
            Normalized(Averaged(Recurrent(DDQN(Discrete(2), GRU)))),
        ),
    ],
)
def test_wrappers_come_from_dicts(config, expected):
    agent = jb.from_config(config)
    assert agent == expected
    assert jb.from_config(jb.to_config(agent)) == agent
    assert isinstance(agent, Agent)
