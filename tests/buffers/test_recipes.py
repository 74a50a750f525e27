"""The buffers that have names: all of replay takes the same options of storage."""

from __future__ import annotations

import inspect

import jax
import pytest
from support.helpers import EXAMPLE
from support.registry import relabel

import jaxrl_buffers as jb
from jaxrl_buffers import recipes
from jaxrl_buffers.storage._words import Words

# Each with what it needs beyond a length.
REPLAY = {
    "uniform": {},
    "n_step": {"n": 2},
    "prioritized": {},
    "emphasize_recent": {},
    "guarantee_recent": {"ratio": 0.5, "num_starts": 3.0},
    "hindsight": {"achieved": "next_obs.x", "relabel": relabel},
    "sequences": {"sequence_length": 2},
}
OPTIONS = {
    "lockstep": False,
    "returns": jb.EpisodicReturns(gamma=0.5),
    "frames": jb.Frames(stack=2, axis=0, stacked="image", num_finals=6),
    "keep_episodes": True,
    "platform": "tpu",
}


def test_no_recipe_is_left_out():
    functions = {
        name for name, one in inspect.getmembers(recipes, inspect.isfunction) if one.__module__ == recipes.__name__
    }
    names = {name for name in functions if not name.startswith("_")}
    assert names == {*REPLAY, "rollout"}


@pytest.mark.parametrize("name", REPLAY)
def test_all_of_replay_takes_the_options_of_storage(name):
    plain = getattr(jb, name)(6, 2, **REPLAY[name])
    buffer = getattr(jb, name)(6, 2, **REPLAY[name], **OPTIONS)
    assert {key: getattr(buffer, key) for key in OPTIONS} == OPTIONS
    assert plain == jb.ReplayBuffer(plain.sampler, plain.view, length=6, num_envs=2)
    assert buffer == plain.replace(**OPTIONS)
    state = jax.eval_shape(buffer.init, EXAMPLE)
    assert state.storage.head.shape == (2,)
    assert state.storage.frames
    assert isinstance(state.storage.rows, Words)
    with pytest.raises(TypeError, match="fraems"):
        getattr(jb, name)(6, 2, **REPLAY[name], fraems=jb.Frames())


@pytest.mark.parametrize("name", REPLAY)
@pytest.mark.parametrize("platform", [None, "cpu", "gpu", "tpu"])
def test_the_platform_reaches_the_buffer(name, platform):
    assert getattr(jb, name)(6, 2, **REPLAY[name], platform=platform).platform == platform


@pytest.mark.parametrize("name", REPLAY)
def test_configs_know_the_options_of_storage(name):
    jb.config.register("relabel", relabel)
    config = {**REPLAY[name], "length": 6, "num_envs": 2}
    config |= {"relabel": "relabel"} if name == "hindsight" else {}
    options = OPTIONS | {key: jb.to_config(OPTIONS[key]) for key in ("frames", "returns")}
    built = jb.from_config({"name": name, "config": config | options})
    assert built == getattr(jb, name)(6, 2, **REPLAY[name], **OPTIONS)
    wrong = {"platform": "abacus", "lockstep": 1, "frames": {"name": "NStep"}, "fraems": None}
    with pytest.raises(ValueError, match="cannot build") as error:
        jb.from_config({"name": name, "config": config | wrong})
    for text in (
        "config.platform: got 'abacus', expected one of 'cpu', 'gpu', 'tpu' or nothing.",
        "config.lockstep: got 1, expected true or false.",
        "config.frames.name: 'NStep' names a NStep, expected a Frames as {name: ..., config: {...}}.",
        "config.fraems: is unknown (got None); known are: length, num_envs, ",
    ):
        assert text in str(error.value)
