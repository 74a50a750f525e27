"""The docstrings of public functions and components have an example. Pytest runs these examples as doctests."""

from __future__ import annotations

import inspect

import pytest

import algorithms
import jaxrl_buffers as jb
from jaxrl_buffers.component import Component

ELSEWHERE = {"load_policy"}  # needs the folder of a run; docs/guides/policies.md trains one first


@pytest.mark.parametrize(("package", "at_least"), [(jb, 30), (algorithms, 20)])
def test_what_is_public_has_an_example(package, at_least):
    public = {name: getattr(package, name) for name in package.__all__}
    taught = {
        name: value
        for name, value in public.items()
        if (issubclass(value, Component) if inspect.isclass(value) else callable(value))
    }
    assert len(taught) > at_least
    assert {name for name, value in taught.items() if ">>> " not in (value.__doc__ or "")} - ELSEWHERE == set()
