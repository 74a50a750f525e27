"""Hindsight: goals of the right episode, environment and time; relabeled before windows are reduced."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models.episodes import goal_candidates
from models.ring import ReferenceRing
from scipy import stats
from support import helpers

import jaxrl_buffers as jb
from jaxrl_buffers.views.hindsight import STRATEGIES

LENGTH, NUM_ENVS, BATCH = 7, 3, 4000
EXAMPLE = jb.Transition(
    obs={"x": np.int32(0), "goal": np.int32(0)},
    action=np.int32(0),
    reward=np.float32(0),
    terminated=np.bool_(False),
    truncated=np.bool_(False),
    next_obs={"x": np.int32(0), "goal": np.int32(0)},
)


def relabel(transition, goal):
    reached = transition.next_obs["x"] == goal
    return transition._replace(
        obs=transition.obs | {"goal": goal},
        next_obs=transition.next_obs | {"goal": goal},
        reward=jnp.where(reached, 1.0, 0.0),
        terminated=reached,
    )


def row(number, ends=False, truncated=False):
    """Return a row whose achieved goal is its number, and whose own goal is -1."""
    here, there = ({"x": np.int32(x), "goal": np.int32(-1)} for x in (number - 1, number))
    return jb.Transition(
        here, np.int32(number), np.float32(7), np.bool_(ends and not truncated), np.bool_(truncated), there
    )


@functools.cache
def filled():
    """Return a buffer past its wrap, with episodes of various lengths in every environment, and its model.

    Its state serves every view that needs no row but the start.
    """
    rng = np.random.default_rng(5)
    buffer = jb.ReplayBuffer(length=LENGTH, num_envs=NUM_ENVS, lockstep=False, keep_episodes=True)
    state, model = buffer.init(EXAMPLE), ReferenceRing(LENGTH, NUM_ENVS)
    for number in range(17):
        rows = [[row(100 * env + number, rng.random() < 0.25, rng.random() < 0.1) for env in range(NUM_ENVS)]]
        mask = rng.random((1, NUM_ENVS)) < 0.8
        state = helpers.add(buffer, state, helpers.stack(rows), mask=mask)
        model.add([[one._asdict() for one in rows[0]]], mask=mask)
    return buffer, state, model


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_goals_are_of_the_right_episode_environment_and_time(strategy):
    """Every goal that may be chosen is, equally often; no other one ever."""
    view = jb.Hindsight(achieved="next_obs.x", relabel=relabel, strategy=strategy, ratio=1.0)
    buffer, state, model = filled()
    sample = helpers.sample(buffer.replace(view=view), state, jax.random.key(0), batch_size=BATCH)
    starts = np.stack(sample.handle, axis=1)
    goals = np.asarray(sample.batch.obs["goal"])
    np.testing.assert_array_equal(goals, sample.batch.next_obs["goal"])
    seen_crossing = False
    for env in range(NUM_ENVS):
        for position, _ in model.in_order(env):
            mine = goals[(starts == (env, position)).all(axis=1)]
            candidates = goal_candidates(model, env, position, strategy)
            allowed = [int(model.record(*one)["next_obs"]["x"]) for one in candidates]
            seen_crossing |= any(one[1] // LENGTH != position // LENGTH for one in candidates)
            assert set(mine.tolist()) == (set(allowed) if allowed else {-1})
            if len(allowed) > 1:
                assert stats.chisquare([(mine == goal).sum() for goal in allowed]).pvalue > 1e-4
    assert seen_crossing  # an episode lay across the end of the ring


def test_ratio_says_how_many_samples_are_relabeled():
    view = jb.Hindsight(achieved="next_obs.x", relabel=relabel, strategy="future", ratio=0.5)
    buffer, state, _ = filled()
    buffer = buffer.replace(view=view)
    for ratio in (0.5, 0.2, 0.0, 1.0):
        changed = jb.with_parameters(buffer, {"view.ratio": ratio})
        goals = np.asarray(helpers.sample(changed, state, jax.random.key(1), batch_size=BATCH).batch.obs["goal"])
        assert abs((goals >= 0).mean() - ratio) < 5 * np.sqrt(ratio * (1 - ratio) / BATCH) + 1e-9


def test_the_identity_changes_nothing():
    buffer, state, _ = filled()
    expected = every_start(buffer.replace(view=jb.NStep(3, 0.9)), state)
    view = jb.Hindsight(jb.NStep(3, 0.9), achieved=lambda row: row.action, relabel=lambda row, _: row, ratio=1.0)
    for strategy in ("future", "random"):
        changed = buffer.replace(view=view.replace(strategy=strategy))
        jax.tree.map(np.testing.assert_array_equal, every_start(changed, state), expected)


@jax.jit
def every_start(buffer, state):
    sample, legal = helpers.every_slot(buffer, state)
    return jax.tree.map(lambda leaf: jnp.where(legal.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, 0), sample)


def test_reward_and_termination_are_recomputed_and_stored_rows_untouched():
    view = jb.Hindsight(jb.NStep(1, 0.9), achieved="next_obs.x", relabel=relabel, strategy="future", ratio=1.0)
    buffer, state, _ = filled()
    before = jax.tree.map(np.array, state)
    batch = helpers.sample(buffer.replace(view=view), state, jax.random.key(2), batch_size=BATCH).batch
    reached = np.asarray(batch.obs["goal"] == batch.next_obs["x"])
    assert 0 < reached.sum() < BATCH
    np.testing.assert_array_equal(batch.reward, reached.astype(np.float32))
    np.testing.assert_allclose(batch.discount, np.where(reached, 0, 0.9), rtol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, before, state)


def goals_by_window(buffer, state):
    """Return for every start its number, goal, reward, discount and last observation."""
    sample, legal = helpers.every_slot(buffer, state)
    batch = jax.tree.map(lambda leaf: np.asarray(leaf)[np.asarray(legal)], sample.batch)
    return zip(batch.action, batch.obs["goal"], batch.reward, batch.discount, batch.next_obs["x"], strict=True)


def test_windows_stop_where_the_new_goal_is_reached_and_at_the_old_end():
    """Rows 0..5: the episode of 0..3 terminated for its own goal, which its new goal does not call for."""
    view = jb.Hindsight(jb.NStep(3, 0.5), achieved="next_obs.x", relabel=relabel, strategy="random", ratio=1.0)
    buffer = jb.ReplayBuffer(view=view, length=6)
    state = buffer.init(EXAMPLE)
    for number in range(6):
        state = helpers.add(buffer, state, helpers.stack([[row(number, ends=number == 3)]]))
    for number, goal, reward, discount, last in goals_by_window(buffer, state):
        end = min(number + 2, 3 if number <= 3 else 5)
        reached = number <= goal <= end
        steps = (goal if reached else end) - number + 1
        assert last == number + steps - 1
        assert reward == (0.5 ** (steps - 1) if reached else 0)
        assert discount == (0 if reached else 0.5**steps)


def test_one_goal_for_all_rows_of_a_sequence():
    view = jb.Hindsight(jb.Sequence(3), achieved="next_obs.x", relabel=relabel, strategy="future", ratio=0.7)
    buffer = jb.ReplayBuffer(jb.Prioritized(), view, length=9)
    rows = [[row(number, ends=number % 5 == 4)] for number in range(9)]
    state = helpers.add(buffer, buffer.init(EXAMPLE), helpers.stack(rows))
    sample = helpers.sample(buffer, state, jax.random.key(3), batch_size=200)
    goals = np.asarray(sample.batch.obs["goal"])
    assert (goals == goals[:, :1]).all()
    assert {True, False} == set((goals[:, 0] >= 0).tolist())
    relabeled = goals[:, 0] >= 0
    reached = np.asarray(sample.batch.next_obs["x"]) == goals
    np.testing.assert_array_equal(sample.batch.reward[relabeled], reached[relabeled])
    assert (np.asarray(sample.batch.reward)[~relabeled] == 7).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "last"}, "'final', 'future', 'episode', 'random'"),
        ({"ratio": 1.5}, r"ratio=1\.5.*at most 1"),
        ({"relabel": "distance"}, "pass a function"),
        ({"relabel": jb.NStep()}, r"relabel=NStep\(.*pass a function"),
        ({"relabel": jb.Sequence}, "pass a function"),
        ({"achieved": jb.NStep()}, r"achieved=NStep\(.*pass the name of a field"),
        ({"achieved": 0}, "achieved=0.*pass the name of a field"),
    ],
)
def test_bad_construction(options, message):
    with pytest.raises(ValueError, match=message):
        jb.Hindsight(**({"achieved": "next_obs.x", "relabel": relabel} | options))


def test_bad_relabelling():
    build = functools.partial(jb.hindsight, 4, achieved="next_obs.x")
    with pytest.raises(ValueError, match=r"Hindsight needs the field 'next_obs\.y'"):
        build(relabel=relabel, achieved="next_obs.y").init(EXAMPLE)
    for broken, message in (
        (lambda transition, goal: transition._asdict(), "return the same structure"),
        (lambda transition, goal: transition._replace(action=jnp.zeros(2, jnp.int32)), "must keep the shapes"),
    ):
        buffer = build(relabel=broken)
        state = buffer.init(EXAMPLE)
        with pytest.raises(ValueError, match=message):
            jax.eval_shape(functools.partial(buffer.sample, batch_size=2), state, jax.random.key(0))
