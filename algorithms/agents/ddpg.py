"""Deep deterministic policy gradient, with continuous actions.

    y    = r + discount * Q_target(s', pi_target(s'))
    L_q  = mean_i w_i (Q(s_i, a_i) - y_i)^2 / 2
    L_pi = -mean_i w_i Q(s_i, pi(s_i))

Lillicrap et al. (2016), https://arxiv.org/abs/1509.02971. Networks see actions in `[-1, 1]`. Exploration adds noise to
the policy's action and clips the sum to the bounds. The priority of a sample is `|Q(s, a) - y|`.

Differences from the paper:

* Exploration noise is independent Gaussian noise by default. The noise of the paper is `noise="ornstein_uhlenbeck"`.
* Actions enter the critic at its first dense layer.
* There is no batch normalization and no weight decay.
* Gradients are clipped by their norm.

Differences from PyTorchRL:

* The target `y` uses the action of the target policy, and no loss contains noise.
* Priorities are updated. In PyTorchRL they never are.
* Noise is drawn for every environment and every component.
* Stored actions are the ones that the environment received.
* PyTorchRL's class and its factory have different defaults of `learning_rate_q`. The default here is the factory's.
"""

from __future__ import annotations

from typing import ClassVar

import jax

from algorithms.addons import Addon, addon
from algorithms.agents import optimization
from algorithms.agents._base import ActorCritic
from algorithms.agents._deterministic import DeterministicAgent, DeterministicState
from algorithms.environments.spaces import Box
from algorithms.networks import Torso
from algorithms.optimizers import Optimizers, Schedule
from algorithms.types import StepInfo
from jaxrl_buffers.component import Component, field
from jaxrl_buffers.types import Sample, Scalar


class DDPG(DeterministicAgent, Component):
    """Deep deterministic policy gradient with one critic.

    Args:
        action_space: `Box`.
        torso: the network below the heads of actor and critic. They share no parameters.
        noise: the kind of exploration noise: `gaussian`, `ornstein_uhlenbeck` or `pink`.
        schedule: a factor on all learning rates, as a function of the number of updates, such as a schedule of optax.
        optimizer: optimizers to use instead of Adam; see `algorithms.agents.optimization`.
        learning_rate_q: learning rate of the critic.
        learning_rate_pi: learning rate of the policy.
        polyak: `target <- polyak * target + (1 - polyak) * params` moves the target networks; 0 copies the trained
            ones.
        target_update_interval: the number of updates between two moves of the target networks; 0 counts as 1.
        max_grad_norm: the largest norm of the critic's gradient, and of the policy's. A gradient with a larger norm is
            scaled down to it.
        noise_scale: standard deviation of the exploration noise, in units in which actions go from -1 to 1.
        noise_theta: the share of its value that Ornstein-Uhlenbeck noise loses in one step. Other noise ignores it.
        addons: terms to add to the policy's loss.

    Example:
        >>> import jax.numpy as jnp
        >>> from algorithms import environments
        >>> env = environments.make("Pendulum-v1")
        >>> agent = DDPG(env.action_space, noise="pink", noise_scale=0.3)
        >>> state = agent.init(jax.random.key(0), env.obs, env.action_space.example)
        >>> action, carry, _ = agent.act(state, jax.numpy.zeros((3, 3)), agent.initial_carry(3), jax.random.key(1))
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

    num_critics: ClassVar[int] = 1

    def __post_init__(self) -> None:
        self.check()

    def gradients(self, state: DeterministicState, sample: Sample, key: jax.Array) -> tuple[ActorCritic, StepInfo]:
        """Return the gradients of `L_q` and `L_pi`, both at the current parameters; only add-ons draw from `key`."""
        next_action = self.policy.action(state.target.actor, sample.batch.next_obs)
        critic, info = self.critic_gradient(state, sample, next_action)
        loss_pi, actor = self.policy_gradient(state, sample)
        grads = ActorCritic(actor, critic)
        info = info._replace(metrics={**info.metrics, "loss_pi": loss_pi, **self.norms(grads)})
        return addon.add_gradients(self, state, sample, key, grads, info)

    def apply(self, state: DeterministicState, grads: ActorCritic) -> DeterministicState:
        """Step critic and policy. Then move their target networks towards them."""
        after = optimization.step(self, state, grads, ("actor", "critic", "addons"))
        return optimization.follow(self, after, after.params._replace(addons=()))
