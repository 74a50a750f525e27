"""Deep deterministic policy gradient, with continuous actions.

    y    = r + discount * Q_target(s', pi_target(s'))
    L_q  = mean_i w_i (Q(s_i, a_i) - y_i)^2 / 2
    L_pi = -mean_i w_i Q(s_i, pi(s_i))

Lillicrap et al. (2016), https://arxiv.org/abs/1509.02971. Networks see actions in `[-1, 1]`. Exploration adds noise to
the policy's action and clips the sum to the bounds. The priority of a sample is `|Q(s, a) - y|`.

Differences from the paper: independent Gaussian noise by default (`noise="ornstein_uhlenbeck"` is the paper's); actions
enter the critic at its first layer; no batch normalization and no weight decay; gradients are clipped by their norm.

Differences from PyTorchRL: the target takes the action of the target policy, and no loss contains noise; errors are
told with prioritized samples, too; noise is drawn for every environment and component; stored actions are those that
the environment received. Where class and factory differed, `learning_rate_q` is the factory's 1e-3.
"""

from __future__ import annotations

import jax
import optax

from algorithms.addons import Addon, addon
from algorithms.agents import optimization
from algorithms.agents._base import ActorCritic
from algorithms.agents._deterministic import DeterministicAgent, DeterministicState
from algorithms.agents.optimizers import Optimizers, Schedule
from algorithms.environments.spaces import Box
from algorithms.networks import Torso
from algorithms.types import StepInfo
from jaxrl_buffers.component import Component, field
from jaxrl_buffers.types import Sample, Scalar


class DDPG(DeterministicAgent, Component):
    """Deep deterministic policy gradient with one critic.

    Args:
        action_space: `Box`.
        torso: the network below actor and critic.
        noise: of exploration; `gaussian`, `ornstein_uhlenbeck` or `pink`.
        schedule: factor on all learning rates as a function of the number of updates, as in optax.
        optimizer: to use in the place of Adam; see `algorithms.agents.optimization`.
        learning_rate_q, learning_rate_pi: of Adam, for the critic and the policy.
        polyak: `target = polyak * target + (1 - polyak) * online`; 0 copies.
        target_update_interval: updates from one such averaging to the next; 0 counts as 1.
        max_grad_norm: gradients of a larger global norm are scaled down to it, critic and policy apart.
        noise_scale: standard deviation of the noise, where actions reach from -1 to 1.
        noise_theta: share of itself that Ornstein-Uhlenbeck noise loses in a step.
        addons: terms to add to the policy's loss.

    Example:
        >>> import jax.numpy as jnp
        >>> from algorithms import environments
        >>> env = environments.make("Pendulum-v1")
        >>> agent = DDPG(env.action_space, noise="pink", noise_scale=0.3)
        >>> state = agent.init(jax.random.key(0), env.obs, env.action_space.example)
        >>> action, carry, _ = agent.act(state, jnp.zeros((3, 3)), agent.initial_carry(3), jax.random.key(1))
        >>> action.shape
        (3, 1)
    """

    action_space: Box = field(static=True)
    torso: Torso = field(static=True, default=Torso())
    noise: str = field(static=True, default="gaussian")
    schedule: Schedule | None = field(static=True, default=None)
    optimizer: Optimizers | None = field(static=True, default=None)
    learning_rate_q: Scalar = 1e-3
    learning_rate_pi: Scalar = 1e-4
    polyak: Scalar = 0.995
    target_update_interval: Scalar = 1
    max_grad_norm: Scalar = 0.5
    noise_scale: Scalar = 0.1
    noise_theta: Scalar = 0.15
    addons: tuple[Addon, ...] = ()

    num_critics = 1

    def __post_init__(self):
        self.check()

    def gradients(self, state: DeterministicState, sample: Sample, key: jax.Array) -> tuple[ActorCritic, StepInfo]:
        """Return the gradients of critic and policy, both at the present parameters; `key` is for add-ons."""
        next_action = self.policy.action(state.target.actor, sample.batch.next_obs)
        critic, info = self.critic_gradient(state, sample, next_action)
        loss_pi, actor = self.policy_gradient(state, sample)
        metrics = info.metrics | {"loss_pi": loss_pi, "grad_norm_pi": optax.tree.norm(actor)}
        grads, info = ActorCritic(actor, critic), info._replace(metrics=metrics)
        return addon.add_gradients(self, state, sample, key, grads, info)

    def apply(self, state: DeterministicState, grads: ActorCritic) -> DeterministicState:
        """Step critic and policy, then average both into their targets."""
        after = optimization.step(self, state, grads, ("actor", "critic", "addons"))
        return self.follow(after, optimization.is_due(state.num_updates + 1, self.target_update_interval))
