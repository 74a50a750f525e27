"""Soft actor-critic, with continuous or discrete actions.

    y       = r + discount * (min_j Q_target,j(s', a') - alpha log pi(a' | s')),   a' ~ pi(. | s')
    L_q     = sum_j mean_i w_i (Q_j(s_i, a_i) - y_i)^2 / 2
    L_pi    = mean_i w_i (alpha log pi(a | s_i) - min_j Q_j(s_i, a)),              a ~ pi(. | s_i)
    L_alpha = -mean_i w_i log_alpha (log pi(a | s_i) + H)

Haarnoja et al. (2018), https://arxiv.org/abs/1812.05905. With continuous actions the policy is a Gaussian squashed by
`tanh`. Critics see actions in `[-1, 1]`, and the target entropy `H` is meant for actions in `[-1, 1]`. With discrete
actions, each term that contains `a` or `a'` is replaced by its exact expectation under the policy: Christodoulou
(2019), https://arxiv.org/abs/1910.07207. The priority of a sample is `mean_j |Q_j(s, a) - y|`.

Differences from the papers:

* Gradients are clipped by their norm.
* `alpha` may be fixed.
* With discrete actions `H` is `0.5 log A`, and it may fall linearly during training. The paper has `0.98 log A`. With
  few actions `0.98 log A` is very close to the largest possible entropy, and the temperature grows without end.

Differences from PyTorchRL:

* `gradients` also returns the gradient of the temperature, so the temperature can be trained on several devices, too.
* A target entropy of 0 means 0, and not the default.
* Actions are scaled to `[-1, 1]` for the critics, whatever their bounds are.
* Log-probabilities come from `log_softmax`, without a small constant inside the logarithm.
* `target_entropy_ratio` replaces the fixed 0.98.

All other defaults are those of PyTorchRL.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms.addons import Addon, addon
from algorithms.agents import losses, optimization
from algorithms.agents._base import StochasticAgent
from algorithms.agents._soft_policies import ContinuousSoftPolicy, DiscreteSoftPolicy, SoftPolicy
from algorithms.environments.spaces import Box, Discrete, Space
from algorithms.networks import Torso
from algorithms.optimizers import Optimizers, Schedule
from algorithms.types import GroupRule, Metrics, StepInfo
from jaxrl_buffers._checks import FLOAT32, require_count, require_flag, require_number, require_positive
from jaxrl_buffers._random.hashing import split
from jaxrl_buffers.component import Component, field
from jaxrl_buffers.types import PyTree, Sample, Scalar

NUM_CRITICS = 2


class SACParams(NamedTuple):
    """Everything that is trained, or its gradients, or the states of its optimizers."""

    actor: PyTree
    critic: PyTree  # leaves [2, ...]
    log_alpha: PyTree  # float32[]
    addons: tuple[PyTree, ...] = ()


class SACState(NamedTuple):
    """The state of soft actor-critic."""

    params: SACParams
    target: PyTree  # the parameters of the target critics
    optimizer: SACParams  # the states of the optimizers, one for each group
    num_updates: jax.Array  # int32[]


class SAC(StochasticAgent, Component):
    """Soft actor-critic with two critics and a learned or fixed temperature.

    Args:
        action_space: `Box` or `Discrete`.
        torso: the network below the heads of actor and critics. Actor and critics share no parameters.
        learn_alpha: whether to learn the temperature. If False, it stays at `initial_alpha`.
        schedule: a factor on all learning rates, as a function of the number of updates, such as a schedule of optax.
        optimizer: optimizers to use instead of Adam; see `algorithms.agents.optimization`.
        learning_rate_q: learning rate of the critics.
        learning_rate_pi: learning rate of the actor.
        learning_rate_alpha: learning rate of the temperature.
        polyak: `target <- polyak * target + (1 - polyak) * params` moves the target critics; 0 copies the trained ones.
        target_update_interval: the number of updates between two moves of the target critics; 0 counts as 1.
        max_grad_norm: the largest norm of the critics' gradient, and of the actor's. A gradient with a larger norm is
            scaled down to it.
        initial_alpha: the temperature before the first update.
        target_entropy: `H`, the entropy that the learned temperature keeps the policy at. By default it is minus the
            number of components for continuous actions, and `target_entropy_ratio * log A` for `A` discrete actions.
        target_entropy_ratio: the default of `target_entropy` for discrete actions, as a share of the largest possible
            entropy, `log A`.
        final_target_entropy_ratio: the ratio changes linearly from `target_entropy_ratio` to this one.
        annealing_updates: the number of updates that this change takes. With 0 the ratio does not change.
        addons: terms to add to the policy's loss.
        noise: the kind of noise that continuous actions are made from: `gaussian`, `ornstein_uhlenbeck` or `pink`.
        noise_theta: the share of its value that Ornstein-Uhlenbeck noise loses in one step. Other noise ignores it.

    Example:
        >>> from algorithms import environments
        >>> env = environments.make("Pendulum-v1")
        >>> agent = SAC(env.action_space, learning_rate_q=1e-3)
        >>> state = agent.init(jax.random.key(0), env.obs, env.action_space.example)
        >>> action, _, _ = agent.act(state, jnp.zeros((3, 3)), (), jax.random.key(1))
        >>> action.shape
        (3, 1)
    """

    action_space: Space = field(static=True)
    torso: Torso = field(static=True, default=Torso())
    learn_alpha: bool = field(static=True, default=True)
    schedule: Schedule | None = field(static=True, default=None)
    optimizer: Optimizers | None = field(static=True, default=None)
    learning_rate_q: Scalar = 1e-4
    learning_rate_pi: Scalar = 1e-4
    learning_rate_alpha: Scalar = 1e-4
    polyak: Scalar = 0.995
    target_update_interval: Scalar = 1
    max_grad_norm: Scalar = 0.5
    initial_alpha: Scalar = 1.0
    target_entropy: Scalar | None = None
    target_entropy_ratio: Scalar = 0.5
    final_target_entropy_ratio: Scalar = 0.1
    annealing_updates: Scalar = 0
    addons: tuple[Addon, ...] = ()
    noise: str = field(static=True, default="gaussian")
    noise_theta: Scalar = 0.15

    renamed: ClassVar[Mapping[str, str]] = {"learns_alpha": "learn_alpha"}
    groups: ClassVar[Mapping[str, GroupRule]] = {
        "actor": GroupRule("learning_rate_pi"),
        "critic": GroupRule("learning_rate_q"),
        "log_alpha": GroupRule("learning_rate_alpha", is_clipped=False),
    }
    critic_axes: ClassVar[tuple[int, ...]] = (NUM_CRITICS,)

    def __post_init__(self) -> None:
        self.check()
        optimization.check(self)
        require_flag("SAC", "learn_alpha", self.learn_alpha)
        for name in ("learning_rate_q", "learning_rate_pi", "learning_rate_alpha", "initial_alpha"):
            require_number(self, name, getattr(self, name), 0)
        if self.learn_alpha:
            require_positive(self, "initial_alpha")
        optimization.check_target(self)
        for name in ("target_entropy_ratio", "final_target_entropy_ratio"):
            require_number(self, name, getattr(self, name), 0, 1)
        require_count(self, "annealing_updates", self.annealing_updates)
        if self.target_entropy is not None:
            require_number(self, "target_entropy", self.target_entropy, -float(FLOAT32.max))

    @property
    def policy(self) -> SoftPolicy:
        """The policy and the critics for the action space, without their parameters."""
        if isinstance(self.action_space, Discrete):
            return DiscreteSoftPolicy(self.action_space, self.torso)
        return ContinuousSoftPolicy(self.action_space, self.torso)

    def init(self, key: jax.Array, obs: PyTree, action: PyTree) -> SACState:
        """Return the first state, for observations like `obs` and actions like `action`; consumes `key`."""
        key_actor, key_critic = split(key)
        critic = self.policy.init_critics(key_critic, NUM_CRITICS, obs, action)
        log_alpha = jnp.log(jnp.asarray(self.initial_alpha, jnp.float32))
        params = SACParams(self.policy.init_actor(key_actor, obs), critic, log_alpha)
        target = jax.tree.map(jnp.copy, critic)  # a state that holds an array twice cannot be donated to `jit`
        state = SACState(params, target, optimization.init(self, params), jnp.zeros((), jnp.int32))
        return addon.init(self, state, key, obs, action)

    def act(
        self, state: SACState, obs: PyTree, carry: PyTree, key: jax.Array, deterministic: bool = False
    ) -> tuple[jax.Array, PyTree, PyTree]:
        """Return actions `[N, ...]` drawn from the policy; consumes `key`.

        With `deterministic`, discrete actions are the most probable ones, and continuous actions are `tanh` of the
        mean.
        """
        action, carry = self.policy.act(state.params.actor, obs, self._noise, carry, key, deterministic)
        return action, carry, ()

    def gradients(self, state: SACState, sample: Sample, key: jax.Array) -> tuple[SACParams, StepInfo]:
        """Return the gradients of `L_q`, `L_pi` and `L_alpha`, all at the current parameters; consumes `key`."""
        noise = self.policy.noise(key, 2, sample.weights.shape[0])
        target = self._target(state, sample, noise[0])
        (loss_q, (q, error)), critic = jax.value_and_grad(self._critic_loss, has_aux=True)(
            state.params.critic, sample, target
        )
        (loss_pi, log_prob), actor = jax.value_and_grad(self._actor_loss, has_aux=True)(
            state.params.actor, state, sample, noise[1]
        )
        loss_alpha, log_alpha = jax.value_and_grad(self._temperature_loss)(
            state.params.log_alpha, sample, log_prob, self._target_entropy(state.num_updates)
        )
        grads = SACParams(actor, critic, log_alpha)
        metrics = {
            "loss_q": loss_q,
            "loss_pi": loss_pi,
            "loss_alpha": loss_alpha,
            "alpha": jnp.exp(state.params.log_alpha),
            "entropy": -jnp.mean(log_prob),
            "q": jnp.mean(q),
            **self.norms(grads),
        }
        info = StepInfo(jnp.mean(jnp.abs(error), axis=0), metrics)
        return addon.add_gradients(self, state, sample, key, grads, info)

    def norms(self, grads: SACParams) -> Metrics:
        """Return the metrics that are norms of gradients."""
        return {"grad_norm_q": optax.tree.norm(grads.critic), "grad_norm_pi": optax.tree.norm(grads.actor)}

    def apply(self, state: SACState, grads: SACParams) -> SACState:
        """Step critics, actor and temperature. Then move the target critics towards the critics."""
        temperature = ("log_alpha",) if self.learn_alpha else ()
        after = optimization.step(self, state, grads, ("actor", "critic", *temperature, "addons"))
        return optimization.follow(self, after, after.params.critic)

    def _target(self, state: SACState, sample: Sample, noise: PyTree) -> jax.Array:
        """Return the targets `y`, `float32[B]`."""
        batch, alpha = sample.batch, jnp.exp(state.params.log_alpha)
        value, log_prob = self.policy.expect(state.params.actor, state.target, batch.next_obs, noise)
        value = jax.vmap(losses.soft_value, in_axes=(0, 0, None))(value, log_prob, alpha)
        return jax.vmap(losses.td_target)(batch.reward, batch.discount, value)

    def _critic_loss(
        self, critic: PyTree, sample: Sample, target: jax.Array
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        """Return `L_q`, and the values and errors, `float32[2, B]` each."""
        q = self.policy.values(critic, sample.batch.obs, sample.batch.action)
        error = q - target[None]
        return 0.5 * jnp.sum(jnp.mean(sample.weights[None] * error**2, axis=1)), (q, error)

    def _actor_loss(self, actor: PyTree, state: SACState, sample: Sample, noise: PyTree) -> tuple[jax.Array, jax.Array]:
        """Return `L_pi`, and the log-probabilities `float32[B]` of the actions `a` in it."""
        value, log_prob = self.policy.expect(actor, state.params.critic, sample.batch.obs, noise)
        alpha = jnp.exp(state.params.log_alpha)
        loss = jax.vmap(losses.soft_policy_loss, in_axes=(0, 0, None))(value, log_prob, alpha)
        return jnp.mean(sample.weights * loss), log_prob

    def _temperature_loss(
        self, log_alpha: jax.Array, sample: Sample, log_prob: jax.Array, target_entropy: jax.Array
    ) -> jax.Array:
        """Return `L_alpha`."""
        loss = jax.vmap(losses.temperature_loss, in_axes=(None, 0, None))(log_alpha, log_prob, target_entropy)
        return jnp.mean(sample.weights * loss)

    def _target_entropy(self, num_updates: jax.Array) -> jax.Array:
        """Return `H` after a number of updates."""
        if self.target_entropy is not None:
            return jnp.asarray(self.target_entropy, jnp.float32)
        if isinstance(self.action_space, Box):
            return jnp.asarray(-self.action_space.size, jnp.float32)
        first, last, duration = (
            jnp.asarray(value, jnp.float32)
            for value in (self.target_entropy_ratio, self.final_target_entropy_ratio, self.annealing_updates)
        )
        progress = jnp.where(duration > 0, jnp.minimum(num_updates / jnp.maximum(duration, 1), 1), 0)
        ratio = first + progress.astype(jnp.float32) * (last - first)
        return ratio * jnp.log(jnp.asarray(self.action_space.num_actions, jnp.float32))
