"""What every agent promises, over the list in agents.py."""

from __future__ import annotations

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.agents import AGENTS, OBS, OFF_POLICY, leaves, num_drawn, observations, sample

import jaxrl_buffers as jb
from algorithms import Box, Discrete
from algorithms.agents import optimization
from algorithms.runs.build import ACTION_SPACES
from algorithms.training import faults

names = pytest.mark.parametrize("name", AGENTS)
off_policy_names = pytest.mark.parametrize("name", OFF_POLICY)


DUALS = ("temperature", "multipliers")


def init(agent, key):
    return agent.init(key, OBS, agent.action_space.example)


def update(agent, state, batch, key):
    grads, info = agent.gradients(state, batch, key)
    return agent.apply(state, grads), grads, info


@functools.cache
def jitted(name):
    """Compile an agent's functions once for all tests, with caches of their own."""
    return AGENTS[name](), jax.jit(init), jax.jit(lambda *args: update(*args))


def start(name, seed=0):
    agent, jit_init, jit_update = jitted(name)
    key_init, key_batch, key = jax.random.split(jax.random.key(seed), 3)
    return agent, jit_init(agent, key_init), sample(agent, key_batch), key, jit_update


@names
def test_an_update_keeps_structure_dtypes_and_types(name):
    agent, state, batch, key, jit_update = start(name)
    after, grads, info = jit_update(agent, state, batch, key)
    chex.assert_trees_all_equal_shapes_and_dtypes(state, after)
    assert not any(leaf.weak_type for leaf in jax.tree.leaves((state, after)))
    chex.assert_tree_all_finite((after, grads, info))
    chex.assert_shape(info.priorities, (6,))
    assert jnp.all(info.priorities >= 0)
    assert all(value.shape == () for value in info.metrics.values())


@names
def test_every_trained_quantity_has_a_gradient_and_moves(name):
    agent, state, batch, key, jit_update = start(name)
    after, grads, _ = jit_update(agent, state, batch, key)
    chex.assert_trees_all_equal_structs(grads, state.params)
    for before, now in zip(leaves(state.params), leaves(after.params), strict=True):
        assert np.any(before != now)


@names
def test_no_gradient_without_weights(name):
    """With weights 0 nothing is learned, but the errors are still reported."""
    agent, state, batch, key, jit_update = start(name)
    _, grads, info = jit_update(agent, state, batch._replace(weights=jnp.zeros(6)), key)
    assert all(np.all(leaf == 0) for leaf in leaves(grads))
    assert jnp.all(info.priorities > 0)


@off_policy_names
def test_a_discount_of_zero_ignores_what_follows(name):
    agent, state, batch, key, jit_update = start(name)
    ended = batch._replace(batch=batch.batch._replace(discount=jnp.zeros(6)))
    other = ended._replace(batch=ended.batch._replace(next_obs=observations(jax.random.key(9), 6)))
    one, two = (jit_update(agent, state, b, key)[2].priorities for b in (ended, other))
    np.testing.assert_array_equal(one, two)
    assert jnp.any(jit_update(agent, state, batch, key)[2].priorities != one)


@names
def test_the_averaged_gradient_of_two_halves_is_that_of_the_whole(name):
    """Workers that each see a part of a batch learn as one that sees all of it."""
    agent, state, batch, key, jit_update = start(name)
    batch = batch._replace(weights=jnp.array([1.0, 0.5, 2.0, 1.5, 1.0, 0.7]))
    halves = [jnp.where(jnp.arange(6) % 2 == index, 2 * batch.weights, 0) for index in range(2)]
    _, whole, _ = jit_update(agent, state, batch, key)
    parts = [jit_update(agent, state, batch._replace(weights=weights), key)[1] for weights in halves]
    assert any(np.any(a != b) for a, b in zip(*map(leaves, parts), strict=True))
    if name.startswith("ppo"):  # whose mean is over the rows that count, by weight
        shares = [jnp.sum(weights) / 2 / jnp.sum(batch.weights) for weights in halves]
    else:
        shares = [0.5, 0.5]
    mean = jax.tree.map(lambda a, b: shares[0] * a + shares[1] * b, *map(jax.device_get, parts))
    chex.assert_trees_all_close(mean, jax.device_get(whole), rtol=1e-4, atol=1e-6)


@names
def test_a_loss_that_is_not_finite_is_found(name):
    agent, state, batch, key, jit_update = start(name)
    rows = batch.batch
    bad = {"reward": rows.reward.at[1].set(jnp.nan)} if name in OFF_POLICY else {"return_": rows.return_ + jnp.inf}
    for changes, expected in (({}, 0), (bad, 1)):
        _, grads, info = jit_update(agent, state, batch._replace(batch=rows._replace(**changes)), key)
        counts = faults.of_update(grads, info.metrics)
        assert (counts["nonfinite_losses"], counts["nonfinite_gradients"]) == (expected, expected)


@names
def test_hyper_parameters_are_leaves(name):
    """A changed leaf takes effect without recompilation, all leaves can be vmapped together."""
    agent, state, batch, key, jit_update = start(name)
    slow, *_ = jit_update(agent, state, batch, key)
    num_compiled = jit_update._cache_size()
    parameters = {name: value for name, value in jb.parameters(agent).items() if value is not None}
    rates = {name: value * 5 for name, value in parameters.items() if "learning" in name}
    fast, *_ = jit_update(agent.replace(**rates), state, batch, key)
    assert jit_update._cache_size() == num_compiled
    moved = [
        sum(np.sum(np.abs(a - b)) for a, b in zip(leaves(x.params), leaves(state.params), strict=True))
        for x in (slow, fast)
    ]
    np.testing.assert_allclose(moved[1] / moved[0], 5, rtol=0.05)
    many = agent.replace(**{name: jnp.full(2, value) for name, value in parameters.items()})
    axes = jax.tree.map(lambda _: 0, many)  # a component of axes is built like any other
    states = jax.jit(jax.vmap(lambda agent: update(agent, state, batch, key)[0], in_axes=(axes,)))(many)
    chex.assert_trees_all_close(jax.tree.map(lambda leaf: leaf[1], jax.device_get(states)), slow, rtol=1e-4, atol=1e-5)


@names
def test_each_learning_rate_moves_its_own_group(name):
    agent, state, batch, key, jit_update = start(name)
    rates = {"actor": "pi", "critic": "q", "log_alpha": "alpha"} | dict.fromkeys(DUALS, "dual")
    rates |= {"critic": "v"} if name.startswith("ppo") else {}
    rates = {group: f"learning_rate_{rate}" for group, rate in rates.items()}
    rates = {"critic": "learning_rate"} if name.startswith("ddqn") else rates
    rates = {group: rates[group] for group in state.params._fields if group != "addons"}
    assert set(rates.values()) == {parameter for parameter in jb.parameters(agent) if "learning_rate" in parameter}
    for rate in set(rates.values()):
        after, *_ = jit_update(agent.replace(**{rate: 0.0}), state, batch, key)
        for group, own in rates.items():
            pairs = zip(*(leaves(getattr(s.params, group)) for s in (state, after)), strict=True)
            assert all(np.any(a != b) == (own != rate) for a, b in pairs)


@names
def test_every_network_is_clipped_by_its_own_norm(name):
    """Policy and critics apart, temperatures and multipliers not at all; Adam's first mean tells."""
    agent, state, batch, key, jit_update = start(name)
    after, grads, _ = jax.device_get(jit_update(agent.replace(max_grad_norm=1e-3), state, batch, key))
    for group in state.params._fields[:-1]:
        means, gradient = (getattr(tree, group) for tree in (after.optimizer, grads))
        norm = np.sqrt(sum(np.sum(leaf**2) for leaf in leaves(gradient)))
        assert norm > 1e-3
        scale = 1.0 if group in ("log_alpha", *DUALS) else 1e-3 / norm
        chex.assert_trees_all_close(means.mu, jax.tree.map(lambda leaf: 0.1 * scale * leaf, gradient), rtol=1e-4)  # noqa: B023


@names
def test_unknown_hyper_parameters_are_refused(name):
    with pytest.raises(ValueError, match="has no parameter 'gamma'"):
        jb.with_parameters(AGENTS[name](), {"gamma": 0.9})


@names
def test_seeds_give_other_parameters(name):
    (_, one, *_), (_, two, *_) = start(name, 0), start(name, 1)
    assert num_drawn(one.params, two.params) >= 2  # of a hidden layer and the last one


@names
def test_acting(name):
    agent, state, *_ = start(name)
    obs = observations(jax.random.key(5), 4)
    act = jax.jit(type(agent).act, static_argnames="deterministic")
    carry = agent.initial_carry(4)
    best = [act(agent, state, obs, carry, jax.random.key(seed), deterministic=True)[0] for seed in range(3)]
    np.testing.assert_array_equal(best[0], best[1])
    np.testing.assert_array_equal(best[0], best[2])
    drawn = np.stack([act(agent, state, obs, carry, jax.random.key(seed))[0] for seed in range(20)])
    assert drawn.shape[1:] == (4, *agent.action_space.example.shape)
    assert drawn.dtype == agent.action_space.example.dtype
    assert np.any(drawn[:, 0] != drawn[:, 1])  # every environment explores on its own
    if hasattr(agent.action_space, "low"):
        assert np.all((drawn >= agent.action_space.low) & (drawn <= agent.action_space.high))


@off_policy_names
def test_targets_follow_at_intervals(name):
    agent, state, batch, key, jit_update = start(name)
    agent = agent.replace(polyak=0.0, target_update_interval=3)
    turns = [False, False, True]
    turns = turns[::-1] if name == "td3" else turns  # TD3's delay begins with a step of everything
    for is_due in turns * 2:
        before = state.target
        state, *_ = jit_update(agent, state, batch, key)
        if hasattr(before, "_fields"):
            online = type(before)(*(getattr(state.params, field) for field in before._fields))
        else:
            online = state.params.critic
        chex.assert_trees_all_equal(state.target, online if is_due else before)


@off_policy_names
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"polyak": 1.5}, "polyak"),
        ({"max_grad_norm": -1.0}, "max_grad_norm"),
        ({"target_update_interval": -1}, "target_update_interval"),
    ],
)
def test_bad_hyper_parameters(name, options, message):
    with pytest.raises(ValueError, match=message):
        AGENTS[name](**options)


@names
def test_the_wrong_action_space_is_refused(name):
    fitting = ACTION_SPACES[name.split("_")[0]]
    wrong = next(space for space in (Discrete(2), Box((-1.0,), (1.0,)), None) if not isinstance(space, fitting))
    with pytest.raises(ValueError, match="action space"):
        type(AGENTS[name]())(wrong)


def test_optimizer_state_has_no_learning_rate():
    assert len(jax.tree.leaves(optimization.ADAM.init(jnp.zeros(3)))) == 3
