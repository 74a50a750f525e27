"""Twin delayed deep deterministic policy gradient (TD3), with continuous actions.

    a'   = clip(pi_target(s') + clip(epsilon, -c, c), -1, 1),   epsilon ~ N(0, sigma^2) for every component
    y    = r + discount * min_j Q_target,j(s', a')
    L_q  = sum_j mean_i w_i (Q_j(s_i, a_i) - y_i)^2 / 2
    L_pi = -mean_i w_i Q_1(s_i, pi(s_i))

Fujimoto et al. (2018), https://arxiv.org/abs/1802.09477. Networks see actions in `[-1, 1]`, so the smoothing noise of
each component is in proportion to the range of the component. The policy and all targets move only in the 1st,
(d + 1)-th, (2 d + 1)-th ... update, where `d` is `target_update_interval`. In the other updates the policy, its
optimizer and all targets stay unchanged. The priority of a sample is `|min_j Q_j(s, a) - y|`.

Differences from the paper:

* Gradients are clipped by their norm.
* Other kinds of exploration noise can be chosen.

Differences from PyTorchRL:

* The target `y` uses the action of the target policy.
* Smoothing noise is drawn for every sample and every component. It is scaled and clipped by the bounds of the
  component.
* Priorities are updated. In PyTorchRL they never are.
* A delay above 1 works. `target_update_interval` is 2, as in the paper. In PyTorchRL it is 1.

All other defaults are those of PyTorchRL. The batch size is set in `Plan`. PyTorchRL's factory has 100.
"""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp

from algorithms.addons import Addon, addon
from algorithms.agents import losses, optimization
from algorithms.agents._base import ActorCritic
from algorithms.agents._deterministic import DeterministicAgent, DeterministicState
from algorithms.environments.spaces import Box
from algorithms.networks import Torso
from algorithms.optimizers import Optimizers, Schedule
from algorithms.types import StepInfo
from jaxrl_buffers._mesh import vary_like
from jaxrl_buffers._random.hashing import unrolled
from jaxrl_buffers.component import Component, field
from jaxrl_buffers.types import Sample, Scalar


class TD3(DeterministicAgent, Component):
    """TD3, which is DDPG with two critics, smoothed targets and a delayed policy.

    Args:
        action_space: `Box`.
        torso: the network below the heads of actor and critics. They share no parameters.
        noise: the kind of exploration noise: `gaussian`, `ornstein_uhlenbeck` or `pink`.
        schedule: a factor on all learning rates, as a function of the number of updates, such as a schedule of optax.
        optimizer: optimizers to use instead of Adam; see `algorithms.agents.optimization`.
        learning_rate_q: learning rate of the critics.
        learning_rate_pi: learning rate of the policy.
        polyak: `target <- polyak * target + (1 - polyak) * params` moves the target networks; 0 copies the trained
            ones.
        target_update_interval: the number of updates between two moves of the policy and all targets; 0 counts as 1.
            The first move is in the first update.
        max_grad_norm: the largest norm of the critics' gradient, and of the policy's. A gradient with a larger norm is
            scaled down to it.
        noise_scale: standard deviation of the exploration noise, in units in which actions go from -1 to 1.
        noise_theta: the share of its value that Ornstein-Uhlenbeck noise loses in one step. Other noise ignores it.
        smoothing_scale: `sigma`, standard deviation of the noise on target actions, in the same units.
        smoothing_clip: `c`, the largest noise on a target action, in the same units.
        addons: terms to add to the policy's loss.

    Example:
        >>> from algorithms import environments
        >>> env = environments.make("Pendulum-v1")
        >>> agent = TD3(env.action_space, learning_rate_q=1e-3)
        >>> state = agent.init(jax.random.key(0), env.obs, env.action_space.example)
        >>> action, _, _ = agent.act(state, jnp.zeros((3, 3)), (), jax.random.key(1))
        >>> action.shape
        (3, 1)
    """

    action_space: Box = field(static=True)
    torso: Torso = field(static=True, default=Torso())
    noise: str = field(static=True, default="gaussian")
    schedule: Schedule | None = field(static=True, default=None)
    optimizer: Optimizers | None = field(static=True, default=None)
    learning_rate_q: Scalar = 1e-4
    learning_rate_pi: Scalar = 1e-4
    polyak: Scalar = 0.995
    target_update_interval: Scalar = 2
    max_grad_norm: Scalar = 0.5
    noise_scale: Scalar = 0.1
    noise_theta: Scalar = 0.15
    smoothing_scale: Scalar = 0.2
    smoothing_clip: Scalar = 0.5
    addons: tuple[Addon, ...] = ()

    num_critics: ClassVar[int] = 2

    def __post_init__(self) -> None:
        self.check("smoothing_scale", "smoothing_clip")

    def gradients(self, state: DeterministicState, sample: Sample, key: jax.Array) -> tuple[ActorCritic, StepInfo]:
        """Return the gradients of `L_q` and `L_pi`, both at the current parameters; consumes `key`.

        In an update that does not move the policy, the policy's gradient and the metrics `loss_pi` and `grad_norm_pi`
        are zero. The policy's loss is then not computed, except under `vmap`.
        """
        action = self.policy.action(state.target.actor, sample.batch.next_obs)
        normal = jax.random.normal(unrolled(key), action.shape, jnp.float32)
        scale, clip = (jnp.asarray(value, jnp.float32) for value in (self.smoothing_scale, self.smoothing_clip))
        next_action = jax.vmap(losses.smoothed_action, in_axes=(0, 0, None))(action, scale * normal, clip)
        critic, info = self.critic_gradient(state, sample, next_action)
        moves_policy = self._is_due(state)
        zero = vary_like(
            (jnp.zeros((), jnp.float32), jax.tree.map(jnp.zeros_like, state.params.actor)), (state, sample.weights)
        )
        loss_pi, actor = jax.lax.cond(moves_policy, lambda: self.policy_gradient(state, sample), lambda: zero)
        grads, moves = ActorCritic(actor, critic), moves_policy.astype(jnp.float32)
        metrics = {**info.metrics, "loss_pi": loss_pi, **self.norms(grads), "moves_policy": moves}
        info = info._replace(metrics=metrics)
        return addon.add_gradients(self, state, sample, key, grads, info)

    def apply(self, state: DeterministicState, grads: ActorCritic) -> DeterministicState:
        """Step the critics. If this update moves them, also step the policy and move all targets."""
        is_due = self._is_due(state)
        after = optimization.step(self, state, grads, ("critic", "addons"))
        after = optimization.step(self, after, grads, ("actor",), is_due)
        return optimization.follow(self, after, after.params._replace(addons=()), is_due)

    def _is_due(self, state: DeterministicState) -> jax.Array:
        """Return whether the next update moves the policy and all targets."""
        return optimization.is_due(state.num_updates, self.target_update_interval)
