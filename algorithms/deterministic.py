"""What algorithms with a deterministic policy have in common: networks, state, losses and steps.

    y    = r + discount * min_j Q_target,j(s', a')
    L_q  = sum_j mean_i w_i (Q_j(s_i, a_i) - y_i)^2 / 2
    L_pi = -mean_i w_i Q_1(s_i, pi(s_i))

Add-ons, which speak to a distribution, see a Gaussian around the policy's action with the fixed standard deviation
`POLICY_SCALE`, in `[-1, 1]`: so the divergence of two policies is `|a - a'|^2 / (2 POLICY_SCALE^2)`.

An algorithm decides what `a'` is, how many critics there are, and when policy and targets move.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms import losses, optimization
from algorithms.distributions import Normal
from algorithms.networks import (
    Critic,
    DeterministicActor,
    Torso,
    apply_batch,
    apply_stack,
    init_network,
    torso_features,
)
from algorithms.optimization import Schedule
from algorithms.spaces import Box
from algorithms.types import StepInfo
from jaxrl_buffers._random.hashing import split
from jaxrl_buffers.types import PyTree, Sample, Scalar

POLICY_SCALE = 0.1


class ActorCritics(NamedTuple):
    """Parameters, their gradients, or their optimizers."""

    actor: PyTree
    critics: PyTree  # leaves [C, ...]
    addons: PyTree = ()


class DeterministicState(NamedTuple):
    """What a learner with a deterministic policy remembers."""

    params: ActorCritics
    target: ActorCritics
    optimizer: ActorCritics  # one optimizer a group
    num_updates: jax.Array  # int32[]


class Networks(NamedTuple):
    """A policy and `C` stacked critics, all on actions in `[-1, 1]`."""

    action_space: Box
    torso: Torso
    num_critics: int

    def init(self, key: jax.Array, obs: PyTree, action: PyTree) -> DeterministicState:
        """Return the first state; consumes `key`."""
        obs, action = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (obs, action))
        key_actor, key_critics = split(key)
        keys = split(key_critics, self.num_critics)
        critics = jax.vmap(lambda key: init_network(self._critic, key, obs, action))(keys)
        params = ActorCritics(init_network(self._actor, key_actor, obs), critics)
        target = jax.tree.map(jnp.copy, params)  # the same buffer twice could not be donated
        optimizer = ActorCritics(optimization.init(params.actor), optimization.init(params.critics))
        return DeterministicState(params, target, optimizer, jnp.zeros((), jnp.int32))

    def policy(self, actor: PyTree, obs: PyTree) -> jax.Array:
        """Return actions `float32[B, A]` in `[-1, 1]`."""
        return apply_batch(self._actor, actor, obs)

    def distribution(self, actor: PyTree, obs: PyTree) -> Normal:
        """Return the Gaussians around actions in `[-1, 1]` that add-ons see."""
        mean = self.policy(actor, obs)
        return Normal(mean, jnp.full_like(mean, math.log(POLICY_SCALE)))

    def features(self, actor: PyTree, obs: PyTree) -> jax.Array:
        """Return the features `float32[B, F]` below the policy."""
        return torso_features(self._actor, actor, obs)

    def values(self, critics: PyTree, obs: PyTree, action: jax.Array) -> jax.Array:
        """Return values `float32[C, B]` of actions in `[-1, 1]`."""
        return apply_stack(self._critic, critics, obs, action)

    def gradients(
        self,
        state: DeterministicState,
        sample: Sample,
        next_action: jax.Array,
        moves_policy: jax.Array | None = None,
    ) -> tuple[ActorCritics, StepInfo]:
        """Return the gradients of critics and policy, both at the present parameters, for given actions `a'`.

        Where not `moves_policy`, the policy's gradient, which nothing uses, and its metrics are zeros that cost nothing
        (but under `vmap`, which computes and then chooses).
        """
        batch = sample.batch
        next_value = jnp.min(self.values(state.target.critics, batch.next_obs, next_action), axis=0)
        target = jax.vmap(losses.td_target)(batch.reward, batch.discount, next_value)
        (loss_q, q), critics = jax.value_and_grad(self._critic_loss, has_aux=True)(state.params.critics, sample, target)

        def policy_gradient() -> tuple[jax.Array, PyTree]:
            return jax.value_and_grad(self._actor_loss)(state.params.actor, state.params.critics, sample)

        if moves_policy is None:
            (loss_pi, actor), share = policy_gradient(), {}
        else:
            nothing = jnp.zeros((), jnp.float32), jax.tree.map(jnp.zeros_like, state.params.actor)
            loss_pi, actor = jax.lax.cond(moves_policy, policy_gradient, lambda: nothing)
            share = {"moves_policy": moves_policy.astype(jnp.float32)}
        metrics = {
            **share,
            "loss_q": loss_q,
            "loss_pi": loss_pi,
            "q": jnp.mean(q),
            "grad_norm_q": optax.tree.norm(critics),
            "grad_norm_pi": optax.tree.norm(actor),
        }
        return ActorCritics(actor, critics), StepInfo(jnp.abs(jnp.min(q, axis=0) - target), metrics)

    def _critic_loss(self, critics: PyTree, sample: Sample, target: jax.Array) -> tuple[jax.Array, jax.Array]:
        q = self.values(critics, sample.batch.obs, self.action_space.normalize(sample.batch.action))
        return 0.5 * jnp.sum(jnp.mean(sample.weights[None] * (q - target[None]) ** 2, axis=1)), q

    def _actor_loss(self, actor: PyTree, critics: PyTree, sample: Sample) -> jax.Array:
        first = jax.tree.map(lambda leaf: leaf[:1], critics)
        q = self.values(first, sample.batch.obs, self.policy(actor, sample.batch.obs))[0]
        return -jnp.mean(sample.weights * q)

    @property
    def _actor(self) -> DeterministicActor:
        return DeterministicActor(self.action_space.size, self.torso)

    @property
    def _critic(self) -> Critic:
        return Critic(self.torso)


class Rates(NamedTuple):
    """How far one update goes."""

    q: Scalar
    pi: Scalar
    max_grad_norm: Scalar
    polyak: Scalar
    schedule: Schedule | None


def apply(
    state: DeterministicState, grads: ActorCritics, rates: Rates, moves_policy: Any, moves_target: Any
) -> DeterministicState:
    """Step the critics, the policy where `moves_policy`, and average both into the targets where `moves_target`."""
    limit = rates.max_grad_norm
    rate_q, rate_pi = optimization.scheduled(rates.schedule, state.num_updates, rates.q, rates.pi)
    critics, optimizer_q = optimization.step(
        state.params.critics, grads.critics, state.optimizer.critics, rate_q, limit
    )
    policy = optimization.step(state.params.actor, grads.actor, state.optimizer.actor, rate_pi, limit)
    actor, optimizer_pi = optimization.where(moves_policy, policy, (state.params.actor, state.optimizer.actor))
    params = ActorCritics(actor, critics)
    target = optimization.polyak(state.target, params, rates.polyak, moves_target)
    return DeterministicState(params, target, ActorCritics(optimizer_pi, optimizer_q), state.num_updates + 1)
