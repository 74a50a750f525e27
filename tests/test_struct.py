"""Our dataclasses that are pytrees do what those of `flax.struct` do."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import pytest

import jaxrl_buffers as jb
from jaxrl_buffers import _struct


class Ours(_struct.PyTreeNode):
    factor: Any
    inner: Any = ()
    name: str = _struct.field(pytree_node=False, default="a")
    last: Any = _struct.field(default=1.0, kw_only=True, metadata={"unit": "s"})


class Theirs(flax.struct.PyTreeNode):
    factor: Any
    inner: Any = ()
    name: str = flax.struct.field(pytree_node=False, default="a")
    last: Any = flax.struct.field(default=1.0, kw_only=True, metadata={"unit": "s"})


def test_leaves_their_paths_and_static_fields_are_the_same():
    ours, theirs = (kind(1.0, (2.0,), "b", last=3.0) for kind in (Ours, Theirs))
    assert jax.tree.leaves(ours) == jax.tree.leaves(theirs)
    paths = [[jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(one)] for one in (ours, theirs)]
    assert paths[0] == paths[1] == [".factor", ".inner[0]", ".last"]
    assert jax.tree.structure(ours) == jax.tree.structure(ours.replace(factor=5.0))
    assert jax.tree.structure(ours) != jax.tree.structure(ours.replace(name="c"))
    fields = [
        [(one.name, dict(one.metadata), one.kw_only) for one in dataclasses.fields(kind)] for kind in (Ours, Theirs)
    ]
    assert fields[0] == fields[1]


@pytest.mark.parametrize("kinds", [(Ours, Theirs), (Theirs, Ours)])
def test_either_kind_stands_inside_the_other(kinds):
    outer, inner = kinds
    component = outer(inner(2.0))
    assert jb.parameters(component) == {"factor.factor": 2.0, "factor.last": 1.0, "last": 1.0}
    changed = jb.with_parameters(component, {"factor.factor": 3.0})
    assert jax.jit(lambda one: one.factor.factor * 2)(changed) == 6
    many = jax.tree.map(lambda leaf: leaf * jnp.arange(3), component)
    assert jax.vmap(lambda one: one.factor.factor + one.last)(many).tolist() == [0, 3, 6]


def test_components_are_frozen_equal_hashed_and_pickled():
    component = Ours(1.0, name="b")
    assert pickle.loads(pickle.dumps(component)) == component
    assert hash(component) == hash(Ours(1.0, name="b"))
    assert component != component.replace(name="c")
    with pytest.raises(dataclasses.FrozenInstanceError):
        component.factor = 2.0
    with pytest.raises(TypeError, match="unexpected keyword"):
        component.replace(unknown=1)
    assert repr(component) == "Ours(factor=1.0, inner=(), name='b', last=1.0)"
