"""Training on a mesh of devices: `jax.shard_map` runs the functions of `loop.py` on every device.

    mesh = parallel.make_mesh(8)                                       # eight devices share one seed
    state = parallel.init(mesh, key, agent, buffer, env, plan)         # the other arguments are those of `train`
    state = parallel.run(mesh, state, agent, buffer, env, plan, num_iterations=100)

The environments and the batches are split equally over the devices. Training on several devices differs from training
on one device only by `jaxrl_buffers.Sharded`, by the wrapper `DataParallel`, and by the keys of `keys.py`.

The state is a `TrainState` of global arrays. For a seed that `D` devices share,

* every device has the agent, the key and the number of iterations,
* the environments `[N, ...]` are split over the devices, in order,
* the buffer's state has leaves `[D, ...]`, and so do the sums of metrics. Device `d` has entry `d`: the state of a
  buffer for `N / D` environments. With one device there is no axis of devices.

If the mesh has an axis of seeds, all leaves have a first axis `S`, which is split over it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from algorithms.environments import Environment
from algorithms.training import loop, plan_checks
from algorithms.training.learning import Buffer
from algorithms.training.plan import AXIS, Plan
from algorithms.training.train_state import TrainState
from algorithms.types import Agent, OnPolicyAgent
from algorithms.wrappers.data_parallel import DataParallel
from jaxrl_buffers import Mixture, MixtureState, ReplayState, Rollout, shard
from jaxrl_buffers._checks import nearest_multiples
from jaxrl_buffers.types import PyTree

SEEDS = "seeds"  # the mesh axis over which seeds are split
BUFFER_STATES = (ReplayState, MixtureState)


def make_mesh(num_devices: int, num_groups: int | None = None, devices: Sequence[Any] | None = None) -> Mesh:
    """Return a mesh in which `num_devices` devices share each seed.

    Args:
        num_devices: `D`.
        num_groups: the number of groups of `D` devices over which seeds are split. None for a single seed, whose state
            has no axis of seeds.
        devices: the devices; by default the first ones that JAX knows.
    """
    needed = num_devices * (num_groups or 1)
    chosen = list(jax.devices() if devices is None else devices)[:needed]
    if len(chosen) < needed:
        raise ValueError(
            f"{needed} devices are needed, but there are {len(chosen)}; use fewer. A CPU counts as several devices if "
            f"JAX_NUM_CPU_DEVICES={needed} is set before Python starts."
        )
    names = (AXIS,) if num_groups is None else (SEEDS, AXIS)
    shape = (num_devices,) if num_groups is None else (num_groups, num_devices)
    return Mesh(np.array(chosen, object).reshape(shape), names, axis_types=(AxisType.Auto,) * len(names))


def init(
    mesh: Mesh, key: jax.Array, agent: Agent, buffer: Buffer, env: Environment, plan: Plan, agent_state: PyTree = None
) -> TrainState:
    """Return the state after the first steps, before the first update; consumes `key`. See `train`.

    If the mesh has an axis of seeds, `key` are keys `[S]`, and leaves of `agent_state` are `[S, ...]`.
    """
    plan = on_mesh(mesh, plan, agent, buffer)

    def begin(key: jax.Array, agent_state: PyTree) -> TrainState:
        return loop.init(key, *parts(agent, buffer, plan), env, plan, agent_state=agent_state)

    return jax.jit(spread(begin, mesh, gives_state=True))(key, agent_state)


def run(
    mesh: Mesh, state: TrainState, agent: Agent, buffer: Buffer, env: Environment, plan: Plan, num_iterations: int
) -> TrainState:
    """Run some iterations; see `loop.run`. The memory of `state` is used up."""
    plan = on_mesh(mesh, plan, agent, buffer)

    def advance(state: TrainState) -> TrainState:
        return loop.run(state, *parts(agent, buffer, plan), env, plan, num_iterations)

    return jax.jit(spread(advance, mesh, gives_state=True), donate_argnums=0)(state)


def on_mesh(mesh: Mesh, plan: Plan, agent: Agent, buffer: Buffer) -> Plan:
    """Return the plan for the devices of a mesh. Refuse numbers that they do not divide, and buffers that do not fit.

    An error names the nearest numbers that they divide.
    """
    plan = dataclasses.replace(plan, devices=mesh.shape[AXIS])
    # Since Python 3.12, `isinstance` takes every wrapper for an on-policy agent, so only a rollout may ask it.
    by_columns = isinstance(buffer, Rollout) and isinstance(agent, OnPolicyAgent) and agent.learns_from_columns
    plan.check_buffer(buffer, by_columns=by_columns)
    check(buffer, plan)
    return plan


def check(buffer: Buffer, plan: Plan) -> None:
    """Refuse a buffer that cannot be split over the devices of a plan."""
    for part in buffer.buffers if isinstance(buffer, Mixture) else (buffer,):
        if part.num_envs % plan.devices:
            raise ValueError(
                f"a buffer for {part.num_envs} environments cannot be split over {plan.devices} devices; "
                f"{nearest_multiples(part.num_envs, plan.devices)} environments would do."
            )
    plan_checks.check_shares(plan, buffer)
    shard(_of_device(buffer, plan.devices), plan.axis)


def parts(agent: Agent, buffer: Buffer, plan: Plan) -> tuple[Agent, Any]:
    """Return the agent and the buffer of one device, given those of all devices."""
    if plan.axis is None:
        return agent, buffer
    return DataParallel(agent, plan.axis), shard(_of_device(buffer, plan.devices), plan.axis)


def _of_device(buffer: Buffer, num_devices: int) -> Any:
    if isinstance(buffer, Mixture):
        return buffer.replace(buffers=tuple(_of_device(part, num_devices) for part in buffer.buffers))
    return buffer.replace(num_envs=buffer.num_envs // num_devices)


def spread(
    function: Callable[..., Any], mesh: Mesh, num_shared: int = 0, gives_state: bool = False
) -> Callable[..., Any]:
    """Return the function of all devices and seeds, given the function of one seed on one device.

    The function gets a `TrainState`, or a buffer's state, as that of one device. All other values are the same on all
    devices that share a seed.

    Args:
        function: takes first the arguments of each seed, and then those that are the same for all seeds.
        mesh: the devices.
        num_shared: the number of arguments that are the same for all seeds.
        gives_state: whether the function returns a `TrainState`.
    """

    def of_device(*args: Any) -> Any:
        result = function(*(_without_axis(arg) if mesh.shape[AXIS] > 1 else arg for arg in args))
        return _with_axis(result) if gives_state and mesh.shape[AXIS] > 1 else result

    def of_all(*args: Any) -> Any:
        num_own = len(args) - num_shared
        of_seeds = of_device
        if SEEDS in mesh.axis_names:
            of_seeds = jax.vmap(of_device, in_axes=(0,) * num_own + (None,) * num_shared)
        in_specs = tuple(map(specs, [mesh] * num_own, args)) + (P(),) * num_shared
        out_specs = _state_specs(mesh) if gives_state else _same(mesh)
        return jax.shard_map(of_seeds, mesh=mesh, in_specs=in_specs, out_specs=out_specs)(*args)

    return of_all


def specs(mesh: Mesh, value: PyTree) -> Any:
    """Return how a value is split over a mesh: the specification of all its leaves, or of those of its fields."""
    if isinstance(value, TrainState):
        return _state_specs(mesh)
    return _split(mesh) if isinstance(value, BUFFER_STATES) else _same(mesh)


def shardings(mesh: Mesh, value: PyTree) -> Any:
    """Return where each leaf of a value lies on a mesh."""
    wanted = specs(mesh, value)
    if not isinstance(value, TrainState):
        return jax.tree.map(lambda _: NamedSharding(mesh, wanted), value)
    fields = zip(wanted, value, strict=True)
    return TrainState(*(jax.tree.map(lambda _: NamedSharding(mesh, spec), part) for spec, part in fields))  # noqa: B023


def _state_specs(mesh: Mesh) -> Any:
    same, split = _same(mesh), _split(mesh)
    return TrainState(agent=same, buffer=split, collector=split, key=same, iteration=same, sums=split)


def _same(mesh: Mesh) -> Any:
    """Return the specification of what is the same on all devices that share a seed."""
    return P(SEEDS) if SEEDS in mesh.axis_names else P()


def _split(mesh: Mesh) -> Any:
    """Return the specification of what is split over the devices that share a seed."""
    return P(*_same(mesh), AXIS) if mesh.shape[AXIS] > 1 else _same(mesh)


def _without_axis(value: PyTree) -> Any:
    """Return what a device has, without the axis of devices."""
    if isinstance(value, TrainState):
        return value._replace(buffer=_first(value.buffer), sums=_first(value.sums))
    return _first(value) if isinstance(value, BUFFER_STATES) else value


def _first(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[0], tree)


def _with_axis(state: TrainState) -> TrainState:
    """Return the state of a device with an axis of devices."""
    buffer, sums = jax.tree.map(lambda leaf: leaf[None], (state.buffer, state.sums))
    return state._replace(buffer=buffer, sums=sums)
