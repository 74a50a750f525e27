"""Components from dicts and YAML: what is accepted, what is refused and how, and the way back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from flax import struct
from support.registry import BUFFERS, relabel

import jaxrl_buffers as jb
from jaxrl_buffers import config
from jaxrl_buffers.types import Scalar

TEXT = """
name: ReplayBuffer
config:
  length: 250_000
  num_envs: 16
  sampler:
    name: Recent
    config:
      sampler: {name: Prioritized, config: {alpha: 1, epsilon: 1e-6, initial: 2.5E+1}}
      c_min: 5_000
  view: {name: NStep, config: {n: 3}}
"""


class Goal(struct.PyTreeNode):
    """A component of one's own with every kind of field."""

    relabel: Callable[..., float]
    where: str | Callable[..., float] = struct.field(pytree_node=False, default="goal")
    inner: jb.Uniform | None = None
    limits: tuple[float, float] = struct.field(pytree_node=False, default=(0.0, 1.0))
    rate: Scalar | None = None


class Scaled(struct.PyTreeNode):
    """A component that may stand for a function from a number to a number."""

    factor: Scalar = 2.0

    def __call__(self, value: float) -> float:
        return self.factor * value


class Ratio(struct.PyTreeNode):
    """A component that may not: it is called with two."""

    def __call__(self, value: float, other: float) -> float:
        return value / other


class Asks(struct.PyTreeNode):
    """A component that is made of a function from a number to a number."""

    change: Callable[[float], float] = struct.field(pytree_node=False)


def half(value):
    return value / 2


for _component in (Goal, Scaled, Ratio, Asks):
    config.register_component(_component)
config.register("half", half)
config.register("relabel", relabel)


def test_a_nested_buffer_with_defaults_filled_in(tmp_path: Path):
    sampler = jb.Recent(jb.Prioritized(alpha=1.0, epsilon=1e-6, initial=25.0), c_min=5_000)
    expected = jb.ReplayBuffer(sampler, jb.NStep(n=3), length=250_000, num_envs=16)
    file = tmp_path / "buffer.yaml"
    file.write_text(TEXT)
    for built in (
        jb.from_yaml(TEXT),
        jb.from_yaml(file),
        jb.from_yaml(str(file)),
        jb.from_config(yaml.safe_load(TEXT)),
    ):
        assert built == expected
        assert type(built.sampler.sampler.alpha) is float
    assert jb.from_config({"name": "Uniform"}) == jb.from_yaml("name: Uniform\nconfig:") == jb.Uniform()
    assert jb.from_config({"name": "uniform", "config": {"length": 5}}) == jb.uniform(5)
    with pytest.raises(FileNotFoundError):
        jb.from_yaml(tmp_path / "missing.yaml")
    with pytest.raises(FileNotFoundError):
        jb.from_yaml("missing.yaml")


@pytest.mark.parametrize("name", BUFFERS)
def test_every_buffer_goes_to_a_config_and_back(name):
    buffer = BUFFERS[name](12, 2)
    written = jb.to_config(buffer)
    assert jb.from_config(written) == buffer
    assert jb.from_yaml(yaml.safe_dump(written)) == buffer


def test_hindsight_and_episodic_returns_go_there_and_back():
    sampler = {"name": "Episodic", "config": {"whole": True}}
    view = {"name": "Hindsight", "config": {"achieved": "next_obs.x", "relabel": "relabel", "strategy": "final"}}
    returns = {"name": "EpisodicReturns", "config": {"reward_clip": [-1, 1.5], "bootstrap": "extras.value"}}
    built = jb.from_config(
        {"name": "ReplayBuffer", "config": {"length": 9, "sampler": sampler, "view": view, "returns": returns}}
    )
    assert built == jb.ReplayBuffer(
        jb.Episodic(whole=True),
        jb.Hindsight(achieved="next_obs.x", relabel=relabel, strategy="final"),
        length=9,
        returns=jb.EpisodicReturns(reward_clip=(-1.0, 1.5), bootstrap="extras.value"),
    )
    assert jb.from_yaml(yaml.safe_dump(jb.to_config(built))) == built
    by_function = jb.Hindsight(achieved=half, relabel=relabel)
    assert jb.from_config(jb.to_config(by_function)) == by_function
    rollout = jb.rollout(5, num_envs=2)
    assert jb.from_config(jb.to_config(rollout)) == rollout
    with pytest.raises(ValueError, match=r"relabel: got 'unheard_of', expected the name of a registered function"):
        jb.from_config({"name": "Hindsight", "config": {"achieved": "next_obs", "relabel": "unheard_of"}})


def test_mixtures_functions_and_arrays_go_there_and_back():
    mixture = jb.Mixture((jb.uniform(5), jb.prioritized(6)), (1.0, 2.0))
    assert jb.from_config(jb.to_config(mixture)) == mixture
    goal = Goal(half, where=half, inner=jb.Uniform("distinct"), limits=(1.0, 2.0), rate=0.5)
    assert jb.to_config(goal)["config"]["relabel"] == "half"
    assert jb.from_config(jb.to_config(goal)) == goal
    assert jb.from_config(jb.to_config(Goal(half))) == Goal(half)
    annealed = jb.to_config(jb.Prioritized(beta=jnp.float32(0.5), alpha=np.float32(0.25)))
    assert jb.from_config(annealed) == jb.Prioritized(beta=0.5, alpha=0.25)
    with pytest.raises(ValueError, match=r"function.*register\(\) it first"):
        jb.to_config(Goal(lambda value: value))
    with pytest.raises(ValueError, match=r"not a registered component; see register_component\(\)"):
        jb.to_config(3)


def buffer_with(**entries):
    return {"name": "ReplayBuffer", "config": {"length": 8} | entries}


def sampler_with(**entries):
    return buffer_with(sampler={"name": "Prioritized", "config": entries})


@pytest.mark.parametrize(
    ("given", "messages"),
    [
        *[({"name": "Uniform", "config": wrong}, [f"config: got {wrong!r}, expected the"]) for wrong in (0, [], "")],
        ({"name": "ReplayBuffer"}, ["config.length: is missing, expected a whole number"]),
        (buffer_with(size=3), ["config.size: is unknown (got 3)", "known are: sampler, view, length, num_envs"]),
        (buffer_with(length="many"), ["config.length: got 'many', expected a whole number"]),
        (buffer_with(length="250"), ["config.length: got '250', expected a whole number"]),
        (buffer_with(length=8.0), ["config.length: got 8.0, expected a whole number"]),
        (buffer_with(num_envs=True), ["config.num_envs: got True, expected a whole number"]),
        (buffer_with(lockstep=1), ["config.lockstep: got 1, expected true or false"]),
        (buffer_with(length=-1), ["config: ReplayBuffer(length=-1)", "at least 1"]),
        (buffer_with(sampler="Uniform"), ["config.sampler: got 'Uniform', expected a Sampler as {name: ..., config:"]),
        (buffer_with(sampler={"name": "Unifrom"}), ["config.sampler.name: 'Unifrom' is unknown", "Uniform"]),
        (buffer_with(sampler={"name": "NStep"}), ["config.sampler.name: 'NStep' names a NStep, expected a Sampler"]),
        (buffer_with(sampler={"name": "Uniform", "alpha": 1}), ["config.sampler.alpha: is unknown"]),
        (buffer_with(sampler={"name": "Uniform", "config": [1]}), ["config.sampler.config: got [1], expected the"]),
        (sampler_with(alpha="high"), ["config.sampler.config.alpha: got 'high', expected a number"]),
        (sampler_with(alpha=True), ["config.sampler.config.alpha: got True, expected a number"]),
        (sampler_with(alpha=None), ["config.sampler.config.alpha: got None, expected a number"]),
        (sampler_with(alpha=-1), ["config.sampler.config: Prioritized(alpha=-1.0)", "at least 0"]),
        (sampler_with(weighting="both"), ["Prioritized(weighting='both')", "'buffer', 'batch', 'alf'"]),
        (sampler_with(alpha="x", betta=1), ["config.sampler.config.alpha: got 'x'", "config.sampler.config.betta: is"]),
        ({"name": "Combined", "config": {"others": [{"name": "Uniform"}, {"name": "LastN"}], "ratios": [0.1, "x"]}},
         ["config.others.1.config.num_starts: is missing", "config.ratios.1: got 'x', expected a list of which each"]),
        ({"name": "Goal", "config": {"relabel": "os.system"}}, ["config.relabel: got 'os.system'", "function (half, "]),
        ({"name": "Goal", "config": {"relabel": "half", "limits": [1]}}, ["config.limits", "a list of which each"]),
        ({"name": "Goal", "config": {"relabel": {"name": "NStep"}}}, ["config.relabel: got {'name': 'NStep'}, exp"]),
        ({"name": "Goal", "config": {"relabel": {"name": "Uniform"}}}, ["config.relabel: got {'name': 'Uniform'},"]),
        ({"name": "Uniform", "config": {1: 2, None: 3}}, ["config.1: is unknown", "config.None: is unknown"]),
        ({"name": "Uniform", "config": {(1, 2): 2, 0.5: 1}}, ["config.(1, 2): is", "config.0.5: is"]),
        ({"name": "Uniform", 1: 2, None: 3}, ["1: is unknown; known are: name, config", "None: is unknown"]),
        (sampler_with(alpha=[1]), ["config.sampler.config.alpha: got [1], expected a number"]),
        (sampler_with(alpha=float("inf")), ["config.sampler.config: Prioritized(alpha=inf)", "finite in 32 bits"]),
        ({"name": "NStep", "config": {"gamma": float("-inf")}}, ["config: NStep(gamma=-inf)", "finite in 32 bits"]),
        ({"name": "Nothing"}, ["name: 'Nothing' is unknown, expected one of", "ReplayBuffer"]),
        ({"config": {}}, ["the whole: got {'config': {}}, expected a component as {name: ..., config: {...}}"]),
        ([1], ["the whole: got [1], expected a component"]),
    ],
)  # fmt: skip
def test_one_error_names_key_value_and_what_was_expected(given, messages):
    with pytest.raises(ValueError, match="cannot build") as caught:
        jb.from_config(given)
    for message in messages:
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("written", "value"), [("1e-6", 1e-6), ("1", 1.0), ("1_000", 1000.0), ("-0", 0.0), ("2.5E3", 2500.0)]
)
def test_numbers_as_people_write_them(written, value):
    for text in (written, f"'{written}'"):
        assert jb.from_yaml(f"name: Prioritized\nconfig: {{epsilon: {text}}}").epsilon == value


def test_components_that_are_called_alike_may_stand_for_functions():
    built = jb.from_config({"name": "Asks", "config": {"change": {"name": "Scaled", "config": {"factor": 3}}}})
    assert built == Asks(Scaled(3.0))
    assert jb.from_config(jb.to_config(built)) == built
    for name in ("Ratio", "NStep", "Uniform"):
        with pytest.raises(ValueError, match=r"config\.change: got .*, expected the name of a registered function"):
            jb.from_config({"name": "Asks", "config": {"change": {"name": name}}})


def test_optional_parts():
    built = jb.from_config({"name": "Goal", "config": {"relabel": "half", "where": "a.b", "inner": None, "rate": 1}})
    assert built == Goal(half, where="a.b", rate=1.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("!!python/object/apply:os.system ['exit: 1']", "os.system' is not allowed"),
        ("name: !!python/name:os.system ''", "os.system' is not allowed"),
        ("name: Uniform\nname: Combined", "the key 'name' is given twice"),
        ("name: [Uniform\n", "the YAML text cannot be read"),
        ("- name: Uniform", "expected a component"),
    ],
)
def test_unsafe_or_broken_yaml_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        jb.from_yaml(text)


def test_names_stand_for_one_thing():
    config.register("half", half)
    with pytest.raises(ValueError, match="'half' is taken"):
        config.register("half", print)
    with pytest.raises(ValueError, match="'Uniform' is taken"):
        config.register_component(Goal, "Uniform")
