"""Twin delayed deep deterministic policy gradient (TD3), with continuous actions.

    a'   = clip(pi_target(s') + clip(epsilon, -c, c), -1, 1),   epsilon ~ N(0, sigma^2) for every component
    y    = r + discount * min_j Q_target,j(s', a')
    L_q  = sum_j mean_i w_i (Q_j(s_i, a_i) - y_i)^2 / 2
    L_pi = -mean_i w_i Q_1(s_i, pi(s_i))

Fujimoto et al. (2018), https://arxiv.org/abs/1802.09477. Networks see actions in `[-1, 1]`, and so the smoothing noise
is in proportion to the bounds of every component. The policy and all targets move only at the 1st, (d + 1)-th,
(2 d + 1)-th ... update, `d` being `target_update_interval`; in between, the policy's optimizer rests as well. The
priority of a sample is `|min_j Q_j(s, a) - y|`.

Differences from the paper: gradients are clipped by their norm; other kinds of exploration noise are offered.

Differences from PyTorchRL: the target takes the action of the target policy; smoothing noise is drawn for every sample
and component, and scaled and clipped by the bounds of each; errors are told with prioritized samples, too; a delay
above 1 works, and `target_update_interval` is 2, as in the paper, not 1. Class and factory agree on all other defaults
that are here (the factory's batches of 100 are a matter of `Plan`).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from algorithms import deterministic, exploration, losses, optimization
from algorithms.addons import Addon, addon
from algorithms.deterministic import ActorCritics, DeterministicState, Networks, Rates
from algorithms.distributions import Normal
from algorithms.networks import Torso
from algorithms.optimization import Schedule
from algorithms.spaces import Box
from algorithms.types import StepInfo
from jaxrl_buffers._checks import require_count, require_number, require_positive
from jaxrl_buffers._random.hashing import unrolled
from jaxrl_buffers.types import PyTree, Sample, Scalar, Transition


class TD3(struct.PyTreeNode):
    """TD3: two critics, smoothed targets, a delayed policy.

    Args:
        action_space: `Box`.
        torso: the network below actor and critics.
        noise: of exploration; `gaussian`, `ornstein_uhlenbeck` or `pink`.
        schedule: factor on all learning rates as a function of the number of updates, as in optax.
        learning_rate_q, learning_rate_pi: of Adam, for critics and policy.
        polyak: `target = polyak * target + (1 - polyak) * online`; 0 copies.
        target_update_interval: updates from one step of policy and targets to the next, from the first update on;
            0 counts as 1.
        max_grad_norm: gradients of a larger global norm are scaled down to it, critics and policy apart.
        noise_scale: standard deviation of the noise, where actions reach from -1 to 1.
        noise_theta: share of itself that Ornstein-Uhlenbeck noise loses in a step.
        smoothing_scale: standard deviation of the noise on target actions, where they reach from -1 to 1.
        smoothing_clip: the largest noise on a target action.
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

    action_space: Box = struct.field(pytree_node=False)
    torso: Torso = struct.field(pytree_node=False, default=Torso())
    noise: str = struct.field(pytree_node=False, default="gaussian")
    schedule: Schedule | None = struct.field(pytree_node=False, default=None)
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

    num_passes = 1
    roles = (("actor", ()), ("critic", (2,)))

    def __post_init__(self):
        if not isinstance(self.action_space, Box):
            raise ValueError(f"TD3 acts in continuous spaces, but the action space is {self.action_space!r}.")
        for name in ("learning_rate_q", "learning_rate_pi", "noise_scale", "smoothing_scale", "smoothing_clip"):
            require_number(self, name, getattr(self, name), 0)
        require_positive(self, "max_grad_norm")
        require_count(self, "target_update_interval", self.target_update_interval)
        require_number(self, "polyak", self.polyak, 0, 1)
        exploration.check(self, self.noise, self.noise_theta)
        addon.check("TD3", self.addons)

    @property
    def networks(self) -> Networks:
        """Policy and critics, on actions in `[-1, 1]`."""
        return Networks(self.action_space, self.torso, num_critics=2)

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
        """Return the gradients of critics and policy, both at the present parameters; consumes `key`.

        The policy's are zero in updates that leave it as it is, and so are `loss_pi` and `grad_norm_pi`.
        """
        action = self.networks.policy(state.target.actor, sample.batch.next_obs)
        normal = jax.random.normal(unrolled(key), action.shape, jnp.float32)
        scale, clip = (jnp.asarray(value, jnp.float32) for value in (self.smoothing_scale, self.smoothing_clip))
        next_action = jax.vmap(losses.smoothed_action, in_axes=(0, 0, None))(action, scale * normal, clip)
        grads, info = self.networks.gradients(state, sample, next_action, self._is_due(state))
        return addon.add_gradients(self, state, sample, key, grads, info)

    def apply(self, state: DeterministicState, grads: ActorCritics) -> DeterministicState:
        """Step the critics; when it is their turn, also the policy and all targets."""
        rates = Rates(self.learning_rate_q, self.learning_rate_pi, self.max_grad_norm, self.polyak, self.schedule)
        is_due = self._is_due(state)
        after = deterministic.apply(state, grads, rates, moves_policy=is_due, moves_target=is_due)
        return addon.apply(self, state, grads, after, state.num_updates)

    def _is_due(self, state: DeterministicState) -> jax.Array:
        """Tell whether the update to come moves the policy and all targets."""
        return optimization.is_due(state.num_updates, self.target_update_interval)

    @property
    def _noise(self) -> exploration.Noise:
        return exploration.make(self.noise, self.noise_theta)
