"""What every agent promises, over the list in agents.py."""

from __future__ import annotations

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agents import AGENTS, OBS, OFF_POLICY, observations, sample

import jaxrl_buffers as jb
from algorithms import Box, Discrete, optimization
from algorithms.settings import ACTION_SPACES

names = pytest.mark.parametrize("name", AGENTS)
off_policy_names = pytest.mark.parametrize("name", OFF_POLICY)


def init(agent, key):
    return agent.init(key, OBS, agent.action_space.example)


def update(agent, state, batch, key):
    grads, info = agent.gradients(state, batch, key, 0)
    return agent.apply(state, grads), grads, info


@functools.cache
def jitted(name):
    """Compile an agent's functions once for all tests."""
    return AGENTS[name](), jax.jit(init), jax.jit(update)


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
    for before, now in zip(jax.tree.leaves(state.params), jax.tree.leaves(after.params), strict=True):
        assert jnp.any(before != now)


@names
def test_no_gradient_without_weights(name):
    """Row 36: with weights 0 nothing is learned, but errors are told."""
    agent, state, batch, key, jit_update = start(name)
    _, grads, info = jit_update(agent, state, batch._replace(weights=jnp.zeros(6)), key)
    assert all(jnp.all(leaf == 0) for leaf in jax.tree.leaves(grads))
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
def test_the_averaged_gradient_of_equal_workers_is_that_of_one(name):
    """Row 43."""
    agent, state, batch, key, jit_update = start(name)
    after, grads, _ = jit_update(agent, state, batch, key)
    mean = jax.tree.map(lambda leaf: (leaf + leaf) / 2, grads)
    chex.assert_trees_all_close(jax.jit(type(agent).apply)(agent, state, mean), after, rtol=1e-5, atol=1e-7)


@names
def test_hyper_parameters_are_leaves(name):
    """Row 44: a changed leaf takes effect without recompilation, all leaves can be vmapped together."""
    agent, state, batch, key, _ = start(name)
    fresh = jax.jit(lambda *args: update(*args)[0])
    slow = fresh(agent, state, batch, key)
    leaves = {name: value for name, value in jb.parameters(agent).items() if value is not None}
    fast = fresh(
        agent.replace(**{name: value * 5 for name, value in leaves.items() if "learning" in name}), state, batch, key
    )
    assert fresh._cache_size() == 1
    moved = [
        sum(jnp.sum(jnp.abs(a - b)) for a, b in zip(*map(jax.tree.leaves, (x.params, state.params)), strict=True))
        for x in (slow, fast)
    ]
    np.testing.assert_allclose(moved[1] / moved[0], 5, rtol=0.05)
    many = agent.replace(**{name: jnp.full(2, value) for name, value in leaves.items()})
    axes = jax.tree.map(lambda _: 0, many)  # a component of axes is built like any other
    states = jax.jit(jax.vmap(lambda agent: update(agent, state, batch, key)[0], in_axes=(axes,)))(many)
    chex.assert_trees_all_close(jax.tree.map(lambda leaf: leaf[1], states), slow, rtol=1e-4, atol=1e-5)


@names
def test_each_learning_rate_moves_its_own_group(name):
    """Row 44."""
    agent, state, batch, key, jit_update = start(name)
    critic = "critics" if hasattr(state.params, "critics") else "critic"
    groups = {"learning_rate_q": critic, "learning_rate_pi": "actor", "learning_rate_alpha": "log_alpha"}
    groups = {rate: group for rate, group in groups.items() if rate in jb.parameters(agent)}
    for rate in groups:
        after, *_ = jit_update(agent.replace(**{rate: 0.0}), state, batch, key)
        for other, group in groups.items():
            pairs = zip(*(jax.tree.leaves(getattr(s.params, group)) for s in (state, after)), strict=True)
            assert all(jnp.any(a != b) == (other != rate) for a, b in pairs)


@names
def test_unknown_hyper_parameters_are_refused(name):
    """Row 44."""
    with pytest.raises(ValueError, match="has no parameter 'gamma'"):
        jb.with_parameters(AGENTS[name](), {"gamma": 0.9})


@names
def test_seeds_give_other_parameters(name):
    (_, one, *_), (_, two, *_) = start(name, 0), start(name, 1)
    pairs = zip(jax.tree.leaves_with_path(one.params), jax.tree.leaves(two.params), strict=True)
    drawn = [(a, b) for (path, a), b in pairs if "kernel" in jax.tree_util.keystr(path)]
    assert len(drawn) >= 4
    assert all(jnp.any(a != b) for a, b in drawn)


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
    """Row 35."""
    agent, state, batch, key, jit_update = start(name)
    agent = agent.replace(polyak=0.0, target_update_interval=2)
    turns = [True, False] if name == "td3" else [False, True]  # TD3's delay begins with a step of everything
    for is_due in turns * 2:
        before = state.target
        state, *_ = jit_update(agent, state, batch, key)
        if hasattr(before, "_fields"):
            online = type(before)(*(getattr(state.params, field) for field in before._fields))
        else:
            online = state.params.critic if hasattr(state.params, "critic") else state.params.critics
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
    assert len(jax.tree.leaves(optimization.init(jnp.zeros(3)))) == 3
