"""What wrappers hand to the agent inside of them, with an agent that returns what it gets."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl_buffers as jb
from algorithms import DDQN, PPO, Averaged, Discrete, Normalized, Recurrent, Torso
from algorithms.types import Agent, StepInfo
from algorithms.wrappers.normalization import Moments, NormalizedState
from algorithms.wrappers.recurrence import flatten
from jaxrl_buffers import Batch, Sample, Transition
from jaxrl_buffers.rollouts import RolloutBatch
from jaxrl_buffers.views.sequence import sum_rows

OBS = jnp.array([[1.0, 5.0], [3.0, 9.0]])  # two environments
SEEN = jnp.array([[0.0, 1.0], [2.0, 3.0]])  # less the mean (1, 3), by the deviation (1, 2)
KEY = jax.random.key(5)
GRU = Torso(memory="gru", memory_size=4)


class State(NamedTuple):
    """Of the agent inside."""

    params: Any
    other: Any = 7


class Inner:
    """Names every method's arguments."""

    action_space, learns_from_columns = "space", True

    def init(self, *args):
        return State(jnp.ones(2), args)

    def initial_carry(self, num_envs):
        return f"carry of {num_envs}"

    def act(self, *args):
        return "act", args

    def distribution(self, *args):
        return "distribution", args

    def values(self, *args):
        return "values", args

    def observe(self, state, chunk):
        return state._replace(other=chunk)

    def gradients(self, *args):
        return "gradients", args

    def apply(self, state, grads):
        return state._replace(params=state.params + grads)


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


class Remembering(Inner):
    """An agent with memories of one policy and two critics; values are observations, errors are rewards."""

    torso, roles = Torso(memory="gru", memory_size=3), (("actor", ()), ("critic", (2,)))

    def value(self, state, history):
        return (history.obs if history.following is None else history.following).reshape(-1)

    def gradients(self, state, sample, key):
        return (state, sample, key), StepInfo(sample.batch.reward, {})


def sequences(mask):
    """Return two sequences of three rows; the first one begins an episode."""
    obs = jnp.arange(6.0).reshape(2, 3)
    extras = {"carry": {"critic": jnp.ones((2, 3)), "is_first": jnp.array([True, False])}, "goal": -obs}
    batch = Batch(obs, obs + 10, obs + 20, jnp.full((2, 3), 0.5), obs + 1, jnp.array(mask), extras)
    return Sample(batch, "handle", jnp.array([2.0, 4.0]))


def test_sequences_become_rows_with_histories():
    mask = [[False, True, True], [True, True, False]]
    given = sequences(mask)
    batch, handle, weights = flatten(given)
    assert handle == "handle"
    np.testing.assert_allclose(weights, np.array([0, 2, 2, 4, 4, 0]) * 6 / 4)
    np.testing.assert_array_equal(batch.action, np.arange(6) + 10)
    np.testing.assert_array_equal(batch.reward, np.arange(6) + 20)
    np.testing.assert_array_equal(batch.discount, 0.5)
    assert batch.extras.keys() == {"goal"}
    history = batch.obs
    assert (history.obs is given.batch.obs, history.carry.keys()) == (True, {"critic"})
    np.testing.assert_array_equal(history.is_first, [[True, False, False], [False] * 3])
    np.testing.assert_array_equal(history.is_burn_in, [[True, False, False], [False] * 3])
    assert batch.next_obs.following is given.batch.next_obs
    assert batch.next_obs.last is None
    np.testing.assert_array_equal(flatten(sequences([[False] * 3] * 2)).weights, 0)


def test_targets_of_several_steps_say_which_row_they_end_with():
    sample = sequences([[False, True, True], [True, True, False]])
    batch = flatten(sample._replace(batch=sum_rows(sample.batch, 2))).batch
    np.testing.assert_array_equal(batch.reward[1:5], [21 + 22 / 2, 22, 23 + 24 / 2, 24])
    np.testing.assert_array_equal(batch.discount[1:5], [0.25, 0.5, 0.25, 0.5])
    np.testing.assert_array_equal(batch.next_obs.last.reshape(-1)[1:5], [2, 2, 1, 1])
    assert batch.num_steps is None


def test_rollouts_become_rows_with_the_memories_of_their_first():
    obs, is_first = jnp.arange(6.0).reshape(2, 3), jnp.array([[False, True, False], [True, False, True]])
    carry = {"actor": jnp.arange(12.0).reshape(2, 3, 2), "is_first": is_first}
    given = RolloutBatch(obs, obs, obs + 1, obs + 2, jnp.ones((2, 3), bool), {"carry": carry, "log_prob": obs})
    batch, _, weights = flatten(Sample(given, (), jnp.array([[1.0] * 3, [0.0, 1.0, 1.0]])))
    np.testing.assert_array_equal(weights, [1, 1, 1, 0, 1, 1])
    np.testing.assert_array_equal(batch.obs.is_first, is_first)
    np.testing.assert_array_equal(batch.obs.carry["actor"], [[0, 1], [6, 7]])
    np.testing.assert_array_equal(batch.advantage, np.arange(6) + 1)
    assert batch.extras.keys() == {"log_prob"}
    assert batch.obs.is_burn_in is None


def test_memories_are_handed_on():
    agent = Recurrent(Remembering())
    assert (agent.action_space, agent.learns_from_columns) == ("space", True)
    inner, memories = agent.initial_carry(4)
    assert inner == "carry of 4"
    assert {name: memory.shape for name, memory in memories.items()} == {
        "actor": (4, 3),
        "critic": (4, 2, 3),
        "is_first": (4,),
    }
    assert all(jnp.all(memory == value) for memory, value in zip(memories.values(), (0, 0, True), strict=True))
    key, history, action = agent.init(KEY, jnp.zeros(5), jnp.zeros((), jnp.int32)).other
    assert (key, history.obs.shape, history.carry, history.is_first.shape) == (KEY, (1, 5), None, (1,))
    assert (action.shape, action.dtype) == ((1,), jnp.int32)
    state = State(jnp.ones(1), "before")
    assert agent.observe(state, "chunk").other == "chunk"
    np.testing.assert_array_equal(agent.apply(state, 2.0).params, [3])
    sample = sequences([[True] * 3] * 2)
    (given, rows, key), info = agent.gradients("state", sample, KEY)
    assert (given, key) == ("state", KEY)
    np.testing.assert_array_equal(rows.batch.reward, flatten(sample).batch.reward)
    np.testing.assert_array_equal(info.priorities, rows.batch.reward.reshape(2, 3))


def test_rollouts_are_valued_by_columns():
    agent, obs = Recurrent(Remembering()), jnp.arange(6.0).reshape(3, 2)  # three rows, two environments
    carry = {"critic": jnp.zeros((3, 2, 2, 3)), "is_first": jnp.zeros((3, 2), bool)}
    chunk = Transition(obs, (), obs, obs, obs, obs + 10, {"carry": carry})
    value, next_value = agent.values("state", chunk)
    np.testing.assert_array_equal(value, obs)
    np.testing.assert_array_equal(next_value, obs + 10)


def test_the_agent_still_sums_up_rewards_when_asked_to():
    sample = sequences([[False, True, True], [True, True, False]])
    with pytest.warns(DeprecationWarning, match=r"n_step.*Sequence\(\.\.\., n=2\)"):
        agent = Recurrent(Remembering(), n_step=2)
    (_, rows, _), _ = agent.gradients("state", sample, KEY)
    expected = flatten(sample._replace(batch=sum_rows(sample.batch, 2)))
    jax.tree.map(np.testing.assert_array_equal, rows.batch, expected.batch)


@pytest.mark.parametrize("n_step", [0, 1.5])
def test_targets_need_a_step(n_step):
    with pytest.raises(ValueError, match="n_step"):
        Recurrent(Remembering(), n_step=n_step)


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


@pytest.mark.parametrize("inner", [Normalized(DDQN(Discrete(2))), Inner()])
def test_memories_need_an_agent_with_networks(inner):
    with pytest.raises(ValueError, match=r"MemoryAgent.*other wrappers go around Recurrent"):
        Recurrent(inner)
