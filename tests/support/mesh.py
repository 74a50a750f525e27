"""Meshes of virtual devices, and functions that run on each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

AXIS = "devices"


def make_mesh(num_devices: int) -> Mesh:
    """Return a mesh of one axis."""
    return Mesh(np.array(jax.devices()[:num_devices]), (AXIS,), axis_types=(AxisType.Auto,))


def on_devices(function: Callable[..., Any], num_devices: int, *specs: Any) -> Callable[..., Any]:
    """Return a function that runs on each device; its results get a first axis of devices.

    Args:
        function: of one device.
        num_devices: `D`.
        *specs: how each argument is split, such as `P()` or `P(None, AXIS)`.
    """

    def of_device(*args: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf[None], function(*args))

    mesh = make_mesh(num_devices)
    return jax.jit(jax.shard_map(of_device, mesh=mesh, in_specs=specs, out_specs=P(AXIS)))
