"""Maximum a posteriori policy optimization, with discrete and with continuous actions.

    y       = r + discount * E_{a ~ pi_t(. | s')} Q_t(s', a)
    L_q     = mean_i w_i (Q(s_i, a_i) - y_i)^2 / 2
    q(a|s)  ~ pi_t(a | s) exp(Q_t(s, a) / eta)                                            (E-step)
    L_eta   = mean_i w_i eta (epsilon + log E_{a ~ pi_t} exp(Q_t(s_i, a) / eta))
    L_pi    = mean_i w_i [-E_{a ~ q} log pi(a | s_i) + sum_d alpha_d KL_d]                (M-step)
    L_alpha = mean_i w_i sum_d alpha_d (epsilon_d - KL_d)

`pi_t` and `Q_t` are target networks, `KL` is from `pi_t` to `pi`. Discrete actions are all summed over, and there is
one divergence. Continuous ones are drawn from `pi_t`, a Gaussian in `[-1, 1]` that is not squashed (environment and
critic get its draws clipped), and mean and variance have a divergence and a multiplier `alpha` in each dimension.
Abdolmaleki et al. (2018), https://arxiv.org/abs/1806.06920 and https://arxiv.org/abs/1812.02256. The priority of a
sample is `|Q(s, a) - y|`.

Differences from the paper: targets follow by averaging (`polyak=0` with `target_update_interval=100` copies them as the
paper does); the critic learns from one or n steps, not by Retrace; temperature and multipliers take a step of Adam each
update instead of being solved for; draws outside of the bounds are discouraged by an objective of their own, as in
https://arxiv.org/abs/2005.07513 (`is_penalized=False` leaves it out).

Differences from PyTorchRL: M-step passes really step the policy; divergences are those of Gaussians, and each drives
its own multiplier; mean and variance are decoupled; the discrete E-step is weighted by the target policy; sampled and
replayed actions have the same units; importance weights enter every loss; temperature and multipliers are trained with
the rest, not by a solver outside. Of its two defaults for `polyak`, that of the factory (0.995) is taken: that of the
class, 1, freezes the targets. 20 actions are drawn instead of 64, and one M-step pass is made instead of five (which
were one: only multipliers moved); multipliers begin above 0, and `max_multiplier` bounds all of them.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import struct

from algorithms import losses, mpo_losses, optimization
from algorithms.addons import Addon, addon
from algorithms.distributions import Categorical, Distribution
from algorithms.mpo_losses import Candidates
from algorithms.networks import Critic, QNetwork, Torso, apply_batch, init_network
from algorithms.optimization import Schedule
from algorithms.policies import Policy
from algorithms.spaces import Box, Discrete, Space
from algorithms.types import StepInfo
from jaxrl_buffers._checks import require_count, require_flag, require_integer, require_number, require_positive
from jaxrl_buffers._random.hashing import split
from jaxrl_buffers.types import PyTree, Sample, Scalar, Transition


class MPOParams(NamedTuple):
    """All that is trained, or its optimizers; temperature and multipliers stand for their softplus."""

    actor: PyTree
    critic: PyTree
    temperature: PyTree  # float32[O], of the values and, if penalized, of the distance from the bounds
    multipliers: PyTree  # float32[2, A] of mean and variance, or float32[1]
    addons: PyTree = ()


class MPOTarget(NamedTuple):
    """The networks that are learned from."""

    actor: PyTree
    critic: PyTree


class MPOState(NamedTuple):
    """What MPO remembers."""

    params: MPOParams
    target: MPOTarget
    optimizer: MPOParams  # one optimizer a group
    num_updates: jax.Array  # int32[], every pass counted


class MPO(struct.PyTreeNode):
    """Maximum a posteriori policy optimization.

    Args:
        action_space: `Discrete` or `Box`.
        torso: the network below policy and values; they share no parameters.
        num_samples: actions drawn in each state, if they are continuous.
        num_passes: steps of the policy along one sample; the critic and the temperature take one.
        is_penalized: discourage continuous actions outside of the bounds.
        schedule: factor on all learning rates as a function of the number of updates, as in optax.
        learning_rate_q: of the critic.
        learning_rate_pi: of the policy.
        learning_rate_dual: of temperature and multipliers.
        polyak: `target = polyak * target + (1 - polyak) * online`; 0 copies.
        target_update_interval: updates from one such averaging to the next; 0 counts as 1.
        max_grad_norm: gradients of a larger global norm are scaled down to it, critic and policy apart.
        dual_constraint: how far the E-step may go from the target policy, as a divergence.
        penalty_constraint: the same for the objective that keeps actions inside of the bounds.
        kl_mean_constraint: how far the M-step may move the mean, in each dimension.
        kl_variance_constraint: how far it may change the variance.
        kl_constraint: how far it may change discrete probabilities.
        initial_temperature: at first.
        initial_multiplier: of the mean, or of discrete probabilities, at first.
        initial_variance_multiplier: of the variance at first.
        max_multiplier: above which temperature and multipliers do not rise.
        addons: terms to add to the policy's loss.

    Example:
        >>> from algorithms import environments
        >>> env = environments.make("Pendulum-v1")
        >>> agent = MPO(env.action_space, learning_rate_q=1e-3, num_samples=10)
        >>> state = agent.init(jax.random.key(0), env.obs, env.action_space.example)
        >>> action, _, _ = agent.act(state, jnp.zeros((3, 3)), (), jax.random.key(1))
        >>> action.shape
        (3, 1)
    """

    action_space: Space = struct.field(pytree_node=False)
    torso: Torso = struct.field(pytree_node=False, default=Torso())
    num_samples: int = struct.field(pytree_node=False, default=20)
    num_passes: int = struct.field(pytree_node=False, default=1)
    is_penalized: bool = struct.field(pytree_node=False, default=True)
    schedule: Schedule | None = struct.field(pytree_node=False, default=None)
    learning_rate_q: Scalar = 1e-4
    learning_rate_pi: Scalar = 1e-4
    learning_rate_dual: Scalar = 1e-2
    polyak: Scalar = 0.995
    target_update_interval: Scalar = 1
    max_grad_norm: Scalar = 0.1
    dual_constraint: Scalar = 0.1
    penalty_constraint: Scalar = 1e-3
    kl_mean_constraint: Scalar = 0.01
    kl_variance_constraint: Scalar = 1e-4
    kl_constraint: Scalar = 0.01
    initial_temperature: Scalar = 1.0
    initial_multiplier: Scalar = 1.0
    initial_variance_multiplier: Scalar = 10.0
    max_multiplier: Scalar = 1e4
    addons: tuple[Addon, ...] = ()

    roles = (("actor", ()), ("critic", ()))

    def __post_init__(self):
        if not isinstance(self.action_space, (Box, Discrete)):
            raise ValueError(f"MPO acts in Discrete and Box spaces, but the action space is {self.action_space!r}.")
        require_integer("MPO", "num_samples", self.num_samples, 1)
        require_integer("MPO", "num_passes", self.num_passes, 1)
        require_number(self, "polyak", self.polyak, 0, 1)
        for name, value in vars(self).items():
            if name.startswith(("learning", "max", "dual", "penalty", "kl", "initial", "target")):
                require_number(self, name, value, 0)
        require_positive(self, "max_grad_norm")
        require_count(self, "target_update_interval", self.target_update_interval)
        require_flag("MPO", "is_penalized", self.is_penalized)
        addon.check("MPO", self.addons)

    def init(self, key: jax.Array, obs: PyTree, action: PyTree) -> MPOState:
        """Return the state for observations and actions like these; consumes `key`."""
        obs, action = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (obs, action))
        key_actor, key_critic = split(key)
        networks = MPOTarget(
            self.policy.init(key_actor, obs),
            init_network(self._critic, key_critic, obs, *(() if self.is_discrete else (action,))),
        )
        num_objectives = 2 if self.is_penalized and not self.is_discrete else 1
        temperature = jnp.full(num_objectives, mpo_losses.raw_dual(self.initial_temperature))
        multipliers = mpo_losses.raw_dual(
            self._by_constraint(self.initial_multiplier, self.initial_variance_multiplier)
        )
        params = MPOParams(*networks, temperature, multipliers)
        optimizer = MPOParams(*map(optimization.init, params[:4]))
        target = jax.tree.map(jnp.copy, networks)  # the same buffer twice could not be donated
        state = MPOState(params, target, optimizer, jnp.zeros((), jnp.int32))
        return addon.init(self, state, key, obs, action)

    def initial_carry(self, num_envs: int) -> PyTree:
        """Acting remembers nothing."""
        return ()

    def act(
        self, state: MPOState, obs: PyTree, carry: PyTree, key: jax.Array, deterministic: bool = False
    ) -> tuple[jax.Array, PyTree, PyTree]:
        """Return drawn actions `[N, ...]`, or with `deterministic` the most probable ones; consumes `key`."""
        policy = self.policy.distribution(state.params.actor, obs)
        action = policy.mode() if deterministic else policy.sample(key)
        return self.policy.to_environment(action), carry, ()

    def distribution(self, state: MPOState, obs: PyTree) -> Distribution:
        """Return the policy's distributions at observations `[B, ...]`."""
        return self.policy.distribution(state.params.actor, obs)

    def features(self, state: MPOState, obs: PyTree) -> jax.Array:
        """Return the features `float32[B, F]` below the policy."""
        return self.policy.features(state.params.actor, obs)

    def observe(self, state: MPOState, chunk: Transition) -> MPOState:
        """Nothing is noted."""
        return state

    def gradients(self, state: MPOState, sample: Sample, key: jax.Array, pass_index: int) -> tuple[PyTree, StepInfo]:
        """Return the gradients of all groups, all at the present parameters; consumes `key`.

        With the same key, all passes over a sample have the same candidates, since targets and temperature only change
        behind the last pass. The critic's gradient, and with it the priorities, are those of the first pass; later ones
        have zeros.
        """
        key_here, key_next = split(key)
        candidates = self._candidates(state.target, sample.batch.obs, key_here)
        duals = state.params.temperature, state.params.multipliers
        (_, metrics), (actor, duals) = jax.value_and_grad(self._policy_loss, has_aux=True)(
            (state.params.actor, duals), sample, candidates
        )
        metrics["grad_norm_pi"] = optax.tree.norm(actor)
        if pass_index:
            critic, error = optax.tree.zeros_like(state.params.critic), jnp.zeros_like(sample.weights)
        else:
            target = self._target(state, sample, key_next)
            (loss_q, (q, error)), critic = jax.value_and_grad(self._critic_loss, has_aux=True)(
                state.params.critic, sample, target
            )
            metrics |= {"loss_q": loss_q, "q": jnp.mean(q), "grad_norm_q": optax.tree.norm(critic)}
        info = StepInfo(jnp.abs(error), metrics)
        return addon.add_gradients(self, state, sample, key, MPOParams(actor, critic, *duals), info)

    def apply(self, state: MPOState, grads: MPOParams) -> MPOState:
        """Step policy and multipliers; the critic with the first pass, temperature and targets behind the last."""
        rates = (self.learning_rate_pi, self.learning_rate_q, self.learning_rate_dual, self.learning_rate_dual)
        limits = (self.max_grad_norm, self.max_grad_norm, None, None)
        num_before = state.num_updates // self.num_passes
        rates = optimization.scheduled(self.schedule, num_before, *rates)
        stepped = MPOParams(*map(optimization.step, state.params, grads, state.optimizer, rates, limits))
        if self.num_passes > 1:
            index, before = state.num_updates % self.num_passes, list(zip(state.params, state.optimizer, strict=True))
            stepped = stepped._replace(
                critic=optimization.where(index == 0, stepped.critic, before[1]),
                temperature=optimization.where(index == self.num_passes - 1, stepped.temperature, before[2]),
            )
        params, optimizer = (MPOParams(*groups) for groups in zip(*stepped[:4], strict=True))
        params = params._replace(
            temperature=mpo_losses.clip_dual(params.temperature, self.max_multiplier),
            multipliers=mpo_losses.clip_dual(params.multipliers, self.max_multiplier),
        )
        interval = jnp.maximum(jnp.asarray(self.target_update_interval, jnp.int32), 1) * self.num_passes
        num_updates, is_due = optimization.count(state.num_updates, interval)
        target = optimization.polyak(state.target, MPOTarget(params.actor, params.critic), self.polyak, is_due)
        return addon.apply(self, state, grads, MPOState(params, target, optimizer, num_updates), num_before)

    @property
    def is_discrete(self) -> bool:
        """Whether actions are."""
        return isinstance(self.action_space, Discrete)

    @property
    def policy(self) -> Policy:
        """From observations to distributions of actions."""
        return Policy(self.action_space, self.torso)

    @property
    def _critic(self) -> QNetwork | Critic:
        if isinstance(self.action_space, Discrete):
            return QNetwork(self.action_space.num_actions, self.torso)
        return Critic(self.torso)

    def _by_constraint(self, of_policy: Scalar, of_variance: Scalar) -> jax.Array:
        """Return an array like the multipliers."""
        if isinstance(self.action_space, Discrete):
            return jnp.asarray(of_policy, jnp.float32)[None]
        both = jnp.stack([jnp.asarray(value, jnp.float32) for value in (of_policy, of_variance)])
        return jnp.broadcast_to(both[:, None], (2, self.action_space.size))

    def _values(self, params: PyTree, obs: PyTree, action: jax.Array) -> jax.Array:
        """Return the values `[B]` of one action each, in the environment's units."""
        if isinstance(self.action_space, Discrete):
            q = apply_batch(self._critic, params, obs)
            return jnp.take_along_axis(q, action[:, None], axis=1)[:, 0]
        return apply_batch(self._critic, params, obs, self.action_space.normalize(action))

    def _candidates(self, target: MPOTarget, obs: PyTree, key: jax.Array) -> Candidates:
        policy = self.policy.distribution(target.actor, obs)
        if isinstance(policy, Categorical):
            q = apply_batch(self._critic, target.critic, obs)
            action = jnp.broadcast_to(jnp.arange(q.shape[1], dtype=jnp.int32)[None], q.shape)
            return Candidates(policy, action, policy.log_probs, q[:, None])
        spread = jax.tree.map(lambda leaf: jnp.repeat(leaf[:, None], self.num_samples, axis=1), policy)
        action = spread.sample(key)
        clipped = jnp.clip(action, -1, 1)
        of_candidate = functools.partial(apply_batch, self._critic, target.critic, obs)
        objectives = [jax.vmap(of_candidate, in_axes=1, out_axes=1)(clipped)]
        if self.is_penalized:
            objectives.append(-jnp.linalg.norm(action - clipped, axis=-1))
        log_prior = jnp.full(action.shape[:2], -jnp.log(self.num_samples), jnp.float32)
        return Candidates(policy, action, log_prior, jnp.stack(objectives, axis=1))

    def _target(self, state: MPOState, sample: Sample, key: jax.Array) -> jax.Array:
        candidates = self._candidates(state.target, sample.batch.next_obs, key)
        value = jnp.sum(jnp.exp(candidates.log_prior) * candidates.objectives[:, 0], axis=1)
        return jax.vmap(losses.td_target)(sample.batch.reward, sample.batch.discount, value)

    def _critic_loss(self, params: PyTree, sample: Sample, target: jax.Array) -> tuple[jax.Array, Any]:
        q = self._values(params, sample.batch.obs, sample.batch.action)
        error = q - target
        return 0.5 * jnp.mean(sample.weights * error**2), (q, error)

    def _policy_loss(self, trained: Any, sample: Sample, candidates: Candidates) -> tuple[jax.Array, dict]:
        actor, duals = trained
        temperature, multipliers = map(mpo_losses.dual, duals)
        limits = self._by_constraint(
            self.kl_constraint if self.is_discrete else self.kl_mean_constraint, self.kl_variance_constraint
        )
        reach = jnp.stack([jnp.asarray(e, jnp.float32) for e in (self.dual_constraint, self.penalty_constraint)])

        online = self.policy.distribution(actor, sample.batch.obs)
        loss_pi, loss_eta, loss_kl, kl = jax.vmap(mpo_losses.state_losses, in_axes=(0, 0, None, None, None, None))(
            online, candidates, temperature, reach[: temperature.size], multipliers, limits
        )
        metrics = {
            "loss_pi": jnp.mean(loss_pi),
            "loss_temperature": jnp.mean(loss_eta),
            "temperature": temperature[0],
            "multiplier": jnp.mean(multipliers[0]),
            "kl": jnp.mean(kl[:, 0]),
            "entropy": jnp.mean(online.entropy()),
        }
        if not self.is_discrete:
            metrics |= {"multiplier_variance": jnp.mean(multipliers[1]), "kl_variance": jnp.mean(kl[:, 1])}
        return jnp.mean(sample.weights * (loss_pi + loss_eta + loss_kl)), metrics
