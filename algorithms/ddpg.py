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
import jax.numpy as jnp
from flax import struct

from algorithms import deterministic, exploration, optimization
from algorithms.addons import Addon, addon
from algorithms.deterministic import ActorCritics, DeterministicState, Networks, Rates
from algorithms.distributions import Normal
from algorithms.networks import Torso
from algorithms.optimization import Schedule
from algorithms.spaces import Box
from algorithms.types import StepInfo
from jaxrl_buffers._checks import require_count, require_number, require_positive
from jaxrl_buffers.types import PyTree, Sample, Scalar, Transition


class DDPG(struct.PyTreeNode):
    """Deep deterministic policy gradient with one critic.

    Args:
        action_space: `Box`.
        torso: the network below actor and critic.
        noise: of exploration; `gaussian`, `ornstein_uhlenbeck` or `pink`.
        schedule: factor on all learning rates as a function of the number of updates, as in optax.
        learning_rate_q, learning_rate_pi: of Adam, for the critic and the policy.
        polyak: `target = polyak * target + (1 - polyak) * online`; 0 copies.
        target_update_interval: updates from one such averaging to the next; 0 counts as 1.
        max_grad_norm: gradients of a larger global norm are scaled down to it, critic and policy apart.
        noise_scale: standard deviation of the noise, where actions reach from -1 to 1.
        noise_theta: share of itself that Ornstein-Uhlenbeck noise loses in a step.
        addons: terms to add to the policy's loss.

    Example:
        >>> from algorithms import environments
        >>> env = environments.make("Pendulum-v1")
        >>> agent = DDPG(env.action_space, noise="pink", noise_scale=0.3)
        >>> state = agent.init(jax.random.key(0), env.obs, env.action_space.example)
        >>> action, carry, _ = agent.act(state, jnp.zeros((3, 3)), agent.initial_carry(3), jax.random.key(1))
        >>> action.shape
        (3, 1)
    """

    action_space: Box = struct.field(pytree_node=False)
    torso: Torso = struct.field(pytree_node=False, default=Torso())
    noise: str = struct.field(pytree_node=False, default="gaussian")
    schedule: Schedule | None = struct.field(pytree_node=False, default=None)
    learning_rate_q: Scalar = 1e-3
    learning_rate_pi: Scalar = 1e-4
    polyak: Scalar = 0.995
    target_update_interval: Scalar = 1
    max_grad_norm: Scalar = 0.5
    noise_scale: Scalar = 0.1
    noise_theta: Scalar = 0.15
    addons: tuple[Addon, ...] = ()

    num_passes = 1
    roles = (("actor", ()), ("critic", (1,)))

    def __post_init__(self):
        if not isinstance(self.action_space, Box):
            raise ValueError(f"DDPG acts in continuous spaces, but the action space is {self.action_space!r}.")
        for name in ("learning_rate_q", "learning_rate_pi", "noise_scale"):
            require_number(self, name, getattr(self, name), 0)
        require_positive(self, "max_grad_norm")
        require_count(self, "target_update_interval", self.target_update_interval)
        require_number(self, "polyak", self.polyak, 0, 1)
        exploration.check(self, self.noise, self.noise_theta)
        addon.check("DDPG", self.addons)

    @property
    def networks(self) -> Networks:
        """Policy and critic, on actions in `[-1, 1]`."""
        return Networks(self.action_space, self.torso, num_critics=1)

    def init(self, key: jax.Array, obs: PyTree, action: PyTree) -> DeterministicState:
        """Return the state for observations and actions like these; consumes `key`."""
        return addon.init(self, self.networks.init(key, obs, action), key, obs, action)

    def initial_carry(self, num_envs: int) -> PyTree:
        """Return the memory of the exploration noise."""
        return self._noise.initial_carry(num_envs, self.action_space.size)

    def act(
        self, state: DeterministicState, obs: PyTree, carry: PyTree, key: jax.Array, deterministic: bool = False
    ) -> tuple[jax.Array, PyTree, PyTree]:
        """Return the policy's actions `float32[N, A]`, with noise unless `deterministic`; consumes `key`."""
        action = self.networks.policy(state.params.actor, obs)
        if not deterministic:
            action, carry = exploration.disturb(self._noise, self.noise_scale, action, carry, key)
        return self.action_space.scale(action), carry, ()

    def distribution(self, state: DeterministicState, obs: PyTree) -> Normal:
        """Return the Gaussians around the policy's actions at observations `[B, ...]` that add-ons see."""
        return self.networks.distribution(state.params.actor, obs)

    def features(self, state: DeterministicState, obs: PyTree) -> jax.Array:
        """Return the features `float32[B, F]` below the policy."""
        return self.networks.features(state.params.actor, obs)

    def observe(self, state: DeterministicState, chunk: Transition) -> DeterministicState:
        """Nothing is noted."""
        return state

    def gradients(
        self, state: DeterministicState, sample: Sample, key: jax.Array, pass_index: int
    ) -> tuple[ActorCritics, StepInfo]:
        """Return the gradients of critic and policy, both at the present parameters; `key` is for add-ons."""
        next_action = self.networks.policy(state.target.actor, sample.batch.next_obs)
        return addon.add_gradients(self, state, sample, key, *self.networks.gradients(state, sample, next_action))

    def apply(self, state: DeterministicState, grads: ActorCritics) -> DeterministicState:
        """Step critic and policy, then average both into their targets."""
        rates = Rates(self.learning_rate_q, self.learning_rate_pi, self.max_grad_norm, self.polyak, self.schedule)
        is_due = optimization.is_due(state.num_updates + 1, self.target_update_interval)
        after = deterministic.apply(state, grads, rates, moves_policy=jnp.asarray(True), moves_target=is_due)
        return addon.apply(self, state, grads, after, state.num_updates)

    @property
    def _noise(self) -> exploration.Noise:
        return exploration.make(self.noise, self.noise_theta)
