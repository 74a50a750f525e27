"""Components are frozen dataclasses and pytrees, checked when a person makes them and not when JAX does."""

from __future__ import annotations

import abc
import dataclasses
import pickle
from typing import Any

import flax.serialization
import flax.struct
import jax
import jax.numpy as jnp
import pytest

import jaxrl_buffers as jb
from jaxrl_buffers.component import Component, field


class Ours(Component):
    factor: Any
    inner: Any = ()
    name: str = field(static=True, default="a")
    last: Any = field(default=1.0, kw_only=True, metadata={"unit": "s"})


class Theirs(flax.struct.PyTreeNode):
    factor: Any
    inner: Any = ()
    name: str = flax.struct.field(pytree_node=False, default="a")
    last: Any = flax.struct.field(default=1.0, kw_only=True, metadata={"unit": "s"})


class Positive(Component):
    factor: Any
    other: Any = 1.0

    def __post_init__(self):
        if not self.factor > 0:
            raise ValueError("factor")


class Renamed(Component):
    base: Any = 1.0
    size: int = field(static=True, default=2)

    renamed = {"sampler": "base", "count": "size"}  # noqa: RUF012


class Outer(Component):
    part: Any


def test_leaves_paths_and_static_fields_are_those_of_flax():
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
    state = flax.serialization.to_state_dict(component)
    assert state == {"factor": {"factor": 2.0, "inner": {}, "last": 1.0}, "inner": {}, "last": 1.0}
    changed = state | {"factor": state["factor"] | {"factor": 7.0}}
    assert flax.serialization.from_state_dict(component, changed).factor.factor == 7
    with pytest.raises(ValueError, match=r"factor"):
        flax.serialization.from_state_dict(component, {"last": 1.0})


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


def test_what_jax_rebuilds_is_equal_and_frozen():
    component = Ours(1.0, (2.0,), name="b")
    again = jax.tree.unflatten(jax.tree.structure(component), jax.tree.leaves(component))
    assert again == component
    assert repr(again) == repr(component)
    assert pickle.loads(pickle.dumps(again)) == component
    with pytest.raises(dataclasses.FrozenInstanceError):
        again.factor = 2.0


def test_checks_run_when_a_person_makes_a_component_and_only_then():
    with pytest.raises(ValueError, match="factor"):
        Positive(-1.0)
    component = Positive(1.0)
    with pytest.raises(ValueError, match="factor"):
        component.replace(factor=-1.0)
    with pytest.raises(ValueError, match="factor"):
        jb.with_parameters(Outer(component), {"part.factor": -1.0})
    for stand_in in (None, -1.0, object(), [], jax.ShapeDtypeStruct((), jnp.float32)):
        assert type(jax.tree.map(lambda _: stand_in, component)) is Positive  # noqa: B023


def test_abstract_components_are_not_made():
    class Abstract(Component, abc.ABC):
        factor: Any = 1.0

        @abc.abstractmethod
        def draw(self):
            """Do what only a class of it can do."""

    class Concrete(Abstract):
        other: Any = 2.0

        def draw(self):
            return self.factor + self.other

    with pytest.raises(TypeError, match="abstract"):
        Abstract()
    assert Concrete(3.0).draw() == 5
    assert jax.tree.leaves(Concrete(3.0)) == [3.0, 2.0]


def test_old_names_of_fields_are_translated():
    with pytest.warns(DeprecationWarning, match="`sampler` of Renamed is now called `base`") as caught:
        component = Renamed(sampler=3.0)
    assert caught[0].filename == __file__
    assert component == Renamed(base=3.0)
    with pytest.warns(DeprecationWarning, match="`count`") as caught:
        assert component.replace(count=5) == Renamed(3.0, 5)
    assert caught[0].filename == __file__
    with pytest.warns(DeprecationWarning, match="`sampler`") as caught:
        assert component.sampler == 3
    assert caught[0].filename == __file__
    with pytest.warns(DeprecationWarning, match="`sampler`") as caught:
        assert jb.with_parameters(Outer(component), {"part.sampler": 4.0}) == Outer(Renamed(4.0))
    assert caught[0].filename == __file__
    with pytest.warns(DeprecationWarning, match="sampler"), pytest.raises(TypeError, match="both"):
        Renamed(sampler=1.0, base=2.0)
