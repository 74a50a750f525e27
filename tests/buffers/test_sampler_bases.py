"""What samplers share: implemented once, by bases whose methods nobody overrides."""

from __future__ import annotations

import inspect
from unittest import mock

import pytest

import jaxrl_buffers as jb
from jaxrl_buffers import samplers

KINDS = [jb.Uniform, jb.Episodic, jb.Prioritized, jb.Recent, jb.LastN, jb.Combined]
WRAPPINGS = {
    "recent": jb.Recent,
    "adaptive": lambda inner: jb.Recent(inner, adaptive=True),
    "newest": lambda inner: jb.LastN(10, inner),
    "main": lambda inner: jb.Combined(inner, (jb.Uniform(),), (0.5,)),
    "other": lambda inner: jb.Combined(jb.Uniform(), (inner,), (0.5,)),
}
TOLD = {  # as a buffer calls it, and what of that comes behind the state
    "mark": ("slots", "legal", "priorities"),
    "update": ("slots", "priorities", "live", "mask"),
    "reprioritize": ("legal",),
    "report_return": (3.0,),
}


def implemented(kind):
    """Return the methods that a class itself implements, other than those of every dataclass."""
    methods = {name: value for name, value in vars(kind).items() if inspect.isfunction(value)}
    methods = {name for name, value in methods.items() if not getattr(value, "__isabstractmethod__", False)}
    return {name for name in methods if not name.startswith("__")} - {"replace"}


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_that_a_base_implements_is_overridden(kind):
    for base in kind.__mro__[1:]:
        assert not implemented(kind) & implemented(base), base
    assert isinstance(kind(1) if kind is jb.LastN else kind(), jb.Sampler)


@pytest.mark.parametrize("name", WRAPPINGS)
@pytest.mark.parametrize("call", TOLD)
def test_wrapping_samplers_pass_on_what_they_are_told(name, call):
    inner = mock.Mock(spec=jb.Prioritized)
    inner.init.return_value = "state"
    getattr(inner, call).return_value = "changed"
    sampler = WRAPPINGS[name](inner)
    before = sampler.init((4, 2), "tpu")
    inner.init.assert_called_once_with((4, 2), "tpu")
    after = getattr(sampler, call)(before, *TOLD[call])
    getattr(inner, call).assert_called_once_with("state", *TOLD[call])
    expected = sampler.each(before, lambda one, state: "changed" if one is inner else state)
    if call == "report_return" and name == "adaptive":  # which learns from it, too
        assert after.trend.num_returns == before.trend.num_returns + 1
        after = after._replace(trend=before.trend)
    assert after == expected
    assert after != before


@pytest.mark.parametrize("name", [name for name in WRAPPINGS if name != "other"])
def test_the_weights_are_those_of_the_main_sampler(name):
    inner = mock.Mock(spec=jb.Prioritized)
    inner.weights.return_value = "weights"
    assert WRAPPINGS[name](inner).weights("draw") == "weights"
    inner.weights.assert_called_once_with("draw")


@pytest.mark.parametrize("kind", [samplers.Stateless, samplers.Wrapping])
def test_bases_are_abstract(kind):
    with pytest.raises(TypeError, match="abstract"):
        kind()
