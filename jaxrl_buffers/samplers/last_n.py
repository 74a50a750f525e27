"""Draw from a fixed number of the newest starts. As a part of a `Combined`, this guarantees recent data."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from jaxrl_buffers import _mesh as mesh
from jaxrl_buffers import starts
from jaxrl_buffers._checks import require_number
from jaxrl_buffers._mesh import Axis
from jaxrl_buffers.component import MESH_AXIS, Component, field
from jaxrl_buffers.samplers._base import OneInside, Wrapping
from jaxrl_buffers.samplers.uniform import Uniform
from jaxrl_buffers.storage import ring
from jaxrl_buffers.storage.ring import Ring
from jaxrl_buffers.types import Draw, PyTree, Sampler, Scalar, Window


class LastN(OneInside, Wrapping, Component):
    """Draw from the newest `num_starts` starts of every environment. Another sampler draws among these starts.

    The sampler `Recent` is different: it draws from a share of the starts, which shrinks from update to update.

    Args:
        num_starts: how many of the newest starts of each environment are used; all of them while there are fewer.
        sampler: the sampler that draws among these starts.
        max_share: draw nothing while these starts are this share of all starts, or more. In a `Combined`, the main
            sampler then draws instead.

    Example:
        >>> import jaxrl_buffers as jb
        >>> sampler = jb.Combined(jb.Prioritized(), others=(jb.LastN(1_000, max_share=0.25),), ratios=(0.25,))
    """

    num_starts: Scalar
    sampler: Sampler = Uniform()
    max_share: Scalar = math.inf
    axis: Axis = field(static=True, default=None, kw_only=True, repr=False, metadata=MESH_AXIS)

    def __post_init__(self) -> None:
        require_number(self, "num_starts", self.num_starts, 0)
        require_number(self, "max_share", self.max_share, 0, math.inf)

    def draw(
        self, state: PyTree, storage: Ring, key: jax.Array, batch_size: int, window: Window, progress: Scalar
    ) -> Draw:
        """Draw `batch_size` starts of the newest part of the window; consumes `key`."""
        return self.sampler.draw(state, storage, key, batch_size, self.window(storage, window), progress)

    def measure(self, state: PyTree, storage: Ring, slots: jax.Array, window: Window, progress: Scalar = 0.0) -> Draw:
        """Return the `Draw` of `slots`, as if they had been drawn. A slot that cannot be drawn has a mass of zero."""
        return self.sampler.measure(state, storage, slots, self.window(storage, window), progress)

    def window(self, storage: Ring, window: Window) -> Window:
        """Return the newest part of a window, or an empty window if this part is too large a share of all starts."""
        num_starts = jnp.ceil(jnp.asarray(self.num_starts, jnp.float32))
        mean_starts = starts.count(storage, window).astype(jnp.float32) / ring.shape(storage)[1]
        if starts.count_by_env(storage, window).ndim:  # otherwise all environments of all devices have the same number
            mean_starts = mesh.mean(mean_starts, self.axis)
        is_wanted = num_starts < jnp.asarray(self.max_share, jnp.float32) * mean_starts
        num_starts = jnp.minimum(num_starts, ring.shape(storage)[0]).astype(jnp.int32)
        return starts.narrow(window, jnp.where(is_wanted, num_starts * window.stride, 0))
