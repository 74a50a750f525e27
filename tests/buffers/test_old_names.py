"""Old public names still work, with a warning that gives the new one."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import jaxrl_buffers as jb


@pytest.mark.parametrize(("old", "new"), [("Mix", "Combined"), ("MixState", "CombinedState"), ("Newest", "LastN")])
@pytest.mark.parametrize("module", [jb, jb.samplers])
def test_classes(module, old, new):
    with pytest.warns(DeprecationWarning, match=f"`{old}` is now called `{new}`") as warned:
        found = getattr(module, old)
    assert found is getattr(jb.samplers, new)
    assert [one.filename for one in warned] == [__file__]


def test_configs():
    config = {"name": "Mix", "config": {"others": [{"name": "Newest", "config": {"num_starts": 3}}], "ratios": [0.5]}}
    with pytest.warns(DeprecationWarning, match="is now called") as warned:
        built = jb.from_config(config)
    assert built == jb.Combined(others=(jb.LastN(3.0),), ratios=(0.5,))
    assert sorted(str(one.message).split("`")[1] for one in warned) == ["Mix", "Newest"]


@pytest.mark.parametrize("buffer", [jb.emphasize_recent(8, adaptive=True), jb.Mixture((jb.uniform(8),))])
def test_returns_of_an_agent(buffer):
    state = buffer.init(jb.Transition(0.0, 0.0, 0.0, False, False, 0.0))
    with pytest.warns(DeprecationWarning, match="`report_return`"):
        found = buffer.observe(state, 2.0)
    jax.tree.map(np.testing.assert_array_equal, found, buffer.report_return(state, 2.0))


def test_unknown_names_are_refused():
    for module in (jb, jb.samplers):
        with pytest.raises(AttributeError, match="has no attribute 'Nonsense'"):
            module.Nonsense  # noqa: B018
