"""The training program whose cost on many devices is measured: SAC with prioritized replay in Pendulum-v1."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

import jaxrl_buffers as jb
from algorithms import SAC, Plan, Torso, environments
from algorithms.training import loop, parallel
from algorithms.training.train_state import TrainState


class Task(NamedTuple):
    """What every device does in one iteration: a step in each of its environments, and one update."""

    hidden_sizes: tuple[int, ...] = (256, 256)
    slots: int = 2**20  # of the buffer on each device
    num_envs: int = 16  # on each device
    batch_size: int = 256  # on each device
    platform: str = "cpu"

    def parts(self, mesh: Mesh) -> tuple[Any, Any, Any, Plan]:
        """Return agent, buffer, environment and plan of one device."""
        num_devices = mesh.shape[parallel.AXIS]
        num_envs, env = self.num_envs * num_devices, environments.make("Pendulum-v1")
        agent = SAC(env.action_space, Torso(self.hidden_sizes))
        buffer = jb.prioritized(self.slots // self.num_envs, num_envs).replace(platform=self.platform)
        plan = Plan(
            1_000 * num_envs,
            num_envs=num_envs,
            start_steps=100 * num_envs,
            update_every=num_envs,
            num_updates=1,
            mini_batch_size=self.batch_size * num_devices,
            test_every=0,
        )
        plan = parallel.on_mesh(mesh, plan, agent, buffer)
        return *parallel.parts(agent, buffer, plan), env, plan

    def begin(self, mesh: Mesh) -> Any:
        """Return the program that makes the first state, given a key; keys `[S]` for a mesh with an axis of seeds."""
        return begin(self.parts(mesh), mesh)

    def run(self, mesh: Mesh, num_iterations: int) -> Any:
        """Return the program that advances a state in place."""
        return run(self.parts(mesh), mesh, num_iterations)

    def shapes(self, mesh: Mesh) -> TrainState:
        """Return the shapes of the state of one seed, and how they are split."""
        return shapes(self.parts(mesh), mesh)


def begin(parts: Any, mesh: Mesh) -> Any:
    """Return the program that makes the first state, given the agent, buffer, environment and plan of one device."""
    return jax.jit(parallel.spread(lambda key: loop.init(key, *parts), mesh, gives_state=True))


def run(parts: Any, mesh: Mesh, num_iterations: int) -> Any:
    """Return the program that advances a state in place."""
    advance = parallel.spread(lambda state: loop.run(state, *parts, num_iterations), mesh, gives_state=True)
    return jax.jit(advance, donate_argnums=0)


def shapes(parts: Any, mesh: Mesh) -> TrainState:
    """Return the shapes of the state of one seed, and how they are split."""
    like = jax.eval_shape(begin(parts, mesh), jax.eval_shape(lambda: jax.random.key(0)))
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        like,
        parallel.shardings(mesh, like),
    )


def bytes_of_device(state: TrainState) -> int:
    """Return the bytes of a state, given as shapes, that one device holds."""
    leaves = jax.tree.leaves(state)
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)


def num_parameters(state: TrainState) -> int:
    """Return how many numbers are trained."""
    agent: Any = state.agent
    while not hasattr(agent, "params"):  # the state of a wrapper
        agent = agent.agent
    return sum(leaf.size for leaf in jax.tree.leaves(agent.params))
