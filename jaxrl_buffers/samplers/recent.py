"""Emphasize recent experience (ERE): update `k` of `K` draws from the newest slots only.

    c_k = max(N eta^(1000 k / K), c_min)   of the N stored slots

Wang, Ross: Boosting Soft Actor-Critic: Emphasizing Recent Experience without Forgetting the Past,
https://arxiv.org/abs/1906.04009
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_buffers import starts
from jaxrl_buffers._checks import require_number
from jaxrl_buffers.component import Component, field
from jaxrl_buffers.samplers._base import Wrapping
from jaxrl_buffers.samplers.uniform import Uniform
from jaxrl_buffers.storage import ring
from jaxrl_buffers.storage.ring import Ring
from jaxrl_buffers.types import Draw, PyTree, Sampler, Scalar, Window

NUM_RETURNS = 20  # returns whose slope is looked at
DECAY = 0.9999  # of the steepest slopes, with every new return


class Trend(NamedTuple):
    """What adaptive recency remembers of the returns."""

    returns: jax.Array  # float32[20], oldest first
    num_returns: jax.Array  # int32[]: how many of them were observed
    steepest_rise: jax.Array  # float32[]
    steepest_fall: jax.Array  # float32[], as a positive number
    slope: jax.Array  # float32[] in [-1, 1]: that of the returns, relative to the steepest


class RecentState(NamedTuple):
    """The state of the sampler inside, and the trend of the returns: `()` unless adaptive."""

    sampler: PyTree
    trend: Trend | tuple[()]


class Recent(Wrapping, Component):
    """Draw from the newest `c_k = max(N eta^(1000 progress), c_min)` slots, as `sampler` draws from all.

    Slots are counted by age, also when the ring has wrapped. Every environment gives its newest `c_k / num_envs` rows,
    rounded up, or all while it holds fewer; environments with cursors of their own give equal fractions of what they
    hold. `progress = k / K` is what `sample` was told. Weights correct priorities within the window; recency itself
    is not corrected, being wanted.

    Adaptive recency follows the mean slope `g` of the last 20 returns that `buffer.observe(state, mean_return)` was
    told: `g = 1` at the steepest rise so far and -1 at the steepest fall, and `1 - (1 - eta) (1 + g) / 2` stands in
    for `eta`. So the emphasis is full while returns rise as they never did, none while they fall, half while they are
    flat. It is full, too, before there are 20 returns. Returns that are not finite are ignored.

    Args:
        sampler: how to draw inside the window, for example `Uniform()` or `Prioritized()`.
        eta: at most 1; the smaller, the more recent. 1 draws from everything.
        c_min: the least number of slots to draw from; never less than one row of each environment.
        adaptive: whether to follow the returns.

    Example:
        >>> import jaxrl_buffers as jb
        >>> buffer = jb.ReplayBuffer(jb.Recent(jb.Prioritized(), eta=0.996, c_min=5_000), length=100_000)
    """

    sampler: Sampler = Uniform()
    eta: Scalar = 0.996
    c_min: Scalar = 5_000.0
    adaptive: bool = field(static=True, default=False)

    def __post_init__(self):
        require_number(self, "eta", self.eta, 0, 1)
        require_number(self, "c_min", self.c_min, 0)

    def init(self, storage_shape: tuple[int, int], platform: str | None = None) -> RecentState:
        """Return the state of the sampler inside, and an empty trend."""
        rise, fall, slope = (jnp.asarray(value, jnp.float32) for value in (0, 0, 1))
        trend = Trend(jnp.zeros(NUM_RETURNS, jnp.float32), jnp.zeros((), jnp.int32), rise, fall, slope)
        return RecentState(self.sampler.init(storage_shape, platform), trend if self.adaptive else ())

    def each(self, state: RecentState, operation: Callable[[Sampler, PyTree], PyTree]) -> RecentState:
        """Return the state after an operation on that of the sampler inside."""
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
        """Return what `draw` would tell of given slots."""
        newest = self.window(state, storage, window, progress)
        return self.sampler.measure(state.sampler, storage, slots, newest, progress)

    def window(self, state: RecentState, storage: Ring, window: Window, progress: Scalar) -> Window:
        """Return the newest part of a window."""
        length, num_envs = ring.shape(storage)
        num_rows = jnp.maximum(window.oldest - window.newest, 0)
        exponent = 1000 * jnp.asarray(progress, jnp.float32) * jnp.log(self.present_eta(state))
        # What is left out, rather than what stays, is multiplied: then rounding never costs a row at progress 0.
        left_out = -jnp.expm1(jnp.where(exponent < 0, exponent, 0)) * (num_rows * num_envs).astype(jnp.float32)
        left_out = jnp.ceil(left_out).astype(jnp.int32) // num_envs
        least = jnp.clip(jnp.ceil(jnp.asarray(self.c_min, jnp.float32) / num_envs), 1, length).astype(jnp.int32)
        return starts.narrow(window, jnp.maximum(num_rows - left_out, least))

    def present_eta(self, state: RecentState) -> jax.Array:
        """Return the `eta` that counts at present."""
        eta = jnp.asarray(self.eta, jnp.float32)
        return 1 - (1 - eta) * (1 + state.trend.slope) / 2 if isinstance(state.trend, Trend) else eta

    def observe(self, state: RecentState, mean_return: Scalar) -> RecentState:
        """Take note of the newest mean return, if adaptive."""
        trend = _followed(state.trend, mean_return) if isinstance(state.trend, Trend) else ()
        return RecentState(self.sampler.observe(state.sampler, mean_return), trend)


@jax.jit
def _followed(trend: Trend, mean_return: Scalar) -> Trend:
    """Return the trend after one more return; as it was if that is not finite."""
    newest = jnp.asarray(mean_return, jnp.float32)
    returns = jnp.append(trend.returns[1:], newest)
    num_returns = jnp.minimum(trend.num_returns + 1, NUM_RETURNS)
    # The mean of the central differences, one-sided at both ends; the others cancel.
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
