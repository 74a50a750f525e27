"""Proximal policy optimization, on-policy, with discrete and with continuous actions.

    r_i  = pi(a_i | s_i) / pi_old(a_i | s_i)
    L_pi = mean_i [-min(r_i A_i, clip(r_i, 1 - c, 1 + c) A_i) - c_H H(pi(. | s_i))]
    L_v  = mean_i (V(s_i) - R_i)^2 / 2

`A` and `R` are advantages and returns by GAE(lambda). Where a time limit ended an episode, they continue with the value
of the last observation of the episode. Schulman et al. (2017), https://arxiv.org/abs/1707.06347. Continuous actions are
drawn from a Gaussian. The environment gets them clipped to `[-1, 1]` and scaled to its bounds.

PPO is trained by the same loop as the other algorithms, with a `Rollout` as the buffer. Every iteration collects
`plan.update_every` steps and makes `plan.num_updates` updates. One update learns from `plan.mini_batch_size` rows.
Every epoch shuffles the rows again.

Differences from the paper:

* Actor and critic share no parameters, and each has its own optimizer. So the objective needs no coefficient for the
  loss of the critic.
* Gradients are clipped by their norm, separately for actor and critic.
* Advantages are normalized over the rollout. A setting of `Rollout` turns this off.
* The standard deviation of the policy depends on the observation.

Differences from PyTorchRL:

* Actor and critic have one optimizer each. Their gradients are clipped separately. PyTorchRL has one Adam for both, and
  clips their common norm.
* The loss of the critic is not clipped. PyTorchRL clips it by default, by the same `c`, and multiplies it by 0.5 once
  more (`value_loss_coef`).
* There is no entropy bonus by default. PyTorchRL's `entropy_coef` is 0.01. Its `clip_param` is 0.2, as here.
* The plan sets how many rows a minibatch has. PyTorchRL sets the numbers of epochs (4) and of minibatches.
* At a time limit, returns continue with the value of the last observation. In PyTorchRL they end there.
* Learning rates are 3e-4. PyTorchRL's is 1e-4.

Rollouts are as in l2r's PPOBuffer, with two differences: its batches hold rewards where these hold returns, and here
the values of last observations are passed in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms.addons import Addon, addon
from algorithms.agents import losses, optimization
from algorithms.agents._base import ActorCritic, StochasticAgent
from algorithms.agents._policies import StochasticPolicy
from algorithms.environments.spaces import Space
from algorithms.networks import Torso, ValueNetwork, apply_batch, init_network
from algorithms.optimizers import Optimizers, Schedule
from algorithms.types import GroupRule, Metrics, StepInfo
from jaxrl_buffers import _mesh as mesh
from jaxrl_buffers._checks import require_number
from jaxrl_buffers._mesh import Axis
from jaxrl_buffers._random.hashing import split
from jaxrl_buffers.component import MESH_AXIS, Component, field
from jaxrl_buffers.types import PyTree, Sample, Scalar, Transition


class PPOState(NamedTuple):
    """The state of PPO."""

    params: ActorCritic
    optimizer: ActorCritic  # the states of the optimizers, one for each group
    num_updates: jax.Array  # int32[]


class PPO(StochasticAgent, Component):
    """Proximal policy optimization by the clipped objective.

    Args:
        action_space: `Discrete` or `Box`.
        torso: the network below the heads of actor and critic. They share no parameters.
        schedule: a factor on all learning rates, as a function of the number of updates, such as a schedule of optax.
        optimizer: optimizers to use instead of Adam; see `algorithms.agents.optimization`.
        learning_rate_pi: learning rate of the policy.
        learning_rate_v: learning rate of the critic.
        max_grad_norm: the largest norm of the critic's gradient, and of the policy's. A gradient with a larger norm is
            scaled down to it.
        clip_range: `c`, how far the ratio of probabilities may move from 1 before its gradient is zero.
        entropy_coefficient: `c_H`, the weight of the entropy bonus.
        addons: terms to add to the policy's loss.
        noise: the kind of noise that continuous actions are made from: `gaussian`, `ornstein_uhlenbeck` or `pink`.
        noise_theta: the share of its value that Ornstein-Uhlenbeck noise loses in one step. Other noise ignores it.

    Example:
        >>> import jaxrl_buffers as jb
        >>> from algorithms import Plan, environments, train
        >>> env = environments.make("CartPole-v1")
        >>> agent, rollout = PPO(env.action_space), jb.rollout(32, num_envs=4)
        >>> plan = Plan(512, 4, start_steps=0, update_every=128, num_updates=8, mini_batch_size=32, test_every=0)
        >>> state, metrics = jax.jit(lambda key: train(key, agent, rollout, env, plan))(jax.random.key(0))
        >>> metrics["returns"].shape
        (1, 5)
    """

    action_space: Space = field(static=True)
    torso: Torso = field(static=True, default=Torso())
    schedule: Schedule | None = field(static=True, default=None)
    optimizer: Optimizers | None = field(static=True, default=None)
    learning_rate_pi: Scalar = 3e-4
    learning_rate_v: Scalar = 3e-4
    max_grad_norm: Scalar = 0.5
    clip_range: Scalar = 0.2
    entropy_coefficient: Scalar = 0.0
    addons: tuple[Addon, ...] = ()
    noise: str = field(static=True, default="gaussian")
    noise_theta: Scalar = 0.15
    axis: Axis = field(static=True, default=None, kw_only=True, repr=False, metadata=MESH_AXIS)

    groups: ClassVar[Mapping[str, GroupRule]] = {
        "actor": GroupRule("learning_rate_pi"),
        "critic": GroupRule("learning_rate_v"),
    }
    learns_from_columns = False

    def __post_init__(self) -> None:
        self.check()
        optimization.check(self)
        for name in ("learning_rate_pi", "learning_rate_v", "clip_range", "entropy_coefficient"):
            require_number(self, name, getattr(self, name), 0)

    def init(self, key: jax.Array, obs: PyTree, action: PyTree) -> PPOState:
        """Return the first state, for observations like `obs`; consumes `key`."""
        key_actor, key_critic = split(key)
        params = ActorCritic(self.policy.init_actor(key_actor, obs), init_network(self._critic, key_critic, obs))
        state = PPOState(params, optimization.init(self, params), jnp.zeros((), jnp.int32))
        return addon.init(self, state, key, obs, action)

    def act(
        self, state: PPOState, obs: PyTree, carry: PyTree, key: jax.Array, deterministic: bool = False
    ) -> tuple[jax.Array, PyTree, PyTree]:
        """Return drawn actions `[N, ...]`, or the most probable ones if `deterministic`; consumes `key`.

        The extras are `action`, the action before clipping and scaling, and `log_prob`, its log-probability
        `float32[N]`.
        """
        action, log_prob, carry = self.policy.act(state.params.actor, obs, self._noise, carry, key, deterministic)
        return self.policy.to_environment(action), carry, {"action": action, "log_prob": log_prob}

    def value(self, state: PPOState, obs: PyTree) -> jax.Array:
        """Return the critic's values `float32[B]` of observations `[B, ...]`."""
        return self._values(state.params.critic, obs)

    def values(self, state: PPOState, chunk: Transition) -> tuple[jax.Array, jax.Array]:
        """Return the values of a chunk's `obs` and the values of its `next_obs`, `float32[K, N]` each."""
        # One large matrix product for all rows is faster than many small ones.
        both = jax.tree.map(
            lambda *leaves: jnp.concatenate(leaves).reshape(-1, *leaves[0].shape[2:]), chunk.obs, chunk.next_obs
        )
        value, next_value = self.value(state, both).reshape(2, *chunk.reward.shape)
        return value, next_value

    def gradients(self, state: PPOState, sample: Sample, key: jax.Array) -> tuple[ActorCritic, StepInfo]:
        """Return the gradients of `L_pi` and `L_v`; only add-ons draw from `key`.

        `sample.batch` is a `RolloutBatch` with leaves `[B, ...]`. `sample.weights` are the weights `[B]` of its rows.
        """
        (_, metrics), actor = jax.value_and_grad(self._policy_loss, has_aux=True)(state.params.actor, sample)
        (loss_v, error), critic = jax.value_and_grad(self._critic_loss, has_aux=True)(state.params.critic, sample)
        grads = ActorCritic(actor, critic)
        info = StepInfo(jnp.abs(error), {**metrics, "loss_v": loss_v, **self.norms(grads)})
        return addon.add_gradients(self, state, sample, key, grads, info)

    def norms(self, grads: ActorCritic) -> Metrics:
        """Return the metrics that are norms of gradients."""
        return {"grad_norm_pi": optax.tree.norm(grads.actor), "grad_norm_v": optax.tree.norm(grads.critic)}

    def apply(self, state: PPOState, grads: ActorCritic) -> PPOState:
        """Step actor, critic and add-ons."""
        after = optimization.step(self, state, grads, ("actor", "critic", "addons"))
        return after._replace(num_updates=state.num_updates + 1)

    @property
    def policy(self) -> StochasticPolicy:
        """The policy, without its parameters."""
        return StochasticPolicy(self.action_space, self.torso)

    @property
    def _critic(self) -> ValueNetwork:
        return ValueNetwork(self.torso)

    def _values(self, params: PyTree, obs: PyTree) -> jax.Array:
        return apply_batch(self._critic, params, obs)

    def _policy_loss(self, params: PyTree, sample: Sample) -> tuple[jax.Array, Metrics]:
        """Return `L_pi` and metrics."""
        batch, old_log_prob = sample.batch, sample.batch.extras["log_prob"]
        policy = self.policy.distribution(params, batch.obs)
        log_prob, entropy = policy.log_prob(batch.extras["action"]), policy.entropy()
        clip_range = jnp.asarray(self.clip_range, jnp.float32)
        surrogate = jax.vmap(losses.clipped_surrogate_loss, in_axes=(0, 0, 0, None))(
            log_prob, old_log_prob, batch.advantage, clip_range
        )
        log_ratio = log_prob - old_log_prob
        metrics = {
            "loss_pi": _mean(surrogate, sample.weights, self.axis),
            "entropy": _mean(entropy, sample.weights, self.axis),
            "kl": _mean(jnp.expm1(log_ratio) - log_ratio, sample.weights, self.axis),  # estimates KL(pi_old || pi)
            "clip_fraction": _mean(
                (jnp.abs(jnp.expm1(log_ratio)) > clip_range).astype(jnp.float32), sample.weights, self.axis
            ),
        }
        bonus = jnp.asarray(self.entropy_coefficient, jnp.float32) * metrics["entropy"]
        return metrics["loss_pi"] - bonus, metrics

    def _critic_loss(self, params: PyTree, sample: Sample) -> tuple[jax.Array, jax.Array]:
        """Return `L_v`, and the errors `float32[B]`."""
        error = self._values(params, sample.batch.obs) - sample.batch.return_
        return 0.5 * _mean(error**2, sample.weights, self.axis), error


def _mean(values: jax.Array, weights: jax.Array, axis: Axis = None) -> jax.Array:
    """Return the weighted mean of values `[B]`. Rows with the weight 0 do not count.

    With an `axis` of a mesh, the mean of the results of all devices along it is the weighted mean of all values.
    """
    total = jnp.maximum(mesh.total(jnp.sum(weights), axis), 1)
    return jnp.sum(weights * values) / (total if axis is None else total / mesh.num_devices(axis))
