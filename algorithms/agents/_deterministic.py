"""The shared parts of DDPG and TD3: a deterministic policy, its critics, and their losses.

    y    = r + discount * min_j Q_target,j(s', a')
    L_q  = sum_j mean_i w_i (Q_j(s_i, a_i) - y_i)^2 / 2
    L_pi = -mean_i w_i Q_1(s_i, pi(s_i))

Each algorithm defines the action `a'`, the number of critics, and the updates in which policy and targets move.

Add-ons need a distribution over actions. They get a Gaussian whose mean is the policy's action in `[-1, 1]`, and whose
standard deviation is always `POLICY_SCALE`. So the divergence of two policies with actions `a_1` and `a_2` is
`|a_1 - a_2|^2 / (2 POLICY_SCALE^2)`.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms.addons import Addon, addon
from algorithms.agents import exploration, losses, optimization
from algorithms.agents._base import ActorAgent, ActorCritic
from algorithms.agents._policies import PolicyNetworks
from algorithms.environments.spaces import Box
from algorithms.networks import Critic, DeterministicActor, Torso, apply_batch, apply_stack, init_stack
from algorithms.networks.distributions import Normal
from algorithms.optimizers import Optimizers, Schedule
from algorithms.types import GroupRule, Metrics, Roles, StepInfo
from jaxrl_buffers._checks import require_number, require_positive
from jaxrl_buffers._random.hashing import split
from jaxrl_buffers.types import PyTree, Sample, Scalar

POLICY_SCALE = 0.1


class DeterministicState(NamedTuple):
    """The state of an agent with a deterministic policy."""

    params: ActorCritic
    target: ActorCritic
    optimizer: ActorCritic  # the states of the optimizers, one for each group
    num_updates: jax.Array  # int32[]


@dataclasses.dataclass(frozen=True)
class DeterministicPolicy(PolicyNetworks):
    """One action in `[-1, 1]` for each observation."""

    action_space: Box
    torso: Torso

    @property
    def actor(self) -> DeterministicActor:
        """The network of the policy."""
        return DeterministicActor(self.action_space.size, self.torso)

    def action(self, params: PyTree, obs: PyTree) -> jax.Array:
        """Return actions `float32[B, A]` in `[-1, 1]`."""
        return apply_batch(self.actor, params, obs)

    def distribution(self, params: PyTree, obs: PyTree) -> Normal:
        """Return Gaussians around the actions at observations `[B, ...]`, for add-ons."""
        mean = self.action(params, obs)
        return Normal(mean, jnp.full_like(mean, math.log(POLICY_SCALE)))


class DeterministicAgent(ActorAgent):
    """An agent with a deterministic policy and `num_critics` stacked critics. It explores by adding noise to actions.

    A subclass declares the fields below, and implements `gradients` and `apply`.
    """

    action_space: Box
    torso: Torso
    noise: str
    schedule: Schedule | None
    optimizer: Optimizers | None
    addons: tuple[Addon, ...]
    target_update_interval: Scalar
    polyak: Scalar
    max_grad_norm: Scalar
    noise_scale: Scalar
    noise_theta: Scalar

    num_critics: ClassVar[int]
    groups: ClassVar[Mapping[str, GroupRule]] = {
        "actor": GroupRule("learning_rate_pi"),
        "critic": GroupRule("learning_rate_q"),
    }

    def check(self, *names: str) -> None:
        """Refuse bad values of the fields above, and of the fields `names`, which must be at least 0."""
        owner = type(self).__name__
        if not isinstance(self.action_space, Box):
            raise ValueError(
                f"{owner} needs a Box of actions, but the action space is {self.action_space!r}; use DDQN or SAC."
            )
        for name in ("learning_rate_q", "learning_rate_pi", "noise_scale", *names):
            require_number(self, name, getattr(self, name), 0)
        require_positive(self, "max_grad_norm")
        exploration.check(self, self.noise, self.noise_theta)
        addon.check(owner, self.addons)
        optimization.check(self)
        optimization.check_target(self)

    @abc.abstractmethod
    def gradients(self, state: DeterministicState, sample: Sample, key: jax.Array) -> tuple[ActorCritic, StepInfo]:
        """Return the gradients of critics and policy; consumes `key`."""

    @abc.abstractmethod
    def apply(self, state: DeterministicState, grads: ActorCritic) -> DeterministicState:
        """Return the state after one update with these gradients."""

    @property
    def roles(self) -> Roles:
        """One policy and a stack of critics."""
        return (("actor", ()), ("critic", (self.num_critics,)))

    @property
    def policy(self) -> DeterministicPolicy:
        """The policy, without its parameters."""
        return DeterministicPolicy(self.action_space, self.torso)

    def init(self, key: jax.Array, obs: PyTree, action: PyTree) -> DeterministicState:
        """Return the first state, for observations like `obs` and actions like `action`; consumes `key`."""
        key_actor, key_critic = split(key)
        critic = init_stack(self._critic, key_critic, self.num_critics, obs, action)
        params = ActorCritic(self.policy.init_actor(key_actor, obs), critic)
        target = jax.tree.map(jnp.copy, params)  # a state that holds an array twice cannot be donated to `jit`
        state = DeterministicState(params, target, optimization.init(self, params), jnp.zeros((), jnp.int32))
        return addon.init(self, state, key, obs, action)

    def initial_carry(self, num_envs: int) -> PyTree:
        """Return what the exploration noise remembers at the start of an episode."""
        return self._noise.initial_carry(num_envs, self.action_space.size)

    def act(
        self, state: DeterministicState, obs: PyTree, carry: PyTree, key: jax.Array, deterministic: bool = False
    ) -> tuple[jax.Array, PyTree, PyTree]:
        """Return the policy's actions `float32[N, A]`. Add noise, unless `deterministic`; consumes `key`."""
        action = self.policy.action(state.params.actor, obs)
        if not deterministic:
            action, carry = exploration.disturb(self._noise, self.noise_scale, action, carry, key)
        return self.action_space.scale(action), carry, ()

    def values(self, critic: PyTree, obs: PyTree, action: jax.Array) -> jax.Array:
        """Return the values `float32[C, B]` that `C` critics give to actions `float32[B, A]` in `[-1, 1]`."""
        return apply_stack(self._critic, critic, obs, action)

    def critic_gradient(
        self, state: DeterministicState, sample: Sample, next_action: jax.Array
    ) -> tuple[PyTree, StepInfo]:
        """Return the gradient of `L_q`, and the priorities `|min_j Q_j(s, a) - y|`.

        Args:
            state: the agent's state.
            sample: the batch.
            next_action: `float32[B, A]` in `[-1, 1]`, the actions `a'` in the target `y`.
        """
        batch = sample.batch
        next_value = jnp.min(self.values(state.target.critic, batch.next_obs, next_action), axis=0)
        target = jax.vmap(losses.td_target)(batch.reward, batch.discount, next_value)

        def loss(critic: PyTree) -> tuple[jax.Array, jax.Array]:
            q = self.values(critic, batch.obs, self.action_space.normalize(batch.action))
            return 0.5 * jnp.sum(jnp.mean(sample.weights[None] * (q - target[None]) ** 2, axis=1)), q

        (loss_q, q), grads = jax.value_and_grad(loss, has_aux=True)(state.params.critic)
        metrics = {"loss_q": loss_q, "q": jnp.mean(q)}
        return grads, StepInfo(jnp.abs(jnp.min(q, axis=0) - target), metrics)

    def policy_gradient(self, state: DeterministicState, sample: Sample) -> tuple[jax.Array, PyTree]:
        """Return `L_pi` and its gradient."""
        first = jax.tree.map(lambda leaf: leaf[:1], state.params.critic)

        def loss(actor: PyTree) -> jax.Array:
            q = self.values(first, sample.batch.obs, self.policy.action(actor, sample.batch.obs))[0]
            return -jnp.mean(sample.weights * q)

        return jax.value_and_grad(loss)(state.params.actor)

    def norms(self, grads: ActorCritic) -> Metrics:
        """Return the metrics that are norms of gradients."""
        return {"grad_norm_q": optax.tree.norm(grads.critic), "grad_norm_pi": optax.tree.norm(grads.actor)}

    @property
    def _critic(self) -> Critic:
        return Critic(self.torso)

    @property
    def _noise(self) -> exploration.Noise:
        return exploration.make(self.noise, self.noise_theta)
