"""Defaults of every algorithm, and which numbers it refuses."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from support.agents import AGENTS, OBS

import jaxrl_buffers as jb
from algorithms import Averaged, LinearDecay, Normalized, Torso

COMMON = {"torso": Torso(), "schedule": None, "optimizer": None, "max_grad_norm": 0.5, "addons": ()}
OFF_POLICY = COMMON | {"polyak": 0.995, "target_update_interval": 1}
NOISE = {"noise": "gaussian", "noise_theta": 0.15}
ADDED_NOISE = NOISE | {"noise_scale": 0.1}
DEFAULTS = {
    "ddqn": OFF_POLICY
    | {"dueling": False, "learning_rate": 1e-4, "policy_temperature": 1.0}
    | {"initial_epsilon": 1.0, "epsilon_decay": 0.999, "final_epsilon": 0.05, "persistence": None},
    "ddpg": OFF_POLICY | ADDED_NOISE | {"learning_rate_q": 1e-3, "learning_rate_pi": 1e-4},
    "td3": OFF_POLICY
    | ADDED_NOISE
    | {"learning_rate_q": 1e-4, "learning_rate_pi": 1e-4, "target_update_interval": 2}
    | {"smoothing_scale": 0.2, "smoothing_clip": 0.5},
    "sac": OFF_POLICY
    | NOISE
    | {"learning_rate_q": 1e-4, "learning_rate_pi": 1e-4, "learning_rate_alpha": 1e-4}
    | {"learn_alpha": True, "initial_alpha": 1.0, "target_entropy": None}
    | {"target_entropy_ratio": 0.5, "final_target_entropy_ratio": 0.1, "annealing_updates": 0},
    "mpo": OFF_POLICY
    | NOISE
    | {"learning_rate_q": 1e-4, "learning_rate_pi": 1e-4, "learning_rate_dual": 1e-2, "max_grad_norm": 0.1}
    | {"num_samples": 20, "num_passes": 1, "penalized": True, "max_multiplier": 1e4}
    | {"max_variance_multiplier": None, "max_temperature": None, "variance_dual_scale": None}
    | {"dual_constraint": 0.1, "penalty_constraint": 1e-3, "kl_constraint": 0.01}
    | {"kl_mean_constraint": 0.01, "kl_variance_constraint": 1e-4}
    | {"initial_temperature": 1.0, "initial_multiplier": 1.0, "initial_variance_multiplier": 10.0},
    "ppo": COMMON
    | NOISE
    | {"learning_rate_pi": 3e-4, "learning_rate_v": 3e-4, "clip_range": 0.2, "entropy_coefficient": 0.0},
}
SHARES = {"polyak", "initial_epsilon", "epsilon_decay", "final_epsilon", "noise_theta"}
SHARES |= {"target_entropy_ratio", "final_target_entropy_ratio"}
SIGNED = {"target_entropy"}
names = pytest.mark.parametrize("name", DEFAULTS)


@names
def test_defaults(name):
    fields = dataclasses.fields(type(AGENTS[name]()))
    assert {field.name: field.default for field in fields if field.name not in ("action_space", "axis")} == DEFAULTS[
        name
    ]


@names
def test_networks_have_roles(name):
    agent = AGENTS[name]()
    num_critics = {"ddpg": (1,), "td3": (2,), "sac": (2,)}.get(name, ())
    actor = () if name == "ddqn" else (("actor", ()),)
    assert agent.roles == (*actor, ("critic", num_critics))


@names
def test_first_states_count_in_integers_and_have_as_many_critics_as_they_say(name):
    agent = AGENTS[name]()
    state = jax.eval_shape(lambda key: agent.init(key, OBS["x"], agent.action_space.example), jax.random.key(0))
    count = state.optimizer.actor.count if name == "ppo" else state.num_updates
    assert (count.shape, count.dtype) == ((), jnp.int32)
    stacked = agent.roles[-1][1]
    critics = state.params.critic
    biases = [leaf.shape for path, leaf in jax.tree.leaves_with_path(critics) if "bias" in jax.tree_util.keystr(path)]
    assert all((*shape[:-1],) == stacked for shape in biases)
    assert len(biases) == 2


def test_defaults_of_wrappers():
    agent = AGENTS["ddqn"]()
    assert Averaged(agent).rate == 0.999
    assert Normalized(agent).clip == 10


@names
def test_only_numbers_are_leaves(name):
    """All else is part of the program: shapes, choices, and a schedule, which is a function."""
    found = jax.tree.leaves(AGENTS[name](schedule=LinearDecay(4)))
    numbers = {key for key, value in DEFAULTS[name].items() if type(value) in (int, float) and key[:4] != "num_"}
    assert {type(leaf) for leaf in found} <= {int, float}
    assert len(found) == len(numbers)


@names
def test_numbers_out_of_bounds_are_refused(name):
    agent = AGENTS[name]()
    static = {key for key in DEFAULTS[name] if key.startswith("num_")}
    for key in (set(jb.parameters(agent)) | static) - SIGNED:
        with pytest.raises(ValueError, match=key):
            agent.replace(**{key: -1})
        if key in SHARES:
            with pytest.raises(ValueError, match=key):
                agent.replace(**{key: 1.5})
        elif key in static:
            with pytest.raises(ValueError, match=key):
                agent.replace(**{key: 0})
            agent.replace(**{key: 1})
        else:
            agent.replace(**{key: 2 if key.endswith(("_interval", "_delay", "_updates")) else 1.5})


@names
def test_shares_may_be_none_or_all(name):
    agent = AGENTS[name]()
    for key in SHARES & set(jb.parameters(agent)):
        for value in (0, 1):
            agent.replace(**{key: value})


@names
@pytest.mark.parametrize("addons", [["none"], ("none",)])
def test_what_is_no_add_on_is_refused(name, addons):
    with pytest.raises(ValueError, match="addons"):
        AGENTS[name](addons=addons)
