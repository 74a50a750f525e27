"""`Sharded`: one replay buffer whose environments are split over the devices of a mesh.

Every device holds the columns of its own environments, with its own tree of priorities and its own episodes. It draws
an equal share of every batch from them. Let `m_d` be the mass of all starts on device `d`, and `M` the sum of `m_d`
over all `D` devices. A start of mass `p_i` is then drawn with probability `p_i / m_d` instead of `p_i / M`. So its
weight is multiplied by `D m_d / M`, and the mean over devices is, in expectation,

    1/D sum_d sum_{i on d} (p_i / m_d) (D m_d / M) w_i g_i  =  sum_i (p_i / M) w_i g_i

the weighted mean of the whole buffer, for any weights `w_i` that depend only on the masses of all starts.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxrl_buffers import _mesh as mesh
from jaxrl_buffers import _statistics as statistics
from jaxrl_buffers._checks import shown
from jaxrl_buffers._held_rows import ReplayState
from jaxrl_buffers._mesh import Axis
from jaxrl_buffers.component import Component, field
from jaxrl_buffers.mixture import Mixture
from jaxrl_buffers.replay import ReplayBuffer
from jaxrl_buffers.rollouts import Rollout
from jaxrl_buffers.samplers import Combined, Prioritized
from jaxrl_buffers.samplers._base import OneInside, PassingOn, Wrapping
from jaxrl_buffers.storage.ring import Ring
from jaxrl_buffers.types import Draw, Handle, PyTree, Sample, Sampler, Scalar, Window


class Sharded(Component):
    """A replay buffer whose environments are split over the devices of a mesh axis. Use it inside of `jax.shard_map`.

    It has the methods of `ReplayBuffer` that training needs. For methods that read or drop rows of one device, use
    `local`. Shapes are those of one device: `buffer.num_envs` environments, and `batch_size` samples on each device.
    Handles are valid on the device that drew them. These values are taken over all devices:

    * `num_valid`, `size` and `can_sample`,
    * the largest priority, which new starts get,
    * the numbers of slots that `Recent` counts.

    The mean of the weighted loss over all samples of all devices is, in expectation, the same as with one device, for
    every `beta`. Weights may be above 1 for that: up to `D m_d / M`, where device `d` has the mass `m_d` of `M`.
    `Prioritized(weighting="batch")` is refused, because it divides by the largest weight of a batch, which each device
    would have to draw in the same way.

    Args:
        buffer: the buffer of each device. Its `num_envs` are the environments of one device.
        axis: the name of the mesh axis.

    Example:
        >>> import jax, jax.numpy as jnp, jaxrl_buffers as jb
        >>> from jax.sharding import AxisType, Mesh, PartitionSpec as P
        >>> mesh = Mesh(jax.devices()[:1], ("devices",), axis_types=(AxisType.Auto,))
        >>> buffer = jb.Sharded(jb.prioritized(8, num_envs=2), "devices")
        >>> step = jb.Transition(jnp.zeros(3), jnp.int32(0), 0.0, False, False, jnp.zeros(3))
        >>> def weights(key):
        ...     state = buffer.init(step)
        ...     chunk = jax.tree.map(lambda x: jnp.broadcast_to(x, (4, 2, *jnp.shape(x))), step)
        ...     return buffer.sample(buffer.add(state, chunk), key, batch_size=3).weights
        >>> print(jax.shard_map(weights, mesh=mesh, in_specs=P(), out_specs=P("devices"))(jax.random.key(0)))
        [1. 1. 1.]
    """

    buffer: ReplayBuffer
    axis: Axis = field(static=True)

    def __post_init__(self) -> None:
        if not isinstance(self.buffer, ReplayBuffer):
            raise ValueError(f"Sharded({shown(self.buffer)}): give a ReplayBuffer, or use `shard(buffer, axis)`.")
        _check(self.buffer.sampler)

    @property
    def local(self) -> ReplayBuffer:
        """The buffer of one device, whose sampler knows of the other devices."""
        return self.buffer.replace(sampler=_OfAllDevices(mesh.across(self.buffer.sampler, self.axis), self.axis))

    @property
    def num_envs(self) -> int:
        """The number of environments of one device."""
        return self.buffer.num_envs

    def init(self, example: PyTree) -> ReplayState:
        """Return an empty state for rows like `example`."""
        return self._varying(self.buffer.init(example))

    def add(
        self,
        state: ReplayState,
        chunk: PyTree,
        *,
        priorities: ArrayLike | None = None,
        env_ids: ArrayLike | None = None,
        mask: ArrayLike | None = None,
    ) -> ReplayState:
        """Append `K` rows of the device's environments; see `ReplayBuffer.add`."""
        return self._varying(self.local.add(state, chunk, priorities=priorities, env_ids=env_ids, mask=mask))

    def sample(self, state: ReplayState, key: jax.Array, batch_size: int, progress: Scalar = 0.0) -> Sample:
        """Draw `batch_size` samples on each device; consumes `key`. Each device draws other ones, even for one key."""
        return self.local.sample(state, mesh.own_key(key, self.axis), batch_size, progress)

    def read(self, state: ReplayState, handle: Handle, key: jax.Array | None = None, progress: Scalar = 0.0) -> Sample:
        """Return the sample of given starts of the device, as if `sample` had drawn them; see `ReplayBuffer.read`."""
        return self.local.read(state, handle, None if key is None else mesh.own_key(key, self.axis), progress)

    def update_priorities(
        self, state: ReplayState, handle: Handle, priorities: jax.Array, mask: jax.Array | None = None
    ) -> ReplayState:
        """Set the priorities of starts that the device has drawn; see `ReplayBuffer.update_priorities`."""
        return self._varying(self.local.update_priorities(state, handle, priorities, mask))

    def reprioritize(self, state: ReplayState) -> ReplayState:
        """Apply changed hyper-parameters to every stored priority; see `ReplayBuffer.reprioritize`."""
        return self._varying(self.local.reprioritize(state))

    def report_return(self, state: ReplayState, mean_return: Scalar) -> ReplayState:
        """Report how well the agent does; the mean return must be that of the environments of all devices."""
        return self._varying(self.local.report_return(state, mean_return))

    def clear(self, state: ReplayState, env_ids: ArrayLike | None = None) -> ReplayState:
        """Forget all rows of the device's environments, or those of `env_ids` only."""
        return self._varying(self.local.clear(state, env_ids))

    def mark_break(self, state: ReplayState, env_ids: ArrayLike | None = None) -> ReplayState:
        """Close all open episodes of the device's environments, or those of `env_ids` only."""
        return self._varying(self.local.mark_break(state, env_ids))

    def age(self, state: ReplayState, handle: Handle) -> jax.Array:
        """Return the age of each row that `handle` names on this device."""
        return self.local.age(state, handle)

    def window(self, state: ReplayState) -> Window:
        """Return the ages at which a sample of the device may start."""
        return self.local.window(state)

    def num_valid(self, state: ReplayState) -> jax.Array:
        """Count the legal starts of all devices."""
        return mesh.total(self.buffer.num_valid(state), self.axis)

    def can_sample(self, state: ReplayState, at_least: int = 1) -> jax.Array:
        """Return whether all devices together have `at_least` legal starts."""
        return self.num_valid(state) >= at_least

    def size(self, state: ReplayState) -> jax.Array:
        """Count the stored slots of all devices."""
        return mesh.total(self.buffer.size(state), self.axis)

    def stats(self, state: ReplayState, progress: Scalar = 0.0) -> dict[str, jax.Array]:
        """Return statistics of what all devices store and draw; see `ReplayBuffer.stats`. Rows stay on their device."""
        return statistics.summarize_across(self.local, state, progress, axis=self.axis)

    def _varying(self, state: ReplayState) -> ReplayState:
        """Declare that everything differs from device to device, so that a loop may carry the state."""
        return mesh.vary(state, self.axis)


def shard(buffer: ReplayBuffer | Mixture | Rollout, axis: Axis) -> Sharded | Mixture | Rollout:
    """Return a buffer of one device as a part of a buffer that is split over the devices of a mesh axis.

    A `ReplayBuffer` becomes a `Sharded`. All buffers of a `Mixture` do. A `Rollout` normalizes advantages by the mean
    and the standard deviation over all devices.

    Example:
        >>> import jaxrl_buffers as jb
        >>> mixture = jb.Mixture((jb.uniform(8), jb.prioritized(8)))
        >>> [type(part).__name__ for part in shard(mixture, "devices").buffers]
        ['Sharded', 'Sharded']
    """
    if isinstance(buffer, Mixture):
        return buffer.replace(buffers=tuple(shard(part, axis) for part in buffer.buffers))
    return mesh.across(buffer, axis) if isinstance(buffer, Rollout) else Sharded(buffer, axis)


class _OfAllDevices(OneInside, PassingOn, Component):
    """A sampler that draws on one device, and computes the weights as if it had drawn from the starts of all devices.

    Args:
        sampler: draws the starts of the device.
        axis: the name of the mesh axis.
    """

    sampler: Sampler
    axis: Axis = field(static=True)

    def draw(
        self, state: PyTree, storage: Ring, key: jax.Array, batch_size: int, window: Window, progress: Scalar
    ) -> Draw:
        """Draw `batch_size` starts of the device; consumes `key`."""
        return self._of_all(self.sampler.draw(state, storage, key, batch_size, window, progress))

    def measure(self, state: PyTree, storage: Ring, slots: jax.Array, window: Window, progress: Scalar = 0.0) -> Draw:
        """Return the `Draw` of `slots` of the device, as if they had been drawn."""
        return self._of_all(self.sampler.measure(state, storage, slots, window, progress))

    def weights(self, draw: Draw) -> jax.Array:
        """Return the weights among the starts of all devices, corrected for the equal shares of the devices."""
        return self.sampler.weights(draw) * draw.factor

    def _of_all(self, draw: Draw) -> Draw:
        if isinstance(_innermost(self.sampler), Combined):  # it has done so for each of its samplers
            return draw
        total, num_starts = mesh.total((draw.total, draw.num_starts.astype(jnp.float32)), self.axis)
        factor = mesh.num_devices(self.axis) * draw.total / jnp.where(total > 0, total, 1)
        least = mesh.smallest(draw.least, self.axis)
        return Draw(draw.slots, draw.mass, least, total, num_starts, factor)


def _innermost(sampler: Sampler) -> Sampler:
    """Return the sampler inside of those that only narrow the window."""
    while isinstance(sampler, Wrapping) and not isinstance(sampler, Combined):
        sampler = sampler.sampler
    return sampler


def _check(sampler: Sampler, is_part: bool = False) -> None:
    """Refuse samplers whose draws cannot be corrected."""
    if isinstance(sampler, Prioritized) and sampler.weighting == "batch":
        raise ValueError(
            'Sharded(): the sampler is Prioritized(weighting="batch"), whose weights are divided by the largest weight '
            "of a batch. Each device draws a batch of its own, so the weights of devices would differ by a random "
            'factor; use "buffer" or "alf".'
        )
    if is_part and isinstance(_innermost(sampler), Combined):
        raise ValueError("Sharded(): a Combined is inside of another one; give all samplers to one Combined.")
    for part in sampler.inner if isinstance(sampler, Wrapping) else ():
        _check(part, is_part or isinstance(sampler, Combined))
