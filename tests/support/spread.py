"""States that are spread over devices, made of states of single devices, without anything that trains."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from support.helpers import EXAMPLE, random_transition, stack

from jaxrl_buffers import _shards as shards

LENGTH, NUM_ENVS, NUM_ROWS = 6, 8, 9  # rows wrap around


def mesh_of(num_devices):
    return Mesh(jax.devices()[:num_devices], ("devices",), axis_types=(AxisType.Auto,))


def material(seed=0):
    """Return rows `[K, N, ...]`, and a priority for each."""
    rng = np.random.default_rng(seed)
    rows = stack([[random_transition(rng, row) for _ in range(NUM_ENVS)] for row in range(NUM_ROWS)])
    return rows, jnp.asarray(rng.uniform(0.1, 3, (NUM_ROWS, NUM_ENVS)), jnp.float32)


def filled(make, rows, priorities):
    """Return the state of one device, to which rows were added one by one with the given priorities, and returns."""
    num_envs = priorities.shape[1]
    buffer = make(LENGTH, num_envs)
    state = buffer.init(EXAMPLE)
    for row in range(NUM_ROWS):
        chunk, given = jax.tree.map(lambda leaf: leaf[row][None], (rows, priorities))  # noqa: B023
        state = buffer.add(state, chunk, priorities=given)
        state = buffer.report_return(state, jnp.float32(row * row))  # which are those of all devices
    return state


def spread(make, num_devices, rows, priorities):
    """Return the state of `NUM_ENVS` environments, split over devices."""
    if num_devices == 1:
        return filled(make, rows, priorities)
    cut = np.split(np.arange(NUM_ENVS), num_devices)
    parts = [filled(make, jax.tree.map(lambda leaf: leaf[:, own], rows), priorities[:, own]) for own in cut]  # noqa: B023
    return shards.whole(like(make, num_devices), parts)


def like(make, num_devices):
    """Return the shapes of that state."""
    whole = jax.eval_shape(make(LENGTH, NUM_ENVS).init, EXAMPLE)
    if num_devices == 1:
        return whole
    sharding = NamedSharding(mesh_of(num_devices), PartitionSpec("devices"))

    def with_devices(leaf):
        return jax.ShapeDtypeStruct((num_devices, *leaf.shape), leaf.dtype, sharding=sharding)

    of_device = jax.eval_shape(make(LENGTH, NUM_ENVS // num_devices).init, EXAMPLE)
    return shards.OfDevices(jax.tree.map(with_devices, of_device), whole)


def leaves(state):
    """Return the arrays of a state, in one list."""
    return jax.tree.leaves(state.state if isinstance(state, shards.OfDevices) else state)
