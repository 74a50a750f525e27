"""Maximum a posteriori policy optimization, with discrete and with continuous actions.

    y       = r + discount * E_{a ~ pi_t(. | s')} Q_t(s', a)
    L_q     = mean_i w_i (Q(s_i, a_i) - y_i)^2 / 2
    q(a|s)  ~ pi_t(a | s) exp(Q_t(s, a) / eta)                                            (E-step)
    L_eta   = mean_i w_i eta (epsilon + log E_{a ~ pi_t} exp(Q_t(s_i, a) / eta))
    L_pi    = mean_i w_i [-E_{a ~ q} log pi(a | s_i) + sum_d alpha_d KL_d]                (M-step)
    L_alpha = mean_i w_i sum_d alpha_d (epsilon_d - KL_d)

`pi_t` and `Q_t` are the target networks, and `KL_d` is the divergence `KL(pi_t || pi)`. Abdolmaleki et al. (2018),
https://arxiv.org/abs/1806.06920 and https://arxiv.org/abs/1812.02256. The priority of a sample is `|Q(s, a) - y|`.

* Discrete actions: expectations are sums over all actions, and there is one divergence.
* Continuous actions: expectations are means over draws from `pi_t`. The policy is a Gaussian without `tanh`. Its draws
  are clipped to `[-1, 1]` before the environment and the critic get them. Each component of the mean, and each
  component of the variance, has its own divergence `KL_d` and its own multiplier `alpha_d`.

Differences from the paper:

* Target networks are moving averages. The paper copies the trained networks. For that, set `polyak=0` and
  `target_update_interval=100`.
* The critic learns from targets of one or n steps. The paper uses Retrace.
* Temperature and multipliers make one step of Adam in each update. The paper solves for them.
* A second objective keeps draws inside of the bounds, as in https://arxiv.org/abs/2005.07513. `penalized=False` leaves
  it out.

Differences from PyTorchRL:

* Every M-step pass steps the policy, and there is one pass. PyTorchRL makes five passes, but only one moves the policy.
* Divergences are computed between Gaussians, and each divergence changes only its own multiplier.
* Mean and variance are decoupled.
* The discrete E-step is weighted by the target policy.
* Sampled and replayed actions have the same units. Importance weights enter every loss.
* Temperature and multipliers are trained by gradients, like the networks, and not by a separate solver. Multipliers
  begin above 0, and Adam steps them.
* `polyak` is 0.995, as in PyTorchRL's factory. PyTorchRL's class has 1, which would never move the targets.
* 20 actions are drawn instead of 64.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
import optax

from algorithms.addons import Addon, addon
from algorithms.agents import mpo_losses, optimization
from algorithms.agents._base import StochasticAgent
from algorithms.agents._mpo_networks import (
    OF_PASSES,
    MPONetworks,
    MPOParams,
    MPOState,
    MPOTarget,
    by_constraint,
    map_passes,
)
from algorithms.agents._policies import StochasticPolicy
from algorithms.agents.mpo_losses import Candidates
from algorithms.environments.spaces import Discrete, Space
from algorithms.networks import Torso
from algorithms.optimizers import Optimizers, Schedule
from algorithms.types import GroupRule, Metrics, StepInfo
from jaxrl_buffers._checks import require_flag, require_integer, require_number
from jaxrl_buffers._random.hashing import split
from jaxrl_buffers.component import Component, field
from jaxrl_buffers.types import PyTree, Sample, Scalar

OPTIONAL = ("max_variance_multiplier", "max_temperature", "variance_dual_scale")  # numbers that may be None


class MPO(StochasticAgent, Component):
    """Maximum a posteriori policy optimization.

    Args:
        action_space: `Discrete` or `Box`.
        torso: the network below the heads of actor and critic. They share no parameters.
        num_samples: the number of continuous actions that are drawn in each state.
        num_passes: `K`, the number of steps of the policy in one update. Critic and temperature make one step.
        penalized: whether a second objective keeps continuous actions inside of their bounds.
        schedule: a factor on all learning rates, as a function of the number of updates, such as a schedule of optax.
        optimizer: optimizers to use instead of Adam; see `algorithms.agents.optimization`.
        learning_rate_q: learning rate of the critic.
        learning_rate_pi: learning rate of the policy.
        learning_rate_dual: learning rate of the temperature and the multipliers.
        polyak: `target <- polyak * target + (1 - polyak) * params` moves the target networks; 0 copies the trained
            ones.
        target_update_interval: the number of updates between two moves of the target networks; 0 counts as 1.
        max_grad_norm: the largest norm of the critic's gradient, and of the policy's. A gradient with a larger norm is
            scaled down to it.
        dual_constraint: `epsilon`, the largest divergence of the improved policy from the target policy.
        penalty_constraint: the same for the objective that keeps actions inside of their bounds.
        kl_mean_constraint: `epsilon_d` of each component of the mean: how far the M-step may move it.
        kl_variance_constraint: `epsilon_d` of each component of the variance.
        kl_constraint: `epsilon_d` of the probabilities of discrete actions.
        initial_temperature: the temperature before the first update.
        initial_multiplier: the same for the multipliers of the mean, or the multiplier of discrete probabilities.
        initial_variance_multiplier: the same for the multipliers of the variance.
        max_multiplier: the largest multiplier. It also limits the temperature and the multipliers of the variance,
            unless the next two arguments limit these.
        max_variance_multiplier: the largest multiplier of the variance. None means `max_multiplier`.
        max_temperature: the largest temperature. None means `max_multiplier`.
        variance_dual_scale: a factor on the steps of the variance's multipliers. None means 1.
        addons: terms to add to the policy's loss.
        noise: the kind of noise that continuous actions are made from: `gaussian`, `ornstein_uhlenbeck` or `pink`.
        noise_theta: the share of its value that Ornstein-Uhlenbeck noise loses in one step. Other noise ignores it.

    Example:
        >>> from algorithms import environments
        >>> env = environments.make("Pendulum-v1")
        >>> agent = MPO(env.action_space, learning_rate_q=1e-3, num_samples=10)
        >>> state = agent.init(jax.random.key(0), env.obs, env.action_space.example)
        >>> action, _, _ = agent.act(state, jnp.zeros((3, 3)), (), jax.random.key(1))
        >>> action.shape
        (3, 1)
    """

    action_space: Space = field(static=True)
    torso: Torso = field(static=True, default=Torso())
    num_samples: int = field(static=True, default=20)
    num_passes: int = field(static=True, default=1)
    penalized: bool = field(static=True, default=True)
    schedule: Schedule | None = field(static=True, default=None)
    optimizer: Optimizers | None = field(static=True, default=None)
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
    max_variance_multiplier: Scalar | None = None
    max_temperature: Scalar | None = None
    variance_dual_scale: Scalar | None = None
    addons: tuple[Addon, ...] = ()
    noise: str = field(static=True, default="gaussian")
    noise_theta: Scalar = 0.15

    renamed: ClassVar[Mapping[str, str]] = {"is_penalized": "penalized"}
    groups: ClassVar[Mapping[str, GroupRule]] = {
        "actor": GroupRule("learning_rate_pi"),
        "critic": GroupRule("learning_rate_q"),
        "temperature": GroupRule("learning_rate_dual", is_clipped=False),
        "multipliers": GroupRule("learning_rate_dual", is_clipped=False),
    }

    def __post_init__(self) -> None:
        self.check()
        optimization.check(self)
        require_integer("MPO", "num_samples", self.num_samples, 1)
        require_integer("MPO", "num_passes", self.num_passes, 1)
        optimization.check_target(self)
        numbers = ("learning", "max", "dual", "penalty", "kl", "initial", "variance")
        for name, value in vars(self).items():
            if name.startswith(numbers) and not (name in OPTIONAL and value is None):
                require_number(self, name, value, 0)
        require_flag("MPO", "penalized", self.penalized)

    @property
    def networks(self) -> MPONetworks:
        """Policy and critic, without their parameters."""
        return MPONetworks(self.action_space, self.torso, self.num_samples, self.penalized)

    @property
    def policy(self) -> StochasticPolicy:
        """The policy, without its parameters."""
        return self.networks.policy

    def init(self, key: jax.Array, obs: PyTree, action: PyTree) -> MPOState:
        """Return the first state, for observations like `obs` and actions like `action`; consumes `key`."""
        networks = self.networks.init(key, obs, action)
        temperature = jnp.full(self.networks.num_objectives, mpo_losses.raw_dual(self.initial_temperature))
        multipliers = by_constraint(self.action_space, self.initial_multiplier, self.initial_variance_multiplier)
        params = MPOParams(*networks, temperature, mpo_losses.raw_dual(multipliers))
        target = jax.tree.map(jnp.copy, networks)  # a state that holds an array twice cannot be donated to `jit`
        state = MPOState(params, target, optimization.init(self, params), jnp.zeros((), jnp.int32))
        return addon.init(self, state, key, obs, action)

    def act(
        self, state: MPOState, obs: PyTree, carry: PyTree, key: jax.Array, deterministic: bool = False
    ) -> tuple[jax.Array, PyTree, PyTree]:
        """Return drawn actions `[N, ...]`, or the most probable ones if `deterministic`; consumes `key`."""
        action, _, carry = self.policy.act(state.params.actor, obs, self._noise, carry, key, deterministic)
        return self.policy.to_environment(action), carry, ()

    def gradients(self, state: MPOState, sample: Sample, key: jax.Array) -> tuple[MPOParams, StepInfo]:
        """Return the gradients of all groups; consumes `key`.

        Critic and temperature have one gradient each, at the current parameters. Policy, multipliers and add-ons have
        `K` gradients, one for each pass. The gradient of the first pass is taken at the current parameters. The
        gradient of each later pass is taken at the parameters after the previous pass. All passes use the same
        candidates. Metrics of the policy are those of the last pass.

        With `K > 1`, training on several devices differs from training on one device with all samples. Each device
        makes its passes with its own samples, so the parameters of the devices differ from the second pass on.
        """
        key_here, key_next = split(key)
        candidates = self.networks.candidates(state.target, sample.batch.obs, key_here)
        # The policy comes first. XLA's CPU backend runs independent kernels side by side, in an order that depends on
        # the order here. With the critic first, a step of a network of 64x64 takes 7 % longer.
        grads, metrics = self._passes(state, sample, candidates, key)
        target = self.networks.td_target(state.target, sample.batch, key_next)
        (loss_q, (q, error)), critic = jax.value_and_grad(self.networks.critic_loss, has_aux=True)(
            state.params.critic, sample, target
        )
        metrics |= {"loss_q": loss_q, "q": jnp.mean(q), "grad_norm_q": optax.tree.norm(critic)}
        return grads._replace(critic=critic), StepInfo(jnp.abs(error), metrics)

    def norms(self, grads: MPOParams) -> Metrics:
        """Return the metrics that are norms of gradients; those of the policy are of the last pass."""
        last = grads if self.num_passes == 1 else map_passes(operator.itemgetter(-1), grads)
        return {"grad_norm_q": optax.tree.norm(grads.critic), "grad_norm_pi": optax.tree.norm(last.actor)}

    def apply(self, state: MPOState, grads: MPOParams) -> MPOState:
        """Step critic and temperature, then policy and multipliers once for each pass. Then move the targets."""
        after = optimization.step(self, state, grads, ("critic", "temperature"))
        after = after._replace(params=self._clip_duals(after.params))
        for number in range(self.num_passes):
            of_pass = grads if self.num_passes == 1 else map_passes(operator.itemgetter(number), grads)
            after = self._step_policy(after, of_pass)
        return optimization.follow(self, after, MPOTarget(after.params.actor, after.params.critic))

    def _passes(
        self, state: MPOState, sample: Sample, candidates: Candidates, key: jax.Array
    ) -> tuple[MPOParams, Metrics]:
        """Return the gradients of all passes, stacked if there are several, and the metrics of the last one."""
        passes, metrics = [], {}
        for number in range(self.num_passes):
            state = self._step_policy(state, passes[-1]) if number else state
            (_, metrics), (actor, duals) = jax.value_and_grad(self._policy_loss, has_aux=True)(
                (state.params.actor, (state.params.temperature, state.params.multipliers)), sample, candidates
            )
            metrics["grad_norm_pi"] = optax.tree.norm(actor)
            grads = MPOParams(actor, optax.tree.zeros_like(state.params.critic), *duals)
            info = StepInfo(sample.weights, metrics)
            # Add-ons draw the same random numbers in all passes.
            key_addons = jax.random.clone(key) if number else key
            grads, (_, metrics) = addon.add_gradients(self, state, sample, key_addons, grads, info)
            passes.append(grads)
        return passes[0] if len(passes) == 1 else map_passes(lambda *leaves: jnp.stack(leaves), *passes), metrics

    def _step_policy(self, state: MPOState, grads: MPOParams) -> MPOState:
        """Step the policy, the multipliers and the add-ons once."""
        after = optimization.step(self, state, grads, OF_PASSES)
        if self.variance_dual_scale is not None:
            before, moved = state.params.multipliers, after.params.multipliers
            scale = by_constraint(self.action_space, 1.0, self.variance_dual_scale)
            after = after._replace(params=after.params._replace(multipliers=before + scale * (moved - before)))
        return after._replace(params=self._clip_duals(after.params))

    def _clip_duals(self, params: MPOParams) -> MPOParams:
        """Return the parameters with temperatures and multipliers inside of their bounds."""
        most = self.max_multiplier
        of_variance, of_temperature = (
            most if one is None else one for one in (self.max_variance_multiplier, self.max_temperature)
        )
        return params._replace(
            temperature=mpo_losses.clip_dual(params.temperature, of_temperature),
            multipliers=mpo_losses.clip_dual(params.multipliers, by_constraint(self.action_space, most, of_variance)),
        )

    def _policy_loss(
        self, trained: tuple[PyTree, tuple[jax.Array, jax.Array]], sample: Sample, candidates: Candidates
    ) -> tuple[jax.Array, Metrics]:
        """Return `L_pi + L_eta + L_alpha`, and metrics. Each loss has a gradient only for its own parameters."""
        actor, duals = trained
        temperature, multipliers = map(mpo_losses.dual, duals)
        is_discrete = isinstance(self.action_space, Discrete)
        limit = self.kl_constraint if is_discrete else self.kl_mean_constraint
        limits = by_constraint(self.action_space, limit, self.kl_variance_constraint)
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
        if not is_discrete:
            metrics |= {"multiplier_variance": jnp.mean(multipliers[1]), "kl_variance": jnp.mean(kl[:, 1])}
        return jnp.mean(sample.weights * (loss_pi + loss_eta + loss_kl)), metrics
