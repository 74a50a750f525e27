"""What may stand where a hyper-parameter is a number: what people must not write there, and what JAX may."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.agents import AGENTS

import jaxrl_buffers as jb
from algorithms import Averaged, Normalized
from algorithms.addons import RewardPrediction

COMPONENTS = {name: agent() for name, agent in AGENTS.items()} | {
    "Averaged": Averaged(AGENTS["ddqn"]()),
    "Normalized": Normalized(AGENTS["ddqn"]()),
    "RewardPrediction": RewardPrediction(),
    "Prioritized": jb.Prioritized(),
    "Recent": jb.Recent(),
    "LastN": jb.LastN(3.0),
    "NStep": jb.NStep(),
    "Sequence": jb.Sequence(2),
    "Hindsight": jb.Hindsight(achieved="next_obs", relabel=max),
    "EpisodicReturns": jb.EpisodicReturns(reward_clip=(-1.0, 1.0)),
    "Rollout": jb.rollout(3),
    "buffer": jb.ReplayBuffer(jb.Combined(jb.Prioritized(), (jb.LastN(3.0),), (0.5,)), jb.NStep(), length=9),
}
ANY_NUMBER = {"default", "max_share"}  # which may be infinite
OR_NONE = {"persistence"}
components = pytest.mark.parametrize("component", COMPONENTS.values(), ids=COMPONENTS)


def own_numbers(component):
    """Return the hyper-parameters of a component that are numbers, without those of its parts."""
    found = {key: value for key, value in jb.parameters(component).items() if isinstance(value, (int, float))}
    return {key: value for key, value in found.items() if "." not in key}


@components
def test_what_is_no_finite_number_is_refused(component):
    numbers = own_numbers(component)
    has_several = sum(isinstance(value, float) for value in numbers.values()) > 1
    for key in numbers:
        infinite = [float("inf"), -np.inf, np.nan, np.float32("inf"), np.array(np.inf), np.array([0.1, -np.inf])]
        among_numbers = (
            [*([] if key in OR_NONE else [None]), True, (), {}] if has_several or isinstance(numbers[key], int) else []
        )
        for value in ["0.1", b"1", [1], [0.5], *among_numbers, *(infinite if key not in ANY_NUMBER else [])]:
            with pytest.raises(ValueError, match=rf"{type(component).__name__}\({key}="):
                component.replace(**{key: value})
        for value in (np.array(0.5), jnp.full(2, 0.5), jax.ShapeDtypeStruct((), jnp.float32)):
            if isinstance(numbers[key], float):
                component.replace(**{key: value})


@pytest.mark.parametrize("bounds", [(None, 1.0), ([0], 1.0), ("a", 1.0), (np.inf, np.inf), (-np.inf, -np.inf)])
def test_bounds_between_which_there_are_no_numbers_are_refused(bounds):
    with pytest.raises(ValueError, match="reward_clip"):
        jb.EpisodicReturns(reward_clip=bounds)


@components
@pytest.mark.parametrize("stand_in", [None, 0, True, (), object(), jax.ShapeDtypeStruct((), jnp.float32), np.zeros(2)])
def test_what_jax_puts_in_the_place_of_numbers_passes(component, stand_in):
    """`jax.tree` and `jax.vmap` build components of anything, replacing all numbers at once."""
    changed = jax.tree.map(lambda _: stand_in, component)
    assert type(changed) is type(component)
    again = jax.tree.map(lambda _, old: old, component, component)
    assert again == component


@components
def test_transformations_take_components_apart_and_together(component):
    leaves, structure = jax.tree.flatten(component)
    assert jax.tree.unflatten(structure, leaves) == component
    shapes = jax.eval_shape(lambda component: component, component)
    assert [leaf.shape for leaf in jax.tree.leaves(shapes)] == [()] * len(leaves)
    many = jax.tree.map(lambda leaf: jnp.full(2, leaf), component)
    axes = jax.tree.map(lambda _: 0, component)
    doubled = jax.vmap(lambda component: jax.tree.map(lambda leaf: leaf, component), in_axes=(axes,), out_axes=axes)
    assert jax.tree.structure(doubled(many)) == structure
    first, *others = leaves
    some = jax.tree.unflatten(structure, [jnp.full(2, first), *others])
    axis = jax.tree.unflatten(structure, [0, *[None] * len(others)])
    assert jax.vmap(lambda component: jax.tree.leaves(component)[0] * 1.0, in_axes=(axis,))(some).shape == (2,)
    jax.jacobian(lambda component: sum(1.0 * leaf for leaf in jax.tree.leaves(component)), allow_int=True)(component)
