"""Runs that continue with new environments: nothing that was stored is continued by what follows."""

from __future__ import annotations

import dataclasses
import functools
import json
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import helpers

import jaxrl_buffers as jb
from algorithms import Plan
from algorithms.runs import run
from algorithms.runs.build import build
from algorithms.runs.run_folder import RunFolder
from algorithms.runs.settings import Settings
from algorithms.runs.side_by_side import shapes_of_all
from algorithms.training import loop

PLAN = Plan(
    total_steps=148,
    num_envs=4,
    start_steps=68,
    update_every=4,
    num_updates=1,
    mini_batch_size=16,
    test_every=0,
    num_test_episodes=2,
)
# Long episodes that no random walk finishes: all are under way when they are broken off.
SETTINGS = Settings("ddqn", "BitFlip50-v0", PLAN, hindsight="future", n_step=3, capacity=400, hidden_sizes=(8,))
ENVS = jnp.arange(4, dtype=jnp.int32)


@functools.cache
def programs():
    agent, buffer, env, plan = build(SETTINGS)
    init = jax.jit(lambda: loop.init(jax.random.key(0), agent, buffer, env, plan))
    begin_anew = jax.jit(lambda state: loop.begin_anew(state, agent, buffer, env))
    advance = jax.jit(lambda state: loop.run(state, agent, buffer, env, plan, 10))
    return buffer, init, begin_anew, advance


def windows(buffer, state):
    """Return the last row that the window of every slot sees, `[T, N, ...]`, with real goals."""
    sample, _ = helpers.every_slot(buffer.replace(view=buffer.view.view), state.buffer)
    return jax.tree.map(lambda leaf: np.asarray(leaf).reshape(buffer.length, 4, *leaf.shape[1:]), sample.batch)


def test_no_window_and_no_episode_spans_the_gap():
    buffer, init, begin_anew, advance = programs()
    before = init()
    gap = int(before.buffer.storage.head)
    assert (np.asarray(before.collector.env.episode_length) > 0).all()
    broken = begin_anew(before)
    after = advance(broken)
    bridged = advance(before)
    for row in range(gap - 3, gap):
        handle = jb.Handle(ENVS, jnp.full(4, row, jnp.int32))
        episode = buffer.episode(after.buffer, handle)
        np.testing.assert_array_equal(episode.end, gap - 1)
        assert episode.is_ended.all()
        assert (np.asarray(buffer.episode(bridged.buffer, handle).end) > gap - 1).all()  # what would be without
    first = buffer.episode(after.buffer, jb.Handle(ENVS, jnp.full(4, gap, jnp.int32)))
    np.testing.assert_array_equal(first.begin, gap)

    rows = jax.tree.map(np.asarray, buffer.gather_all(after.buffer)[0])
    assert rows.truncated[gap - 1].all()
    assert not rows.terminated[gap - 1].any()
    batch = windows(buffer, after)
    for start, steps in ((gap - 3, 3), (gap - 2, 2), (gap - 1, 1)):
        np.testing.assert_allclose(batch.discount[start], SETTINGS.gamma**steps, rtol=1e-6)
        np.testing.assert_array_equal(batch.reward[start] < 0, True)
        for name, leaf in rows.next_obs.items():
            np.testing.assert_array_equal(batch.next_obs[name][start], leaf[gap - 1])
    np.testing.assert_allclose(windows(buffer, bridged).discount[gap - 1], SETTINGS.gamma**3, rtol=1e-6)


def test_environments_begin_anew_and_the_rest_stays():
    buffer, init, begin_anew, advance = programs()
    before = init()
    broken = begin_anew(before)
    np.testing.assert_array_equal(broken.collector.env.episode_length, 0)
    np.testing.assert_array_equal(broken.collector.env.inner.time, 0)
    goals = (state.collector.env.obs["desired_goal"] for state in (broken, before))
    assert not np.array_equal(*goals)
    jax.tree.map(np.testing.assert_array_equal, broken.agent, before.agent)
    assert buffer.size(broken.buffer) == buffer.size(before.buffer)
    again = begin_anew(broken)  # nothing is open any more
    jax.tree.map(np.testing.assert_array_equal, again.buffer, broken.buffer)
    later = advance(broken)
    keys = [begin_anew(state).collector.env.obs["desired_goal"] for state in (before, later)]
    assert not np.array_equal(*keys)


def test_hindsight_finds_no_goals_behind_the_gap():
    buffer, init, begin_anew, advance = programs()
    gap = int(init().buffer.storage.head)
    view = buffer.view.replace(ratio=1.0, strategy="future")
    after = advance(begin_anew(init()))
    sample = helpers.sample(buffer.replace(view=view), after.buffer, jax.random.key(1), batch_size=400)
    rows = jax.tree.map(np.asarray, buffer.gather_all(after.buffer)[0])
    old = np.asarray(sample.handle.position) < gap
    assert old.sum() > 100
    for index in np.flatnonzero(old):
        env = int(sample.handle.env[index])
        mine = rows.next_obs["achieved_goal"][:gap, env]
        assert (mine == np.asarray(sample.batch.obs["desired_goal"][index])).all(axis=1).any()


def test_a_stopped_run_trains_on(tmp_path):
    def stop(report):
        if report.phase == "training":
            signal.raise_signal(signal.SIGTERM)

    settings = dataclasses.replace(SETTINGS, num_seeds=2)
    few = run.Options(final_episodes=2)
    with pytest.raises(run.Interrupted):
        run.start(settings, tmp_path / "run", few._replace(on_chunk=stop))
    folder = RunFolder(tmp_path / "run")
    like = shapes_of_all(run.compile_programs(settings).shapes())
    gap = int(folder.restore(like)[0].buffer.storage.head[0])
    result = run.resume(tmp_path / "run", few, fresh_environments=True)
    assert result["steps"] == PLAN.total_steps
    state, _ = folder.restore(like)
    assert np.asarray(state.buffer.storage.data.truncated)[:, gap - 1].all()
    assert np.isfinite(state.agent.params.critic["params"]["Dense_0"]["kernel"]).all()
    assert json.loads((tmp_path / "run" / "metrics.jsonl").read_text())["steps"] == PLAN.total_steps
    run.resume(tmp_path / "run", few, fresh_environments=True)  # a finished run stays as it is
    jax.tree.map(np.testing.assert_array_equal, folder.restore(like)[0].buffer, state.buffer)
