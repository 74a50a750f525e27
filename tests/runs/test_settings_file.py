"""Settings of a run from a YAML file."""

from __future__ import annotations

import dataclasses
import json
import types

import jax
import numpy as np
import pytest
from support.scripts import load_script
from support.settings_files import check_refused, settings_of

import jaxrl_buffers as jb
from algorithms import NATURE, Torso, environments, torso_for
from algorithms.networks import MEDIUM
from algorithms.runs import build as build_module
from algorithms.runs import command_line, presets, settings_file
from algorithms.runs.build import build, build_completed, complete
from algorithms.runs.components import SAMPLERS
from algorithms.runs.settings import Settings
from jaxrl_buffers import _yaml as yaml_text

TEXT = """
algorithm: ddqn
environment: CartPole-v1
plan: {total_steps: 1_200, num_envs: 4, update_every: 20, num_updates: 1, mini_batch_size: 16, test_every: 0}
n_step: 2
gamma: 1
hidden_sizes: [8]
capacity: 1_000
agent: {learning_rate: 1e-6}
sampler: {name: prioritized, alpha: 0.7}
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="module")
def script():
    return load_script("train")


def test_what_is_left_out_is_as_in_the_preset(file):
    settings, preset = settings_file.read(file), presets.preset("ddqn", "CartPole-v1")
    assert (settings.n_step, settings.gamma, settings.hidden_sizes, settings.capacity) == (2, 1.0, (8,), 1_000)
    assert (settings.plan.total_steps, settings.plan.start_steps) == (1_200, preset.plan.start_steps)
    assert settings.agent == {**preset.agent, "learning_rate": 1e-6}
    assert settings.sampler == {**preset.sampler, "alpha": 0.7}
    build(settings)


@pytest.mark.parametrize("sampler", ["uniform", {"name": "uniform"}])
def test_another_sampler_does_not_take_over_what_is_tuned(sampler):
    settings = settings_file.from_values({"algorithm": "ddqn", "environment": "CartPole-v1", "sampler": sampler})
    assert settings.sampler == {"name": "uniform"}
    build(settings)


def test_samplers_compose_on_the_command_line():
    """As they do in the library: each option reaches the sampler that it names."""
    recent, base = ("--sampler", "recent", "--sampler.eta", "0.99"), ("prioritized", "--sampler.base.alpha", "0.7")
    sampler = build(settings_of("ddqn", "CartPole-v1", *recent, "--sampler.base", *base)).buffer.sampler
    assert sampler == jb.Recent(jb.Prioritized(alpha=0.7), eta=0.99)


@pytest.mark.parametrize("name", presets.PRESETS)
def test_presets_are_settings_files(name):
    """The file of a preset, given by `--config`, means the preset."""
    algorithm, environment = name
    values = yaml_text.parse((presets.FOLDER / algorithm / f"{environment}.yaml").read_text("utf-8"))
    assert {"algorithm", "environment"} & {*values} == set()  # these are its place
    read = settings_file.from_values(values, algorithm=algorithm, environment=environment)
    assert read == presets.preset(algorithm, environment)


@pytest.mark.parametrize("name", presets.PRESETS)
def test_a_run_is_repeated_from_its_settings(name, tmp_path):
    settings, experiment = build_completed(dataclasses.replace(presets.preset(*name), seed=3, anneal=True))
    assert build(settings) == experiment
    path = tmp_path / "config.json"  # JSON is YAML
    path.write_text(json.dumps(settings.to_dict(), indent=2))
    assert settings_file.read(path) == settings


def test_options_go_before_the_file(file):
    assert settings_of("--config", file) == settings_file.read(file)
    changed = settings_of("--config", file, "--n-step", "5", "--agent.learning-rate", "0.5", "--num-envs", "2")
    assert (changed.n_step, changed.agent["learning_rate"], changed.plan.num_envs) == (5, 0.5, 2)
    assert changed.plan.total_steps == 1_200
    assert changed.sampler["alpha"] == 0.7
    other = settings_of("ddqn", "Acrobot-v1", "--config", file)
    assert (other.environment, other.n_step) == ("Acrobot-v1", 2)
    assert settings_of("--config", file, "--sampler", "uniform").sampler == {"name": "uniform"}


def test_convolutions_are_set_by_options_and_by_files(file):
    options = ("--channels", 32, 64, 64, "--kernel-sizes", 8, 4, 3, "--strides", 4, 2, 1, "--hidden-sizes", 512)
    settings = settings_of("ddqn", "CartPole-v1", *options)
    assert _torso(settings) == NATURE
    assert Settings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings
    file.write_text(json.dumps(settings.to_dict()))
    assert settings_of("--config", file) == settings
    assert jb.from_config(jb.to_config(NATURE)) == NATURE
    assert _torso(settings_of("ddqn", "CartPole-v1", "--channels", 8, 8)).kernel_sizes == (3,)


@pytest.mark.parametrize(
    ("shape", "torso"),
    [
        ((96, 96, 3), NATURE),
        ((36, 80, 1), NATURE),
        ((35, 80, 1), MEDIUM),
        ((20, 20, 3), MEDIUM),
        ((19, 19, 3), Torso()),
        ((10, 10, 4), Torso()),
        ((500,), Torso()),
    ],
)
def test_the_network_fits_the_images(shape, torso):
    obs = {"image": jax.ShapeDtypeStruct(shape, np.uint8), "speed": jax.ShapeDtypeStruct((600,), np.float32)}
    assert torso_for(obs) == torso
    features = jax.eval_shape(torso.init_with_output, jax.random.key(0), obs)[0]
    assert features.shape == torso.hidden_sizes[-1:]


def test_sizes_that_are_given_stay(monkeypatch):
    """What is chosen is saved with the run; a given convolution has the usual kernel of 3 and stride of 1."""
    env = environments.make("CartPole-v1")
    seen = types.SimpleNamespace(
        obs=jax.ShapeDtypeStruct((84, 84, 3), np.uint8),
        **{name: getattr(env, name) for name in ("name", "action_space", "max_episode_length", "goal")},
    )
    monkeypatch.setattr(build_module, "_environment", lambda settings: seen)

    def sizes(*options):
        settings = complete(settings_of("ddqn", "WithoutPreset-v0", *options))
        assert settings == complete(Settings.from_dict(json.loads(json.dumps(settings.to_dict()))))
        return settings.hidden_sizes, settings.channels, settings.kernel_sizes, settings.strides

    assert sizes() == ((512,), (32, 64, 64), (8, 4, 3), (4, 2, 1))
    assert sizes("--hidden-sizes", 32, 16) == ((32, 16), (32, 64, 64), (8, 4, 3), (4, 2, 1))
    assert sizes("--channels", 8, 8) == ((512,), (8, 8), (3,), (1,))
    assert sizes("--strides", 2) == ((512,), (16,), (3,), (2,))


GOOD = {"algorithm": "ddqn", "environment": "CartPole-v1"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"algorithm": "ddqn"}, "environment: is missing"),
        ({**GOOD, "n_stp": 3}, "n_stp: is unknown (got 3); known are: algorithm"),
        ({**GOOD, "n_step": "three"}, "n_step: got 'three', expected a whole number"),
        ({**GOOD, "n_step": 2.0}, "n_step: got 2.0, expected a whole number"),
        ({**GOOD, "anneal": 1}, "anneal: got 1, expected true or false"),
        ({**GOOD, "hidden_sizes": 64}, "hidden_sizes: got 64, expected a list"),
        ({**GOOD, "plan": 5}, "plan: got 5, expected keys with values"),
        ({**GOOD, "plan": {"total_steps": "many"}}, "plan.total_steps: got 'many', expected a whole number"),
        ({**GOOD, "plan": {"total": 5}}, "plan.total: is unknown (got 5)"),
        ({**GOOD, "plan": {"total_steps": 50_001}}, "nearest total is 50000"),
        ({**GOOD, "agent": {"polyak": "x"}}, "agent.polyak: got 'x', expected a number"),
        ({**GOOD, "agent": {"torso": {}}}, "agent.torso: is unknown"),
        ({**GOOD, "agent": {"polyak": 2.0}}, "polyak"),
        ({**GOOD, "sampler": {"method": "distinct"}}, "sampler.method: is unknown (got 'distinct')"),
        ({**GOOD, "algorithm": "ddq"}, "did you mean ddqn"),
        ({**GOOD, "environment": 3}, "environment: got 3, expected a string"),
        ({**GOOD, "sampler": "prioritised"}, "did you mean prioritized"),
        ([1, 2], "got [1, 2], expected the keys of Settings"),
    ],
)
def test_bad_files_are_one_clear_line(script, capsys, tmp_path, values, message):
    check_refused(script, capsys, tmp_path, values, message)


@pytest.mark.parametrize(
    ("text", "message"), [("a: [", "cannot be read"), ("a: 1\na: 2", "given twice"), (None, "No such")]
)
def test_files_that_cannot_be_read(script, capsys, tmp_path, text, message):
    path = tmp_path / "settings.yaml"
    if text is not None:
        path.write_text(text)
    assert script.main(["--config", str(path)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_names_behind_options(script, capsys, file):
    assert script.main(["--config", str(file), "--seed", "1", "sac", "CartPole-v1"]) == 2
    assert "put them before the options" in capsys.readouterr().err


def _torso(settings):
    """Return the torso of the agent inside the wrappers of the preset: averaging and normalizing."""
    return build(settings).agent.agent.agent.torso


def test_every_sampler_but_combined_has_a_name():
    found = {name for name in jb.samplers.__all__ if not name.endswith("State")} - {"Stateless", "Wrapping"}
    assert found - {kind.__name__ for kind in SAMPLERS.values()} == {"Combined"}
    words = ["ddqn", "CartPole-v1", "--sampler", "episodic", "--sampler.whole"]
    assert build(command_line.parse(words).settings).buffer.sampler == jb.Episodic(whole=True)
