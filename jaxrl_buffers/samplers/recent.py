"""Emphasize recent experience (ERE): of `K` updates in a row, update `k` draws from the newest `c_k` slots only.

    c_k = max(N eta^(1000 k / K), c_min)

`N` is the number of stored slots.

Wang, Ross: Boosting Soft Actor-Critic: Emphasizing Recent Experience without Forgetting the Past,
https://arxiv.org/abs/1906.04009
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_buffers import _mesh as mesh
from jaxrl_buffers import starts
from jaxrl_buffers._checks import require_number
from jaxrl_buffers._mesh import Axis
from jaxrl_buffers.component import MESH_AXIS, Component, field
from jaxrl_buffers.samplers._base import Wrapping
from jaxrl_buffers.samplers.uniform import Uniform
from jaxrl_buffers.storage import ring
from jaxrl_buffers.storage.ring import Ring
from jaxrl_buffers.types import Draw, PyTree, Sampler, Scalar, Window

NUM_RETURNS = 20  # the slope of this many returns is measured
DECAY = 0.9999  # the steepest slopes shrink by this factor with every new return


class Trend(NamedTuple):
    """What adaptive recency remembers of the returns."""

    returns: jax.Array  # float32[20], oldest first
    num_returns: jax.Array  # int32[]: how many of them were observed
    steepest_rise: jax.Array  # float32[]
    steepest_fall: jax.Array  # float32[], as a positive number
    slope: jax.Array  # float32[] in [-1, 1]: the slope of the returns, relative to the steepest rise or fall


class RecentState(NamedTuple):
    """The state of the sampler inside, and the trend of the returns: `()` unless adaptive."""

    sampler: PyTree
    trend: Trend | tuple[()]


class Recent(Wrapping, Component):
    """Draw from the newest `c_k = max(N eta^(1000 progress), c_min)` slots. Another sampler draws among these slots.

    `progress = k / K` is passed to `buffer.sample`. Slots are counted by age. The newest `c_k / num_envs` rows of every
    environment are used, rounded up, or all its rows while it holds fewer. If environments have cursors of their own,
    the same fraction of the rows of each is used. Weights correct the bias of priorities among these slots. They do not
    correct the preference for recent slots, which is intended.

    With `adaptive=True`, the emphasis follows the returns that `buffer.report_return(state, mean_return)` gets. Let `g`
    be the mean slope of the last 20 returns, scaled such that the steepest rise so far is 1 and the steepest fall -1.
    Then `eta` is replaced by

        eta' = 1 - (1 - eta) (1 + g) / 2

    If the rise is the steepest so far, `eta'` is `eta`. If the fall is the steepest so far, `eta'` is 1, which means no
    emphasis. Until there are 20 returns, `eta'` is `eta`. Returns that are not finite are ignored.

    Args:
        sampler: the sampler that draws among these slots, for example `Uniform()` or `Prioritized()`.
        eta: at most 1. A smaller `eta` draws from more recent slots; 1 draws from all slots.
        c_min: the least number of slots to draw from. At least one row of each environment is always used.
        adaptive: whether the emphasis follows the returns.

    Example:
        >>> import jaxrl_buffers as jb
        >>> buffer = jb.ReplayBuffer(jb.Recent(jb.Prioritized(), eta=0.996, c_min=5_000), length=100_000)
    """

    sampler: Sampler = Uniform()
    eta: Scalar = 0.996
    c_min: Scalar = 5_000.0
    adaptive: bool = field(static=True, default=False)
    axis: Axis = field(static=True, default=None, kw_only=True, repr=False, metadata=MESH_AXIS)

    def __post_init__(self) -> None:
        require_number(self, "eta", self.eta, 0, 1)
        require_number(self, "c_min", self.c_min, 0)

    @property
    def inner(self) -> tuple[Sampler, ...]:
        """The sampler inside."""
        return (self.sampler,)

    def init(self, storage_shape: tuple[int, int], platform: str | None = None) -> RecentState:
        """Return the state of the sampler inside, and an empty trend."""
        rise, fall, slope = (jnp.asarray(value, jnp.float32) for value in (0, 0, 1))
        trend = Trend(jnp.zeros(NUM_RETURNS, jnp.float32), jnp.zeros((), jnp.int32), rise, fall, slope)
        return RecentState(self.sampler.init(storage_shape, platform), trend if self.adaptive else ())

    def each(self, state: RecentState, operation: Callable[[Sampler, PyTree], PyTree]) -> RecentState:
        """Return the state after an operation on the state of the sampler inside."""
        return state._replace(sampler=operation(self.sampler, state.sampler))

    def draw(
        self, state: RecentState, storage: Ring, key: jax.Array, batch_size: int, window: Window, progress: Scalar
    ) -> Draw:
        """Draw `batch_size` starts of the newest part of the window; consumes `key`."""
        newest = self.window(state, storage, window, progress)
        return self.sampler.draw(state.sampler, storage, key, batch_size, newest, progress)

    def measure(
        self, state: RecentState, storage: Ring, slots: jax.Array, window: Window, progress: Scalar = 0.0
    ) -> Draw:
        """Return the `Draw` of `slots`, as if they had been drawn. A slot that cannot be drawn has a mass of zero."""
        newest = self.window(state, storage, window, progress)
        return self.sampler.measure(state.sampler, storage, slots, newest, progress)

    def window(self, state: RecentState, storage: Ring, window: Window, progress: Scalar) -> Window:
        """Return the newest part of a window."""
        length, num_envs = ring.shape(storage)
        num_envs *= mesh.num_devices(self.axis)
        num_rows = jnp.maximum(window.oldest - window.newest, 0)
        exponent = 1000 * jnp.asarray(progress, jnp.float32) * jnp.log(self.present_eta(state))
        # This computes how many slots to leave out, and not how many to keep. The number is exactly zero at progress 0,
        # so rounding never leaves out a row there.
        left_out = -jnp.expm1(jnp.where(exponent < 0, exponent, 0)) * (num_rows * num_envs).astype(jnp.float32)
        left_out = jnp.ceil(left_out).astype(jnp.int32) // num_envs
        least = jnp.clip(jnp.ceil(jnp.asarray(self.c_min, jnp.float32) / num_envs), 1, length).astype(jnp.int32)
        return starts.narrow(window, jnp.maximum(num_rows - left_out, least))

    def present_eta(self, state: RecentState) -> jax.Array:
        """Return `eta`, or `eta'` if the emphasis is adaptive."""
        eta = jnp.asarray(self.eta, jnp.float32)
        return 1 - (1 - eta) * (1 + state.trend.slope) / 2 if isinstance(state.trend, Trend) else eta

    def report_return(self, state: RecentState, mean_return: Scalar) -> RecentState:
        """Add the mean return to the trend if adaptive, and pass it on to the sampler inside."""
        trend = _followed(state.trend, mean_return) if isinstance(state.trend, Trend) else ()
        return RecentState(self.sampler.report_return(state.sampler, mean_return), trend)


@jax.jit
def _followed(trend: Trend, mean_return: Scalar) -> Trend:
    """Return the trend after one more return. A return that is not finite changes nothing."""
    newest = jnp.asarray(mean_return, jnp.float32)
    returns = jnp.append(trend.returns[1:], newest)
    num_returns = jnp.minimum(trend.num_returns + 1, NUM_RETURNS)
    # The mean of the differences (x[i+1] - x[i-1]) / 2, one-sided at both ends. All inner terms cancel.
    slope = (3 * (returns[-1] - returns[0]) - (returns[-2] - returns[1])) / (2 * NUM_RETURNS)
    rise = jnp.where(slope > trend.steepest_rise, slope, trend.steepest_rise * DECAY)
    fall = jnp.where(-slope > trend.steepest_fall, -slope, trend.steepest_fall * DECAY)
    steepest = jnp.where(slope > 0, rise, fall)
    relative = jnp.where(slope == 0, 0, jnp.clip(slope / jnp.where(steepest > 0, steepest, 1), -1, 1))
    is_full = num_returns == NUM_RETURNS
    followed = Trend(
        returns,
        num_returns,
        jnp.where(is_full, rise, trend.steepest_rise),
        jnp.where(is_full, fall, trend.steepest_fall),
        jnp.where(is_full, relative, trend.slope),
    )
    return jax.tree.map(lambda new, old: jnp.where(jnp.isfinite(newest), new, old), followed, trend)
