"""A wrapper that scales the observations of any agent to mean 0 and standard deviation 1.

    s_normalized = clip((s - mean) / std, -clip, clip)

The state holds the mean and the variance of each component over all observations collected so far. After `n`
observations come `m` new ones, with the mean `mean_m` and the variance `var_m`. They are merged by

    r = m / (n + m),   delta = mean_m - mean
    mean <- mean + r delta
    var  <- (1 - r) var + r var_m + r (1 - r) delta^2

Chan et al. (1979), "Updating formulae and a pairwise algorithm for computing sample variances". Mean and
variance do not grow with the length of a run, so float32 is precise enough for runs of any length.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from algorithms.networks.distributions import Distribution
from algorithms.types import Agent, StepInfo
from algorithms.wrappers._base import SameCarry, require_agent
from jaxrl_buffers import _mesh as mesh
from jaxrl_buffers._checks import require_positive
from jaxrl_buffers._mesh import Axis
from jaxrl_buffers.component import MESH_AXIS, Component, field
from jaxrl_buffers.rollouts import RolloutBatch
from jaxrl_buffers.types import Batch, PyTree, Sample, Scalar, Transition

Rows = TypeVar("Rows", Transition, Batch, RolloutBatch)

# The standard deviation counts as at least this share of the mean. Smaller differences are mostly rounding errors of
# float32.
_RESOLUTION = 1e-6
_LEAST_VARIANCE = 1e-12


class Moments(NamedTuple):
    """Mean and variance of one leaf of the observations. Both are `float32` and have the shape of the leaf."""

    mean: jax.Array
    variance: jax.Array


class NormalizedState(NamedTuple):
    """The agent's state, and the statistics of observations."""

    agent: PyTree
    num_observed: jax.Array  # float32[], the number of observations so far
    moments: tuple[Moments | tuple[()], ...]  # one for each leaf of an observation; () if not floating-point


class Normalized(SameCarry, Component):
    """An agent that sees normalized observations. Leaves that are not floating-point, such as images, are unchanged.

    `observe` updates the statistics. Buffers store observations unchanged. Observations are normalized when they are
    used, with the statistics at that time. An on-policy agent learns from a rollout first, and updates the statistics
    afterwards. So it learns from the same inputs with which it acted. Behaviors in the agent's add-ons get normalized
    observations.

    Args:
        agent: any agent.
        clip: the largest magnitude of a normalized component.

    Example:
        >>> from algorithms import DDQN, Discrete
        >>> agent = Normalized(DDQN(Discrete(2)))
        >>> state = agent.init(jax.random.key(0), jnp.zeros(1), Discrete(2).example)
        >>> rows = jnp.array([[[1.0]], [[3.0]]])  # two steps of one environment
        >>> chunk = Transition(rows, jnp.zeros((2, 1)), jnp.zeros((2, 1)), False, False, rows)
        >>> state = agent.observe(state, chunk)
        >>> print(agent.normalize(state, jnp.array([[1.0], [2.0], [4.0]]))[:, 0])
        [-1.  0.  2.]
    """

    agent: Agent
    clip: Scalar = 10.0
    axis: Axis = field(static=True, default=None, kw_only=True, repr=False, metadata=MESH_AXIS)

    def __post_init__(self) -> None:
        require_agent("Normalized", self.agent)
        require_positive(self, "clip")

    def init(self, key: jax.Array, obs: PyTree, action: PyTree) -> NormalizedState:
        """Return the first state, for observations like `obs` and actions like `action`; consumes `key`."""
        moments = tuple(
            Moments(jnp.zeros(leaf.shape, jnp.float32), jnp.ones(leaf.shape, jnp.float32)) if _is_float(leaf) else ()
            for leaf in jax.tree.leaves(obs)
        )
        return NormalizedState(self.agent.init(key, obs, action), jnp.zeros((), jnp.float32), moments)

    def act(
        self, state: NormalizedState, obs: PyTree, carry: PyTree, key: jax.Array, deterministic: bool = False
    ) -> tuple[PyTree, PyTree, PyTree]:
        """Return the agent's actions `[N, ...]`, the next carry and extras; consumes `key`."""
        return self.agent.act(state.agent, self.normalize(state, obs), carry, key, deterministic)

    def distribution(self, state: NormalizedState, obs: PyTree) -> Distribution:
        """Return the policy's distributions at observations `[B, ...]`."""
        return self.policy_agent.distribution(state.agent, self.normalize(state, obs))

    def values(self, state: NormalizedState, chunk: Transition) -> tuple[jax.Array, jax.Array]:
        """Return the values of a chunk's `obs` and the values of its `next_obs`, `float32[K, N]` each."""
        return self.on_policy_agent.values(state.agent, self._normalize_fields(state, chunk))

    def observe(self, state: NormalizedState, chunk: Transition) -> NormalizedState:
        """Merge the observations of a chunk `[K, N, ...]` into the statistics."""
        leaves = jax.tree.leaves(chunk.obs)
        num_rows = leaves[0].shape[0] * leaves[0].shape[1] * mesh.num_devices(self.axis)
        num_new = jnp.asarray(num_rows, jnp.float32)
        num_observed = state.num_observed + num_new
        pairs = [(known, leaf) for known, leaf in zip(state.moments, leaves, strict=True) if known]
        rows = [leaf.astype(jnp.float32).reshape(-1, *known.mean.shape) for known, leaf in pairs]
        means = mesh.mean([jnp.mean(each, axis=0) for each in rows], self.axis)
        # The mean of the devices' variances would be too small. Squares about the common mean are right.
        squares = [jnp.mean((each - mean[None]) ** 2, axis=0) for each, mean in zip(rows, means, strict=True)]
        new = map(Moments, means, mesh.mean(squares, self.axis))
        share = num_new / num_observed
        moments = tuple(_merge(known, next(new), share) if known else () for known in state.moments)
        return NormalizedState(self.agent.observe(state.agent, chunk), num_observed, moments)

    def gradients(self, state: NormalizedState, sample: Sample, key: jax.Array) -> tuple[PyTree, StepInfo]:
        """Return the agent's gradients; consumes `key`."""
        sample = sample._replace(batch=self._normalize_fields(state, sample.batch))
        return self.agent.gradients(state.agent, sample, key)

    def apply(self, state: NormalizedState, grads: PyTree) -> NormalizedState:
        """Return the state after one update of the agent."""
        return state._replace(agent=self.agent.apply(state.agent, grads))

    def _normalize_fields(self, state: NormalizedState, rows: Rows) -> Rows:
        names = [name for name in ("obs", "next_obs") if name in rows._fields]  # a rollout's batch has no next_obs
        return rows._replace(**{name: self.normalize(state, getattr(rows, name)) for name in names})

    def normalize(self, state: NormalizedState, obs: PyTree) -> PyTree:
        """Return normalized observations, as the agent inside sees them. They may have any leading axes."""
        leaves, structure = jax.tree.flatten(obs)
        limit = jnp.asarray(self.clip, jnp.float32)
        pairs = zip(state.moments, leaves, strict=True)
        changed = [_standardize(known, leaf, limit) if known else leaf for known, leaf in pairs]
        return jax.tree.unflatten(structure, changed)


def _merge(known: Moments, new: Moments, share: jax.Array) -> Moments:
    """Merge the moments of new rows into those of earlier rows; `share` is `r` in the equations above."""
    delta = new.mean - known.mean
    between = share * (1 - share) * delta**2
    return Moments(known.mean + share * delta, (1 - share) * known.variance + share * new.variance + between)


def _standardize(known: Moments, leaf: jax.Array, limit: jax.Array) -> jax.Array:
    std = jnp.sqrt(known.variance + (_RESOLUTION * known.mean) ** 2 + _LEAST_VARIANCE)
    mean, std = (value.reshape(*[1] * (leaf.ndim - value.ndim), *value.shape) for value in (known.mean, std))
    return jnp.clip((leaf.astype(jnp.float32) - mean) / std, -limit, limit).astype(leaf.dtype)


def _is_float(leaf: jax.Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating)
