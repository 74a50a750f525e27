"""What crosses between devices in a training program, read from the program as it is traced: for any number of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
from jax.sharding import AbstractMesh, AxisType

from algorithms.training import loop, parallel

# As JAX calls sums, largest and smallest values over devices; and words in the names of all that crosses.
REDUCTIONS = {"psum", "psum_invariant", "pmax", "pmin"}
COLLECTIVE_WORDS = ("psum", "pmax", "pmin", "all_gather", "all_to_all", "permute", "reduce_scatter", "broadcast_one")


class Crossing(NamedTuple):
    """What every device gets from the others in one iteration, and how much is trained and reported."""

    operations: set[str]
    num_bytes: int
    num_parameters: int
    num_metrics: int


def crossing(agent: Any, buffer: Any, env: Any, plan: Any, num_devices: int) -> Crossing:
    """Return what crosses in the loop of a training program.

    JAX refuses to trace it if agent, key or number of iterations could differ from device to device.
    """
    mesh = AbstractMesh((num_devices,), (parallel.AXIS,), axis_types=(AxisType.Auto,))
    plan = parallel.on_mesh(mesh, plan, agent, buffer)
    parts = *parallel.parts(agent, buffer, plan), env, plan
    begin = parallel.spread(lambda key: loop.init(key, *parts), mesh, gives_state=True)
    run = parallel.spread(lambda state: loop.run(state, *parts, 3), mesh, gives_state=True)
    like = jax.eval_shape(begin, jax.eval_shape(lambda: jax.random.key(0)))
    found = [*_collectives(jax.make_jaxpr(run)(like).jaxpr)]
    inner = like.agent
    while not hasattr(inner, "params"):
        inner = inner.agent
    num_parameters = sum(leaf.size for leaf in jax.tree.leaves(inner.params))
    return Crossing({name for name, _ in found}, sum(size for _, size in found), num_parameters, len(like.sums.names))


def _collectives(jaxpr: Any) -> Iterator[tuple[str, int]]:
    """Yield the name of each collective of a program, and the bytes that each device gets."""
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if any(word in name for word in COLLECTIVE_WORDS):
            yield name, sum(math.prod(var.aval.shape) * var.aval.dtype.itemsize for var in equation.outvars)
        for value in jax.tree.leaves([*equation.params.values()], is_leaf=lambda node: hasattr(node, "eqns")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from _collectives(inner)
