"""How the wrapper `Recurrent` turns sequences and rollouts into rows with histories."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.inner import Inner, State

from algorithms import DDQN, Discrete, Normalized, Recurrent, Torso
from algorithms.types import StepInfo
from algorithms.wrappers.recurrence import flatten
from jaxrl_buffers import Batch, Sample, Transition
from jaxrl_buffers.rollouts import RolloutBatch
from jaxrl_buffers.views.sequence import sum_rows

KEY = jax.random.key(5)


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


@pytest.mark.parametrize("inner", [Normalized(DDQN(Discrete(2))), Inner()])
def test_memories_need_an_agent_with_networks(inner):
    with pytest.raises(ValueError, match=r"MemoryAgent.*put other wrappers outside"):
        Recurrent(inner)
