"""Prediction of rewards, a second task that trains the features of a policy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from algorithms.networks.distributions import Distribution
from algorithms.types import Metrics
from jaxrl_buffers._checks import require_number
from jaxrl_buffers._random.hashing import unrolled
from jaxrl_buffers.component import Component
from jaxrl_buffers.rollouts import RolloutBatch
from jaxrl_buffers.types import Batch, PyTree, Sample, Scalar

_HEAD = nn.Dense(1)


class RewardPrediction(Component):
    """Train a linear head `f` to predict rewards from the features of the policy. This trains the features, too.

        L = scale * mean_b w_b m_b (f(features(s_b)) - r_b)^2 / 2

    `mean_b` is the mean over samples, and `w_b` are their importance weights. Where rewards are rare, the head would
    only learn to predict zero. Therefore some samples with the reward 0 are left out. They have `m_b = 0`, and all
    other samples have `m_b = 1`. Each update chooses them again. Gradients reach the head and the torso of the
    policy. In DDQN they reach the torso of the Q-network. With an n-step buffer, the reward is the sum over n steps. In
    PyTorchRL no optimizer trains this head.

    Args:
        zero_mask_ratio: the probability that a sample with the reward 0 is left out.
        scale: factor on the whole term.
        learning_rate: learning rate of the head.

    Example:
        >>> from algorithms import Discrete, SAC
        >>> agent = SAC(Discrete(2), addons=(RewardPrediction(zero_mask_ratio=0.9),))
        >>> state = agent.init(jax.random.key(0), jnp.zeros(4), Discrete(2).example)
        >>> state.params.addons[0]["params"]["kernel"].shape
        (64, 1)
    """

    zero_mask_ratio: Scalar = 0.0
    scale: Scalar = 1.0
    learning_rate: Scalar = 1e-3

    def __post_init__(self) -> None:
        require_number(self, "zero_mask_ratio", self.zero_mask_ratio, 0, 1)
        require_number(self, "scale", self.scale, 0)
        require_number(self, "learning_rate", self.learning_rate, 0)

    def init(self, key: jax.Array, obs: PyTree, action: PyTree, features: jax.Array) -> PyTree:
        """Return the initial parameters of the head; consumes `key`."""
        return _HEAD.init(unrolled(key), features)

    def loss(
        self, params: PyTree, policy: Distribution, features: jax.Array, sample: Sample, key: jax.Array
    ) -> tuple[jax.Array, Metrics]:
        """Return the term, and the metric `error`, the mean absolute error over all samples; consumes `key`."""
        reward = _reward(sample.batch)
        predict: Any = jax.vmap(_HEAD.apply, in_axes=(None, 0))
        error = predict(params, features)[:, 0] - reward
        uniforms = jax.random.uniform(unrolled(key), reward.shape, jnp.float32)
        is_dropped = uniforms < jnp.asarray(self.zero_mask_ratio, jnp.float32)
        kept = jnp.where((reward == 0) & is_dropped, 0, sample.weights)
        loss = jnp.asarray(self.scale, jnp.float32) * 0.5 * jnp.mean(kept * error**2)
        return loss, {"error": jnp.mean(jnp.abs(error))}


def _reward(batch: Batch | RolloutBatch) -> jax.Array:
    """Return the rewards `float32[B]`. A minibatch of a rollout has them in its extras."""
    return batch.extras["reward"] if isinstance(batch, RolloutBatch) else batch.reward
