"""PPO's loss by hand and against rlax; rollouts in the training loop."""

from __future__ import annotations

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

import jaxrl_buffers as jb
from algorithms import PPO, Plan, Torso, environments, train
from algorithms.agents import losses, ppo
from algorithms.runs.build import build
from algorithms.runs.settings import Settings
from algorithms.training import loop, on_policy

ENV = environments.make("CartPole-v1")
AGENT = PPO(ENV.action_space, Torso((8,)), learning_rate_pi=1e-2)
ROLLOUT = jb.rollout(8, 2)
PLAN = Plan(
    total_steps=64,
    num_envs=2,
    start_steps=0,
    update_every=16,
    num_updates=6,
    mini_batch_size=6,
    test_every=32,
    num_test_episodes=3,
)


def test_the_clipped_objective_by_hand():
    """Ratios 1.5 and 0.5 count only where they make things worse."""
    cases = [(1.5, 1.0, -1.2), (1.5, -1.0, 1.5), (0.5, 1.0, -0.5), (0.5, -1.0, 0.8), (1.1, 2.0, -2.2)]
    for ratio, advantage, expected in cases:
        log_prob, old = jnp.float32(np.log(ratio) - 2), jnp.float32(-2)
        loss = losses.clipped_surrogate_loss(log_prob, old, jnp.float32(advantage), jnp.float32(0.2))
        np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_the_clipped_objective_agrees_with_rlax():
    log_prob, old, advantage = jax.random.normal(jax.random.key(0), (3, 100))

    def ours(log_prob):
        clipped = jax.vmap(losses.clipped_surrogate_loss, in_axes=(0, 0, 0, None))
        return jnp.mean(clipped(log_prob, old, advantage, jnp.float32(0.2)))

    def theirs(log_prob):
        return rlax.clipped_surrogate_pg_loss(jnp.exp(log_prob - old), advantage, 0.2)

    (value, slope), (oracle, oracle_slope) = (jax.value_and_grad(f)(log_prob) for f in (ours, theirs))
    np.testing.assert_allclose(value, oracle, rtol=1e-5)
    np.testing.assert_allclose(slope, oracle_slope, rtol=1e-4, atol=1e-7)


class _Critic:
    """Observations are worth ten times themselves."""

    learns_from_columns = False

    def values(self, state, chunk):
        return 10.0 * chunk.obs, 10.0 * chunk.next_obs


def test_time_limits_go_on_with_the_true_last_observation():
    """Three paths, one terminated, one cut off at observation 9, one still under way at observation 4."""
    column = lambda *values: jnp.array(values)[:, None]  # noqa: E731
    flag = lambda *rows: column(*(row in rows for row in range(3)))  # noqa: E731
    obs, next_obs = column(0.0, 1.0, 3.0), column(7.0, 9.0, 4.0)
    chunk = jb.Transition(obs, obs, column(1.0, 1.0, 1.0), flag(0), flag(1), next_obs, {})
    rollout = jb.rollout(3, gamma=0.5, normalize=False)
    batch = on_policy._batch(_Critic(), rollout, None, chunk)
    np.testing.assert_allclose(batch.return_[:, 0], [1, 1 + 0.5 * 90, 1 + 0.5 * 40])
    np.testing.assert_allclose(batch.advantage[:, 0], [1 - 0, 46 - 10, 21 - 30])


def test_masked_rows_do_not_count():
    values, weights = jnp.array([1.0, 3.0, 100.0]), jnp.array([1.0, 1.0, 0.0])
    assert ppo._mean(values, weights) == 2
    assert ppo._mean(values, jnp.zeros(3)) == 0


def test_training_meets_its_budget_and_differs_by_seed():
    keys = jax.random.split(jax.random.key(0), 2)
    program = jax.jit(jax.vmap(lambda key: train(key, AGENT, ROLLOUT, ENV, PLAN)))
    state, metrics = jax.device_get(program(keys))
    assert state.buffer == ()
    np.testing.assert_array_equal(state.iteration, 4)
    np.testing.assert_array_equal(metrics["steps"], [[32, 64]] * 2)
    np.testing.assert_array_equal(state.agent.optimizer.actor.count, 4 * 6)
    assert metrics["returns"].shape == (2, 2, 3)
    expected = {"loss_pi", "loss_v", "entropy", "kl", "clip_fraction", "grad_norm_pi", "grad_norm_v"}
    assert expected < set(metrics)
    for leaf in jax.tree.leaves(state.agent.params):
        assert np.any(leaf[0] != leaf[1])


def test_chunks_of_a_run_are_one_run():
    run = jax.jit(lambda state, num: loop.run(state, AGENT, ROLLOUT, ENV, PLAN, num), static_argnums=1)
    state = jax.jit(lambda key: loop.init(key, AGENT, ROLLOUT, ENV, PLAN))(jax.random.key(1))
    whole, parts = run(state, 2), run(run(state, 1), 1)
    chex.assert_trees_all_equal(whole.agent, parts.agent)
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(whole._replace(key=())))
    chex.assert_trees_all_equal_shapes_and_dtypes(state._replace(key=()), whole._replace(key=()))


@pytest.mark.parametrize(
    ("algorithm", "options", "message"),
    [
        ("ppo", {"sampler": {"name": "uniform"}}, "ppo learns from whole rollouts"),
        ("ddqn", {"rollout": {"gae_lambda": 0.9}}, "ddqn learns from a replay buffer"),
        ("ppo", {"n_step": 3}, "leave it at 1"),
    ],
)
def test_settings_that_do_not_fit(algorithm, options, message):
    with pytest.raises(ValueError, match=message):
        build(Settings(algorithm, "CartPole-v1", PLAN, **options))


def test_settings_build_a_rollout():
    settings = Settings("ppo", "CartPole-v1", PLAN, gamma=0.9, rollout={"gae_lambda": 0.8})
    rollout = build(Settings.from_dict(settings.to_dict())).buffer
    assert (rollout.length, rollout.num_envs, rollout.gamma, rollout.gae_lambda) == (8, 2, 0.9, 0.8)


def test_a_run_in_a_folder(tmp_path):
    """The host's side of a run knows rollouts, which have no statistics."""
    from algorithms.runs import presets, run

    plan = Plan(
        total_steps=64, num_envs=2, start_steps=0, update_every=16, num_updates=2, mini_batch_size=8, test_every=32
    )
    tuned = dataclasses.replace(presets.preset("ppo", "CartPole-v1"), plan=plan, hidden_sizes=(4,))
    result = run.start(tuned, tmp_path / "run", run.Options(final_episodes=2))
    assert result["steps"] == 64
