"""Any optimizer of optax in any agent: as an object, by its name, and from a file."""

from __future__ import annotations

import functools
import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import yaml
from support.agents import AGENTS, BOX, OBS, sample, without_images
from support.scripts import load_script

import jaxrl_buffers as jb
from algorithms import (
    DDQN,
    TD3,
    Averaged,
    Discrete,
    LinearDecay,
    Normalized,
    OptaxSchedule,
    Optimizer,
    Recurrent,
    RewardPrediction,
)
from algorithms.agents import optimization
from algorithms.optimizers import OPTIMIZERS, SCHEDULES
from algorithms.runs import presets, settings_file
from algorithms.runs.build import build, complete
from algorithms.runs.run_folder import RunFolder
from algorithms.runs.settings import Settings

DECAY = OptaxSchedule("cosine_decay_schedule", {"init_value": 1.0, "decay_steps": 10})
DECAY_IN_FILE = {
    "name": "OptaxSchedule",
    "config": {"name": "cosine_decay_schedule", "options": {"init_value": 1.0, "decay_steps": 10}},
}
CHOICES = {
    "adamw": (Optimizer("adamw", 1e-3, options={"weight_decay": 0.1}), optax.adamw(1e-3, weight_decay=0.1)),
    "lion": (Optimizer("lion", 1e-3, DECAY), optax.lion(optax.cosine_decay_schedule(1e-3, 10))),
    "rmsprop": (
        Optimizer("rmsprop", 1e-3, max_grad_norm=0.01),
        optax.chain(optax.clip_by_global_norm(0.01), optax.rmsprop(1e-3)),
    ),
}


@functools.cache
def first(name, **options):
    """Return a state and its gradients, which are the same for all optimizers."""
    agent = AGENTS[name](**options)

    @jax.jit
    def both(key):
        key_init, key_batch, key_gradients = jax.random.split(key, 3)
        state = agent.init(key_init, OBS["x"], agent.action_space.example)
        return state, agent.gradients(state, without_images(sample(agent, key_batch)), key_gradients)[0]

    return jax.device_get(both(jax.random.key(0)))


def updated(name, num_updates=1, addons=(), **options):
    """Return the state before and after updates along the gradients of the first one, and these gradients."""
    agent = AGENTS[name](addons=addons, **options)
    state, grads = first(name, addons=addons)

    @jax.jit
    def apply(state, grads):
        state = state._replace(optimizer=optimization.init(agent, state.params))
        for _ in range(num_updates):
            state = agent.apply(state, grads)
        return state

    return state, jax.device_get(apply(state, grads)), grads


def norm(tree):
    return np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(tree)))


@pytest.mark.parametrize("kind", CHOICES)
@pytest.mark.parametrize("name", AGENTS)
def test_every_group_makes_the_step_that_optax_makes(name, kind):
    by_name, transformation = CHOICES[kind]
    before, after, grads = updated(name, optimizer=by_name if kind != "adamw" else transformation)
    for group in AGENTS[name]().groups:
        params, gradient = getattr(before.params, group), getattr(grads, group)
        updates, _ = jax.jit(transformation.update)(gradient, transformation.init(params), params)
        expected = jax.tree.map(np.add, params, updates)
        chex.assert_trees_all_close(getattr(after.params, group), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", AGENTS)
def test_schedules_and_clipping_reach_every_group(name):
    """The first step is as long as the clipped gradients, and all later ones have the length 0."""
    schedule = OptaxSchedule("linear_schedule", {"init_value": 1.0, "end_value": 0.0, "transition_steps": 1})
    before, after, grads = updated(name, 3, optimizer=Optimizer("sgd", 1.0, schedule, max_grad_norm=1e-3))
    for group in AGENTS[name]().groups:
        assert norm(getattr(grads, group)) > 1e-3
        moved = jax.tree.map(np.subtract, getattr(after.params, group), getattr(before.params, group))
        np.testing.assert_allclose(norm(moved), 1e-3, rtol=0.01)


@pytest.mark.parametrize("name", AGENTS)
def test_schedules_of_optax_scale_the_steps_of_adam(name):
    resting = OptaxSchedule("constant_schedule", {"value": 0.0})
    before, after, _ = updated(name, schedule=resting)
    chex.assert_trees_all_equal(after.params, before.params)
    _, halved, _ = updated(name, schedule=optax.constant_schedule(0.5))
    _, whole, _ = updated(name)
    half_way = jax.tree.map(lambda one, two: (one + two) / 2, before.params, whole.params)
    chex.assert_trees_all_close(halved.params, half_way, rtol=1e-5, atol=1e-6)


def test_groups_that_are_left_out_keep_adam():
    addons = (RewardPrediction(),)
    _, default, _ = updated("sac", addons=addons)
    optimizer = {"critic": optax.sgd(0.1), "addons": Optimizer("sgd", 0.2)}
    before, mixed, grads = updated("sac", addons=addons, optimizer=optimizer)
    for group in ("actor", "log_alpha"):
        chex.assert_trees_all_equal(getattr(mixed.params, group), getattr(default.params, group))
    for group, rate in (("critic", 0.1), ("addons", 0.2)):
        expected = jax.tree.map(
            lambda param, grad, rate=rate: param - rate * grad, getattr(before.params, group), getattr(grads, group)
        )
        chex.assert_trees_all_close(getattr(mixed.params, group), expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_by_name_makes_a_step(name):
    optimizer = Optimizer(name, 1e-3, LinearDecay(10), max_grad_norm=1.0).transformation
    params = {"kernel": jnp.ones((3, 2)), "bias": jnp.ones(2)}
    state = optimizer.init(params)
    for _ in range(2):  # the first step of rprop is 0: it goes by changes of sign
        updates, state = optimizer.update(params, state, params)
    assert norm(updates) > 0
    chex.assert_trees_all_equal_shapes_and_dtypes(updates, params)


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_by_name_gives_a_number(name):
    known = {
        "constant_schedule": {"value": 1.0},
        "cosine_decay_schedule": {"init_value": 1.0, "decay_steps": 5},
        "cosine_onecycle_schedule": {"transition_steps": 5, "peak_value": 1.0},
        "exponential_decay": {"init_value": 1.0, "transition_steps": 5, "decay_rate": 0.5},
        "linear_onecycle_schedule": {"transition_steps": 5, "peak_value": 1.0},
        "linear_schedule": {"init_value": 1.0, "end_value": 0.5, "transition_steps": 5},
        "polynomial_schedule": {"init_value": 1.0, "end_value": 0.5, "power": 2, "transition_steps": 5},
        "warmup_constant_schedule": {"init_value": 0.0, "peak_value": 1.0, "warmup_steps": 5},
        "warmup_cosine_decay_schedule": {"init_value": 0.0, "peak_value": 1.0, "warmup_steps": 2, "decay_steps": 5},
        "warmup_exponential_decay_schedule": {
            **{"init_value": 0.0, "peak_value": 1.0, "warmup_steps": 2},
            **{"transition_steps": 5, "decay_rate": 0.5},
        },
    }
    schedule = OptaxSchedule(name, known[name])
    np.testing.assert_allclose(schedule(jnp.int32(3)), getattr(optax, name)(**known[name])(3), rtol=1e-6)
    assert schedule(jnp.int32(3)).dtype == jnp.float32
    assert jb.from_config(jb.to_config(schedule)) == schedule


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DDQN(Discrete(2), optimizer="adam"), "give a transformation of optax"),
        (
            lambda: DDQN(Discrete(2), optimizer={"actor": optax.sgd(1.0)}),
            "'actor' is not a group of parameters; the groups are",
        ),
        (lambda: DDQN(Discrete(2), optimizer={"critic": 3}), "give a transformation of optax"),
        (lambda: DDQN(Discrete(2), optimizer=optax.sgd(1.0), learning_rate=1.0), "`learning_rate` has no effect"),
        (lambda: DDQN(Discrete(2), optimizer=optax.sgd(1.0), max_grad_norm=1.0), "`max_grad_norm` has no effect"),
        (lambda: DDQN(Discrete(2), optimizer=optax.sgd(1.0), schedule=LinearDecay(3)), "`schedule` has no effect"),
        (lambda: Optimizer("adamx", 1e-3), "adamx"),
        (lambda: Optimizer("adam", -1.0), "learning_rate"),
        (lambda: Optimizer("adam", 1e-3, options={"weight_decay": 1.0}), "optax.adam has no option 'weight_decay'"),
        (lambda: Optimizer("adam", 1e-3, options={"b1": jnp.ones(2)}), "give a number, a string, True or False"),
        (lambda: Optimizer("adam", 1e-3, options=3), "give names with values"),
        (lambda: OptaxSchedule("cosine"), "cosine"),
        (lambda: OptaxSchedule("linear_schedule", {"init_value": 1.0}), "missing"),
        (lambda: OptaxSchedule("linear_schedule", {"first": 1.0}), "optax.linear_schedule has no option 'first'"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def in_file(algorithm: str) -> dict:
    """Return settings in which the agent has optimizers of its own, with a schedule and clipping."""
    actor = {"name": "lion", "learning_rate": 1e-3, "schedule": DECAY_IN_FILE}
    critic = {"name": "adamw", "learning_rate": 3e-4, "max_grad_norm": 0.5, "options": {"weight_decay": 1e-4}}
    groups = {"critic": {"name": "Optimizer", "config": critic}}
    if algorithm != "ddqn":
        groups["actor"] = {"name": "Optimizer", "config": actor}
    return {
        "environment": "CartPole-v1" if algorithm in ("ddqn", "ppo") else "Pendulum-v1",
        "plan": {"total_steps": 10_000, "num_envs": 2},
        "hidden_sizes": [4],
        "averaging": 0,
        "normalize": False,
        "agent": {"name": algorithm.upper(), "config": {"optimizer": groups}},
    }


@pytest.mark.parametrize("algorithm", ["ddqn", "ddpg", "td3", "sac", "mpo", "ppo"])
def test_optimizers_in_a_file(algorithm, tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text(yaml.safe_dump(in_file(algorithm)))
    agent = build(settings_file.read(path)).agent
    critic = Optimizer("adamw", 3e-4, max_grad_norm=0.5, options={"weight_decay": 1e-4})
    expected = {"critic": critic} | ({} if algorithm == "ddqn" else {"actor": Optimizer("lion", 1e-3, DECAY)})
    assert dict(agent.optimizer) == expected
    assert jb.from_config(jb.to_config(agent)) == agent


LION = {"name": "lion", "learning_rate": 1e-3, "options": {"weight_decay": 0.1}}


@pytest.mark.parametrize("name", presets.PRESETS)
def test_an_optimizer_alone_replaces_settings_of_the_preset(name):
    values = {"algorithm": name[0], "environment": name[1], "agent": {"optimizer": LION}}
    settings = complete(settings_file.from_values(values))
    agent = build(settings).agent
    while isinstance(agent, Averaged | Normalized | Recurrent):
        agent = agent.agent
    assert agent.optimizer == Optimizer("lion", 1e-3, options={"weight_decay": 0.1})
    assert Settings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings
    tuned = {name: value for name, value in presets.preset(*name).agent.items() if "learning_rate" not in name}
    assert {**tuned, "max_grad_norm": 0} == {**{name: settings.agent[name] for name in tuned}, "max_grad_norm": 0}


def test_an_optimizer_of_one_group_leaves_the_others_alone():
    agent = {"optimizer": {"actor": {**LION, "schedule": DECAY_IN_FILE}}, "learning_rate_q": 2e-3}
    settings = settings_file.from_values({"algorithm": "td3", "environment": "Pendulum-v1", "agent": agent})
    built = build(settings).agent
    assert dict(built.optimizer) == {"actor": Optimizer("lion", 1e-3, DECAY, options={"weight_decay": 0.1})}
    assert (built.learning_rate_q, built.max_grad_norm) == (2e-3, 10.0)
    assert built.learning_rate_pi == TD3(BOX).learning_rate_pi


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        ({"optimizer": "adamw"}, "agent.optimizer: got 'adamw', expected keys with values"),
        ({"optimizer": {"name": "adamx", "learning_rate": 1}}, "agent.optimizer: Optimizer"),
        ({"optimizer": {"name": "adamw"}}, "agent.optimizer.learning_rate: is missing, expected a number"),
        ({"optimizer": {"name": "adamw", "rate": 1}}, r"agent.optimizer.rate: is unknown \(got 1\); known are: name"),
        ({"optimizer": {"actor": LION}}, "agent: DDQN.* 'actor' is not a group of parameters"),
        ({"optimizer": {"critic": 3}}, "agent.optimizer.critic: got 3, expected keys with values"),
        ({"optimizer": LION, "learning_rate": 1.0}, "agent: DDQN.* `learning_rate` has no effect"),
    ],
)
def test_bad_optimizers_in_a_file(agent, message):
    with pytest.raises(ValueError, match=message):
        build(settings_file.from_values({"algorithm": "ddqn", "environment": "CartPole-v1", "agent": agent}))


@pytest.mark.usefixtures("compiled_once")
def test_a_run_with_optimizers_from_a_file(tmp_path):
    script = load_script("train")
    path, folder = tmp_path / "settings.yaml", tmp_path / "run"
    small = {"start_steps": 32, "update_every": 8, "num_updates": 2, "mini_batch_size": 4, "num_test_episodes": 1}
    path.write_text(yaml.safe_dump({**in_file("sac"), "plan": {"total_steps": 64, "num_envs": 2, **small}}))
    assert script.main(["--config", str(path), "--out", str(folder), "--final-episodes", "1"]) == 0
    kept = RunFolder(folder).settings()
    assert kept.agent["config"]["optimizer"] == in_file("sac")["agent"]["config"]["optimizer"]
