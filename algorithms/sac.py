"""Soft actor-critic, with continuous or discrete actions.

    y       = r + discount * (min_j Q_target,j(s', a') - alpha log pi(a' | s')),   a' ~ pi(. | s')
    L_q     = sum_j mean_i w_i (Q_j(s_i, a_i) - y_i)^2 / 2
    L_pi    = mean_i w_i (alpha log pi(a | s_i) - min_j Q_j(s_i, a)),              a ~ pi(. | s_i)
    L_alpha = -mean_i w_i log_alpha (log pi(a | s_i) + H)

Haarnoja et al. (2018), https://arxiv.org/abs/1812.05905. With continuous actions the policy is a Gaussian squashed by
`tanh`; critics see actions in `[-1, 1]`, and the target entropy `H` is counted there. With discrete actions every term
in `a` and `a'` is its exact expectation under the policy; Christodoulou (2019), https://arxiv.org/abs/1910.07207. The
priority of a sample is `mean_j |Q_j(s, a) - y|`.

Differences from the papers: gradients are clipped by their norm; `alpha` may be fixed; with discrete actions `H` is
`0.5 log A`, where the paper has `0.98 log A`: so near the largest possible entropy that the temperature grows without
end when there are few actions. `H` may fall linearly during training.

Differences from PyTorchRL: the gradient of the temperature is part of the gradients, so that it also trains in
parallel; a target entropy of 0 is a target entropy of 0; actions of any bounds are scored in `[-1, 1]`; probabilities
come from `log_softmax`, without a small constant inside the logarithm; `target_entropy_ratio` replaces the fixed 0.98.
Class and factory agree on all defaults that are here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import struct

from algorithms import losses, optimization
from algorithms.addons import Addon, addon
from algorithms.distributions import Distribution
from algorithms.networks import Torso
from algorithms.optimization import Schedule
from algorithms.soft_policies import Categorical, Policy, SquashedGaussian
from algorithms.spaces import Box, Discrete, Space
from algorithms.types import StepInfo
from jaxrl_buffers._checks import FLOAT32, require_count, require_flag, require_number, require_positive
from jaxrl_buffers._random.hashing import split
from jaxrl_buffers.types import PyTree, Sample, Scalar, Transition

NUM_CRITICS = 2


class SACParams(NamedTuple):
    """All that is trained."""

    actor: PyTree
    critics: PyTree  # leaves [2, ...]
    log_alpha: PyTree  # float32[]
    addons: PyTree = ()


class SACState(NamedTuple):
    """What soft actor-critic remembers."""

    params: SACParams
    target: PyTree  # of the critics
    optimizer: SACParams  # one optimizer a group
    num_updates: jax.Array  # int32[]


class SAC(struct.PyTreeNode):
    """Soft actor-critic with two critics and a learned or fixed temperature.

    Args:
        action_space: `Box` or `Discrete`.
        torso: the network below actor and critics.
        learns_alpha: learn the temperature; with False it stays at `initial_alpha`.
        schedule: factor on all learning rates as a function of the number of updates, as in optax.
        learning_rate_q, learning_rate_pi, learning_rate_alpha: of Adam, for critics, actor and temperature.
        polyak: `target = polyak * target + (1 - polyak) * online`; 0 copies.
        target_update_interval: updates from one such averaging to the next; 0 counts as 1.
        max_grad_norm: gradients of a larger global norm are scaled down to it, critics and actor apart.
        initial_alpha: the temperature at first.
        target_entropy: of the policy. By default minus the number of components, for continuous actions in `[-1, 1]`,
            and a share of the largest possible one for discrete actions.
        target_entropy_ratio: that share; the target entropy of `A` discrete actions is `ratio * log A`.
        final_target_entropy_ratio: to which the ratio falls linearly.
        annealing_updates: how many updates that takes; with 0 the ratio stays as it is.
        addons: terms to add to the policy's loss.

    Example:
        >>> from algorithms import environments
        >>> env = environments.make("Pendulum-v1")
        >>> agent = SAC(env.action_space, learning_rate_q=1e-3)
        >>> state = agent.init(jax.random.key(0), env.obs, env.action_space.example)
        >>> action, _, _ = agent.act(state, jnp.zeros((3, 3)), (), jax.random.key(1))
        >>> action.shape
        (3, 1)
    """

    action_space: Space = struct.field(pytree_node=False)
    torso: Torso = struct.field(pytree_node=False, default=Torso())
    learns_alpha: bool = struct.field(pytree_node=False, default=True)
    schedule: Schedule | None = struct.field(pytree_node=False, default=None)
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

    num_passes = 1
    roles = (("actor", ()), ("critic", (NUM_CRITICS,)))

    def __post_init__(self):
        if not isinstance(self.action_space, (Box, Discrete)):
            raise ValueError(f"SAC needs Box or Discrete actions, but the action space is {self.action_space!r}.")
        require_flag("SAC", "learns_alpha", self.learns_alpha)
        for name in ("learning_rate_q", "learning_rate_pi", "learning_rate_alpha", "initial_alpha"):
            require_number(self, name, getattr(self, name), 0)
        for name in ("max_grad_norm", "initial_alpha") if self.learns_alpha else ("max_grad_norm",):
            require_positive(self, name)
        for name in ("polyak", "target_entropy_ratio", "final_target_entropy_ratio"):
            require_number(self, name, getattr(self, name), 0, 1)
        for name in ("target_update_interval", "annealing_updates"):
            require_count(self, name, getattr(self, name))
        if self.target_entropy is not None:
            require_number(self, "target_entropy", self.target_entropy, -float(FLOAT32.max))
        addon.check("SAC", self.addons)

    @property
    def policy(self) -> Policy:
        """Actor and critics for the kind of actions."""
        if isinstance(self.action_space, Discrete):
            return Categorical(self.action_space, self.torso)
        return SquashedGaussian(self.action_space, self.torso)

    def init(self, key: jax.Array, obs: PyTree, action: PyTree) -> SACState:
        """Return the state for observations and actions like these; consumes `key`."""
        obs, action = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (obs, action))
        key_actor, key_critics = split(key)
        keys = split(key_critics, NUM_CRITICS)
        critics = jax.vmap(lambda key: self.policy.init_critic(key, obs, action))(keys)
        log_alpha = jnp.log(jnp.asarray(self.initial_alpha, jnp.float32))
        params = SACParams(self.policy.init_actor(key_actor, obs), critics, log_alpha)
        optimizer = SACParams(*map(optimization.init, params[:3]))
        target = jax.tree.map(jnp.copy, critics)  # the same buffer twice could not be donated
        state = SACState(params, target, optimizer, jnp.zeros((), jnp.int32))
        return addon.init(self, state, key, obs, action)

    def initial_carry(self, num_envs: int) -> PyTree:
        """Acting remembers nothing."""
        return ()

    def act(
        self, state: SACState, obs: PyTree, carry: PyTree, key: jax.Array, deterministic: bool = False
    ) -> tuple[jax.Array, PyTree, PyTree]:
        """Return drawn actions `[N, ...]`, or with `deterministic` the likeliest ones; consumes `key`."""
        return self.policy.act(state.params.actor, obs, key, deterministic), carry, ()

    def distribution(self, state: SACState, obs: PyTree) -> Distribution:
        """Return the policy's distributions at observations `[B, ...]`."""
        return self.policy.distribution(state.params.actor, obs)

    def features(self, state: SACState, obs: PyTree) -> jax.Array:
        """Return the features `float32[B, F]` below the policy."""
        return self.policy.features(state.params.actor, obs)

    def observe(self, state: SACState, chunk: Transition) -> SACState:
        """Nothing is noted."""
        return state

    def gradients(self, state: SACState, sample: Sample, key: jax.Array, pass_index: int) -> tuple[PyTree, StepInfo]:
        """Return the gradients of critics, actor and temperature, all at the present parameters; consumes `key`."""
        noise = self.policy.noise(key, 2, sample.weights.shape[0])
        target = self._target(state, sample, noise[0])
        (loss_q, (q, error)), critics = jax.value_and_grad(self._critic_loss, has_aux=True)(
            state.params.critics, sample, target
        )
        (loss_pi, log_prob), actor = jax.value_and_grad(self._actor_loss, has_aux=True)(
            state.params.actor, state, sample, noise[1]
        )
        loss_alpha, log_alpha = jax.value_and_grad(self._temperature_loss)(
            state.params.log_alpha, sample, log_prob, self._target_entropy(state.num_updates)
        )
        metrics = {
            "loss_q": loss_q,
            "loss_pi": loss_pi,
            "loss_alpha": loss_alpha,
            "alpha": jnp.exp(state.params.log_alpha),
            "entropy": -jnp.mean(log_prob),
            "q": jnp.mean(q),
            "grad_norm_q": optax.tree.norm(critics),
            "grad_norm_pi": optax.tree.norm(actor),
        }
        grads, info = SACParams(actor, critics, log_alpha), StepInfo(jnp.mean(jnp.abs(error), axis=0), metrics)
        return addon.add_gradients(self, state, sample, key, grads, info)

    def apply(self, state: SACState, grads: SACParams) -> SACState:
        """Step critics, actor and temperature, then average the critics into their targets."""
        rates = (self.learning_rate_pi, self.learning_rate_q, self.learning_rate_alpha if self.learns_alpha else 0.0)
        limits = (self.max_grad_norm, self.max_grad_norm, None)
        rates = optimization.scheduled(self.schedule, state.num_updates, *rates)
        stepped = map(optimization.step, state.params, grads, state.optimizer, rates, limits)
        params, optimizer = (SACParams(*groups) for groups in zip(*stepped, strict=True))
        num_updates, is_due = optimization.count(state.num_updates, self.target_update_interval)
        target = optimization.polyak(state.target, params.critics, self.polyak, is_due)
        after = SACState(params, target, optimizer, num_updates)
        return addon.apply(self, state, grads, after, state.num_updates)

    def _target(self, state: SACState, sample: Sample, noise: Any) -> jax.Array:
        batch, alpha = sample.batch, jnp.exp(state.params.log_alpha)
        value, log_prob = self.policy.expect(state.params.actor, state.target, batch.next_obs, noise)
        value = jax.vmap(losses.soft_value, in_axes=(0, 0, None))(value, log_prob, alpha)
        return jax.vmap(losses.td_target)(batch.reward, batch.discount, value)

    def _critic_loss(self, critics: PyTree, sample: Sample, target: jax.Array) -> tuple[jax.Array, Any]:
        q = self.policy.values(critics, sample.batch.obs, sample.batch.action)
        error = q - target[None]
        return 0.5 * jnp.sum(jnp.mean(sample.weights[None] * error**2, axis=1)), (q, error)

    def _actor_loss(self, actor: PyTree, state: SACState, sample: Sample, noise: Any) -> tuple[jax.Array, jax.Array]:
        value, log_prob = self.policy.expect(actor, state.params.critics, sample.batch.obs, noise)
        alpha = jnp.exp(state.params.log_alpha)
        loss = jax.vmap(losses.soft_policy_loss, in_axes=(0, 0, None))(value, log_prob, alpha)
        return jnp.mean(sample.weights * loss), log_prob

    def _temperature_loss(
        self, log_alpha: jax.Array, sample: Sample, log_prob: jax.Array, target_entropy: jax.Array
    ) -> jax.Array:
        loss = jax.vmap(losses.temperature_loss, in_axes=(None, 0, None))(log_alpha, log_prob, target_entropy)
        return jnp.mean(sample.weights * loss)

    def _target_entropy(self, num_updates: jax.Array) -> jax.Array:
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
