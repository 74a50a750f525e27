"""A wrapper that trains one agent on all devices of a mesh axis, each with its own samples.

    gradient <- mean over devices of the gradients of their samples

Every device has the same parameters. It computes the gradients of its own samples. The gradients of all devices are
averaged, so that `apply` makes the same step everywhere.
"""

from __future__ import annotations

import jax
from jax.flatten_util import ravel_pytree

from algorithms.networks.distributions import Distribution
from algorithms.types import Agent, ReportsNorms, StepInfo, WrapperAgent
from algorithms.wrappers._base import SameCarry
from jaxrl_buffers import _mesh as mesh
from jaxrl_buffers._mesh import Axis
from jaxrl_buffers.component import Component, field
from jaxrl_buffers.types import PyTree, Sample, Transition


class DataParallel(SameCarry, Component):
    """An agent that learns from the samples of all devices. Use it inside of `jax.shard_map(check_vma=True)`.

    Its states are those of the agent inside, and are the same on all devices. Gradients and metrics of all devices are
    averaged as one vector. The result equals that of one device that has all samples, up to rounding. Where an agent
    divides by a sum, such as the number of samples that count, it divides by the sum over all devices. Statistics of
    observations are those of all devices.

    Metrics that are norms of gradients are norms of the averaged gradients, including those of add-ons. With several
    passes, MPO makes the passes on each device by itself; see `MPO.gradients`.

    Args:
        agent: any agent.
        axis: the name of the mesh axis.

    Example:
        >>> from jax.sharding import AxisType, Mesh, PartitionSpec as P
        >>> from algorithms import DDQN, Discrete
        >>> mesh = Mesh(jax.devices()[:1], ("devices",), axis_types=(AxisType.Auto,))
        >>> agent = DataParallel(DDQN(Discrete(2)), "devices")
        >>> state = agent.init(jax.random.key(0), jax.numpy.zeros(3), Discrete(2).example)
        >>> def act(state, obs, key):
        ...     return agent.act(state, obs, (), key)[0]
        >>> act = jax.shard_map(act, mesh=mesh, in_specs=(P(), P("devices"), P()), out_specs=P("devices"))
        >>> act(state, jax.numpy.zeros((4, 3)), jax.random.key(1)).shape  # of 4 environments, split over the devices
        (4,)
    """

    agent: Agent
    axis: Axis = field(static=True)

    @property
    def local(self) -> Agent:
        """The agent of one device. Where it divides by a sum, it uses the sum over all devices."""
        return mesh.across(self.agent, self.axis)

    def init(self, key: jax.Array, obs: PyTree, action: PyTree) -> PyTree:
        """Return the first state of the agent inside; consumes `key`, which must be the same on all devices."""
        return self.agent.init(key, obs, action)

    def act(
        self, state: PyTree, obs: PyTree, carry: PyTree, key: jax.Array, deterministic: bool = False
    ) -> tuple[PyTree, PyTree, PyTree]:
        """Return actions for the environments of this device, the next carry and extras; consumes `key`."""
        return self.agent.act(state, obs, carry, mesh.own_key(key, self.axis), deterministic)

    def distribution(self, state: PyTree, obs: PyTree) -> Distribution:
        """Return the policy's distributions at observations `[B, ...]` of this device."""
        return self.policy_agent.distribution(state, obs)

    def values(self, state: PyTree, chunk: Transition) -> tuple[jax.Array, jax.Array]:
        """Return the values of a chunk's `obs` and the values of its `next_obs`, `float32[K, N]` each."""
        return self.on_policy_agent.values(state, chunk)

    def observe(self, state: PyTree, chunk: Transition) -> PyTree:
        """Return the state after the rows `[K, N, ...]` of every device were collected."""
        return self.local.observe(state, chunk)

    def gradients(self, state: PyTree, sample: Sample, key: jax.Array) -> tuple[PyTree, StepInfo]:
        """Return the means of all devices' gradients and metrics, and the priorities of this device's samples.

        Consumes `key`.
        """
        # JAX would sum up gradients over devices by itself, one array at a time, if the parameters were the same on all
        # devices. A mean would then change nothing, and the gradients would be too large by the number of devices.
        state = mesh.vary(state, self.axis)
        grads, info = self.local.gradients(state, sample, mesh.own_key(key, self.axis))
        vector, rebuilt = ravel_pytree((grads, info.metrics))
        grads, metrics = rebuilt(mesh.mean(vector, self.axis))
        inner = _innermost(self.agent)
        norms = inner.norms(grads) if isinstance(inner, ReportsNorms) else {}
        return grads, StepInfo(info.priorities, metrics | norms)

    def apply(self, state: PyTree, grads: PyTree) -> PyTree:
        """Return the state after one update, the same on all devices."""
        return self.agent.apply(state, grads)


def _innermost(agent: Agent) -> Agent:
    """Return the agent inside of all wrappers."""
    return _innermost(agent.agent) if isinstance(agent, WrapperAgent) else agent
