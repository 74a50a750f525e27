"""What is counted on several devices is what one device would count, also where only some of them meet a fault."""

from __future__ import annotations

import functools
import math

import chex
import jax
import numpy as np
from support.faulty import Faulty

import jaxrl_buffers as jb
from algorithms import DDQN, Normalized, Plan, Torso, environments
from algorithms.training import faults, loop, parallel, train_state

# Faults depend only on the keys of the environments, and not on what the agent does.
ENV = environments.wrap(Faulty(obs=math.nan, share=0.1))
PARTS = Normalized(DDQN(ENV.action_space, Torso((8,)))), jb.emphasize_recent(40, 8, adaptive=True, c_min=200)
PLAN = Plan(
    480, num_envs=8, start_steps=160, update_every=16, num_updates=2, mini_batch_size=16, test_every=0, on_nan="skip"
)
COUNTED = ("steps", "episodes", "episode_length", "truncated_episodes", "nonfinite_observations", "nonfinite_rewards")


@functools.cache
def trained(num_devices):
    """Return the state after all iterations, the metrics, and the first steps of faults."""
    mesh = parallel.make_mesh(num_devices)
    plan = parallel.on_mesh(mesh, PLAN, *PARTS)
    parts = *parallel.parts(*PARTS, plan), ENV, plan

    def train(key):
        return loop.run(loop.init(key, *parts), *parts, plan.num_iterations)

    def read(state):
        return train_state.read_metrics(state, plan)[1], state.sums.across(plan.axis).first_steps

    state = jax.jit(parallel.spread(train, mesh, gives_state=True))(jax.random.key(0))
    metrics, first = jax.jit(parallel.spread(read, mesh))(state)
    return state, jax.device_get(metrics), dict(zip(faults.NAMES, np.asarray(first).tolist(), strict=True))


def test_faults_of_some_devices_are_those_of_all():
    one, many = trained(1), trained(4)
    for name in COUNTED:
        np.testing.assert_allclose(many[1][name], one[1][name], rtol=1e-6, err_msg=name)
    assert many[1]["nonfinite_observations"] > 0
    for name in faults.OF_ROWS:
        assert many[2][name] == one[2][name], name
    # What a device observes together with a NaN of another one is left out, too.
    chex.assert_trees_all_close(many[0].agent[1:], one[0].agent[1:], rtol=1e-4)


def test_an_update_is_skipped_by_all_devices_or_by_none():
    state, metrics, first = trained(4)
    chex.assert_tree_all_finite(jax.device_get(state.agent))
    total = PLAN.updates(PLAN.num_iterations)
    assert 0 < metrics["skipped_updates"] < total
    assert state.agent.agent.num_updates == total - metrics["skipped_updates"]
    assert metrics["skipped_updates"] == metrics["nonfinite_gradients"]
    assert first["skipped_updates"] >= first["nonfinite_observations"] > 0


def test_means_over_updates_do_not_depend_on_the_number_of_devices():
    np.testing.assert_allclose([trained(count)[1]["weight"] for count in (1, 4)], 1, rtol=1e-6)


def test_returns_are_reported_to_all_devices_alike():
    trend = jax.device_get(trained(4)[0].buffer.sampler.trend)
    assert trend.num_returns.tolist() == [trend.num_returns[0]] * 4
    assert np.count_nonzero(trend.returns[0]) > 2
    np.testing.assert_array_equal(trend.returns, trend.returns[:1].repeat(4, axis=0))
