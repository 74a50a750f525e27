"""Losses against numbers worked by hand and against rlax and distrax."""

from __future__ import annotations

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import rlax
from scipy import stats
from support.agents import AGENTS, sample

from algorithms import LinearDecay, Torso
from algorithms.agents import losses, mpo_losses, optimization
from algorithms.networks.distributions import TanhNormal


def test_double_q_value_takes_the_action_from_one_network_and_the_value_from_the_other():
    online, target = jnp.array([1.0, 3.0, 2.0]), jnp.array([10.0, -20.0, 30.0])
    assert losses.double_q_value(online, target) == -20


def test_double_q_error_agrees_with_rlax():
    key_q, key_action, key_reward = jax.random.split(jax.random.key(0), 3)
    q, q_online, q_target = jax.random.normal(key_q, (3, 50, 4))
    action = jax.random.randint(key_action, (50,), 0, 4)
    reward, discount = jax.random.uniform(key_reward, (2, 50))
    value = jax.vmap(losses.double_q_value)(q_online, q_target)
    target = jax.vmap(losses.td_target)(reward, discount, value)
    error = target - jnp.take_along_axis(q, action[:, None], axis=1)[:, 0]
    oracle = jax.vmap(rlax.double_q_learning)(q, action, reward, discount, q_target, q_online)
    np.testing.assert_allclose(error, oracle, rtol=1e-6, atol=1e-6)


def test_targets_carry_no_gradient():
    grads = jax.grad(lambda value: losses.td_target(jnp.float32(1), jnp.float32(0.9), value))(jnp.float32(2))
    assert grads == 0


SCALARS = [losses.td_target, losses.soft_value, losses.soft_policy_loss, losses.temperature_loss]
RANKS = {function: (0, 0, 0) for function in SCALARS} | {
    losses.clipped_surrogate_loss: (0, 0, 0, 0),
    losses.double_q_value: (1, 1),
    losses.exact_expectations: (2, 1),
    losses.smoothed_action: (1, 1, 0),
    mpo_losses.improved_policy: (1, 1, 0),
    mpo_losses.temperature_loss: (1, 1, 0, 0),
}


@pytest.mark.parametrize("function", RANKS, ids=lambda function: f"{function.__module__}.{function.__name__}")
def test_batches_are_refused(function):
    """A batch that is not mapped over would broadcast in silence."""
    ranks = RANKS[function]
    fitting = [jax.ShapeDtypeStruct((2,) * rank, jnp.float32) for rank in ranks]
    jax.eval_shape(function, *fitting)
    for index, rank in enumerate(ranks):
        batched = [*fitting]
        batched[index] = jax.ShapeDtypeStruct((2,) * (rank + 1), jnp.float32)
        with pytest.raises(AssertionError):
            jax.eval_shape(function, *batched)


@pytest.mark.parametrize(
    ("function", "numbers"),
    [
        (losses.td_target, (0, 1, 2)),
        (losses.soft_policy_loss, (2,)),
        (losses.temperature_loss, (1, 2)),
        (losses.clipped_surrogate_loss, (1, 2)),
        (mpo_losses.improved_policy, (0, 1, 2)),
        (mpo_losses.temperature_loss, (0, 1)),
    ],
)
def test_what_is_given_carries_no_gradient(function, numbers):
    """Nor does anything that another loss trains; all other arguments have one."""
    arguments = [jnp.full((2,) * rank, 0.3 + 0.1 * index) for index, rank in enumerate(RANKS[function])]
    slopes = jax.grad(lambda *values: jnp.sum(function(*values)), tuple(range(len(arguments))))(*arguments)
    assert [index for index, slope in enumerate(slopes) if np.all(slope == 0)] == sorted(
        {*numbers} | ({3} if function is losses.clipped_surrogate_loss else set())  # where nothing is clipped
    )


def test_soft_value_and_policy_loss_by_hand():
    value, log_prob, alpha = jnp.float32(2.0), jnp.float32(-1.5), jnp.float32(0.2)
    np.testing.assert_allclose(losses.soft_value(value, log_prob, alpha), 2 + 0.3, rtol=1e-6)
    np.testing.assert_allclose(losses.soft_policy_loss(value, log_prob, alpha), -0.3 - 2, rtol=1e-6)


def test_exact_expectations_agree_with_distrax_and_rlax():
    key_q, key_logits = jax.random.split(jax.random.key(1))
    q, logits = jax.random.normal(key_q, (40, 2, 5)), 3 * jax.random.normal(key_logits, (40, 5))
    value, log_prob = jax.vmap(losses.exact_expectations)(q, jax.nn.log_softmax(logits))
    policy = distrax.Categorical(logits=logits)
    np.testing.assert_allclose(log_prob, -policy.entropy(), rtol=1e-5, atol=1e-6)
    zero, one = jnp.zeros(40), jnp.ones(40)
    expected = jax.vmap(rlax.expected_sarsa)(
        jnp.zeros((40, 5)), jnp.zeros(40, jnp.int32), zero, one, q.min(1), policy.probs
    )
    np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)


def test_exact_expectations_where_an_action_is_impossible():
    """A probability of zero contributes nothing, and its gradient is finite."""
    q = jnp.array([[1.0, 2.0], [3.0, 1.0]])
    value, log_prob = losses.exact_expectations(q, jax.nn.log_softmax(jnp.array([0.0, 500.0])))
    assert (value, log_prob) == (1, 0)
    grads = jax.grad(lambda logits: sum(losses.exact_expectations(q, jax.nn.log_softmax(logits))))(
        jnp.array([0.0, 500.0])
    )
    assert jnp.isfinite(grads).all()


def test_one_noise_for_all_components_is_refused():
    with pytest.raises(AssertionError):
        jax.eval_shape(losses.smoothed_action, jnp.zeros(2), jnp.zeros(1), jnp.float32(0.5))


def test_smoothing_noise_is_clipped_and_so_is_the_action():
    """Component by component."""
    action, noise = jnp.array([0.0, 0.9, -0.9, 0.2]), jnp.array([0.7, 0.3, -2.0, -0.1])
    smoothed = losses.smoothed_action(action, noise, jnp.float32(0.5))
    np.testing.assert_allclose(smoothed, [0.5, 1.0, -1.0, 0.1], rtol=1e-6)


def test_the_temperature_rises_while_entropy_is_missing():
    """With entropy below the target (log-probability above minus the target) the gradient is negative."""
    gradient = jax.grad(losses.temperature_loss)
    low_entropy, high_entropy, target = jnp.float32(2.0), jnp.float32(-3.0), jnp.float32(-1.0)
    assert gradient(jnp.float32(0), low_entropy, target) == -1
    assert gradient(jnp.float32(0), high_entropy, target) == 4


def test_tanh_normal_agrees_with_distrax():
    """The density of drawn and of given actions is the analytic one."""
    mean, log_std = jnp.array([0.3, -1.0, 2.0]), jnp.array([0.1, -0.5, 0.4])
    ours = TanhNormal.of(mean, log_std)
    normal = distrax.MultivariateNormalDiag(mean, jnp.exp(log_std))
    oracle = distrax.Transformed(normal, distrax.Block(distrax.Tanh(), 1))
    action, log_prob = jax.vmap(ours.sample_and_log_prob)(jax.random.split(jax.random.key(0), 200))
    inside = jnp.all(jnp.abs(action) < 0.9999, axis=1)  # where arctanh keeps enough digits
    assert inside.sum() > 150
    with jax.numpy_rank_promotion("allow"):
        expected = oracle.log_prob(action[inside])
    np.testing.assert_allclose(log_prob[inside], expected, rtol=1e-3, atol=2e-3)
    np.testing.assert_allclose(jax.vmap(ours.log_prob)(action[inside]), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("mean", "log_std"), [(0.3, 0.1), (-1.0, -0.5)])
def test_the_density_of_squashed_actions_is_that_of_numerical_integration(mean, log_std):
    """It integrates to 1 over actions, and is the slope of the share of draws below an action."""
    policy, width = TanhNormal.of(jnp.full(1, mean), jnp.full(1, log_std)), 2 / 4_000
    action = np.linspace(-1 + width / 2, 1 - width / 2, 4_000)
    density = np.exp(jax.vmap(policy.log_prob)(jnp.asarray(action, jnp.float32)[:, None]))
    np.testing.assert_allclose(np.sum(density) * width, 1, rtol=1e-3)
    middle = action[100:-100]
    below = [stats.norm.cdf(np.arctanh(middle + step), mean, np.exp(log_std)) for step in (-1e-5, 1e-5)]
    np.testing.assert_allclose(density[100:-100], (below[1] - below[0]) / 2e-5, rtol=1e-3, atol=1e-4)


def test_tanh_normal_stays_finite_where_it_saturates():
    policy = TanhNormal.of(jnp.array([50.0]), jnp.array([30.0]))
    value, grads = jax.value_and_grad(lambda mean: TanhNormal.of(mean, policy.log_std).transform(jnp.ones(1))[1].sum())(
        policy.mean
    )
    assert policy.log_std == 2
    assert jnp.isfinite(value)
    assert jnp.isfinite(grads).all()


def test_polyak():
    target, online = jnp.array([1.0]), jnp.array([3.0])
    due = jnp.asarray(True)
    np.testing.assert_allclose(optimization.polyak(target, online, 0.995, due), [1.01], rtol=1e-6)
    assert optimization.polyak(target, online, 1.0, due) == target
    assert optimization.polyak(target, online, 0.0, due) == online
    assert optimization.polyak(target, online, 0.0, jnp.asarray(False)) == target


def test_targets_are_due_at_every_interval():
    """Interval 2 averages at the 2nd, 4th, ... update."""
    due = [bool(optimization.is_due(jnp.int32(num_updates), 2)) for num_updates in range(1, 7)]
    assert due == [False, True] * 3
    assert optimization.is_due(jnp.int32(7), 0)


def test_clipping_by_the_norm_of_all_leaves():
    grads = {"a": jnp.array([3.0]), "b": jnp.array([[4.0]])}
    clipped = optimization.clip_by_global_norm(grads, 0.5)
    np.testing.assert_allclose(clipped["a"], [0.3], rtol=1e-6)
    np.testing.assert_allclose(clipped["b"], [[0.4]], rtol=1e-6)
    untouched = optimization.clip_by_global_norm(grads, 6.0)
    np.testing.assert_allclose(untouched["a"], [3.0])
    zero = optimization.clip_by_global_norm({"a": jnp.zeros(2)}, 0.5)
    assert jnp.all(zero["a"] == 0)


def test_a_step_agrees_with_optax():
    params, grads = {"w": jnp.array([1.0, -2.0])}, {"w": jnp.array([0.5, 0.1])}
    ours, state = params, optimization.ADAM.init(params)
    oracle = optax.adam(1e-2)
    theirs, oracle_state = params, oracle.init(params)
    for _ in range(3):
        ours, state = optimization.step_adam(ours, grads, state, 1e-2, 10.0)
        updates, oracle_state = oracle.update(grads, oracle_state)
        theirs = optax.apply_updates(theirs, updates)
    np.testing.assert_allclose(ours["w"], theirs["w"], rtol=1e-5)


def test_a_schedule_falls_in_a_straight_line():
    factors = [LinearDecay(4, final=0.2)(jnp.int32(count)) for count in range(6)]
    np.testing.assert_allclose(factors, [1, 0.8, 0.6, 0.4, 0.2, 0.2], rtol=1e-6)


@pytest.mark.parametrize("name", ["ddqn", "sac", "mpo_discrete"])
def test_gradients_are_those_of_finite_differences(name):
    """Along any direction, the losses that are told change as the gradients say."""
    agent = AGENTS[name]().replace(torso=Torso((8,), activation="tanh"))  # relu has kinks
    drawn = sample(agent, jax.random.key(1))
    batch = drawn.batch._replace(obs=drawn.batch.obs["x"], next_obs=drawn.batch.next_obs["x"])
    drawn = drawn._replace(batch=batch, weights=jnp.linspace(0.5, 1.5, 6))
    losses_of = {
        "critic": lambda metrics: metrics["loss_q"],
        "actor": lambda metrics: metrics["loss_pi"],
        "log_alpha": lambda metrics: metrics["loss_alpha"],
        "temperature": lambda metrics: metrics["loss_temperature"],
    }
    if name == "mpo_discrete":  # whose metrics are not weighted; multipliers are fixed while the policy learns
        drawn = drawn._replace(weights=jnp.ones(6))
        losses_of["actor"] = lambda metrics: metrics["loss_pi"] + metrics["multiplier"] * metrics["kl"]

    gradients = jax.jit(lambda state: agent.gradients(state, drawn, jax.random.key(2)))
    state = jax.jit(lambda key: agent.init(key, batch.obs[0], batch.action[0]))(jax.random.key(0))
    rng = np.random.default_rng(0)
    nudge = lambda leaf, scale: jnp.asarray(scale * rng.standard_normal(leaf.shape), jnp.float32)  # noqa: E731
    state = state._replace(params=jax.tree.map(lambda leaf: leaf + nudge(leaf, 0.3), state.params))
    grads, _ = gradients(state)
    for group in set(losses_of) & set(state.params._fields):
        at, step = getattr(state.params, group), 3e-2
        direction = jax.tree.map(lambda leaf: nudge(leaf, 1.0), at)
        direction = jax.tree.map(lambda leaf: leaf / optax.tree.norm(direction), direction)  # noqa: B023
        ends = [jax.tree.map(lambda leaf, d: leaf + sign * step * d, at, direction) for sign in (-1, 1)]  # noqa: B023
        values = [
            losses_of[group](gradients(state._replace(params=state.params._replace(**{group: end})))[1].metrics)
            for end in ends
        ]
        slope = optax.tree.vdot(getattr(grads, group), direction)
        np.testing.assert_allclose(slope, (values[1] - values[0]) / (2 * step), rtol=0.02, atol=2e-4, err_msg=group)
        assert abs(slope) > 1e-3
