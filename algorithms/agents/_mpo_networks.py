"""The networks of maximum a posteriori policy optimization, for discrete and for continuous actions."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from algorithms.agents import losses
from algorithms.agents._policies import StochasticPolicy
from algorithms.agents.mpo_losses import Candidates
from algorithms.environments.spaces import Discrete, Space
from algorithms.networks import Critic, QNetwork, Torso, apply_batch, init_network
from algorithms.networks.distributions import Categorical
from jaxrl_buffers._random.hashing import split
from jaxrl_buffers.types import Batch, PyTree, Sample, Scalar

OF_PASSES = ("actor", "multipliers", "addons")  # the groups that make a step in every pass


class MPOTarget(NamedTuple):
    """The parameters of an actor and a critic, for example of the target networks."""

    actor: PyTree
    critic: PyTree


class MPOParams(NamedTuple):
    """Everything that is trained, or its gradients, or the states of its optimizers.

    Temperatures and multipliers must stay positive. So the fields hold `raw` numbers, which are trained, and the
    temperature or multiplier is `mpo_losses.dual(raw)`. If there are `K > 1` passes, the gradients of `actor`,
    `multipliers` and `addons` have leaves `[K, ...]`, with one entry for each pass.
    """

    actor: PyTree
    critic: PyTree
    temperature: PyTree  # float32[O]: one for the values, and one for the distance from the bounds if penalized
    multipliers: PyTree  # float32[2, A] for mean and variance; float32[1] for discrete actions
    addons: tuple[PyTree, ...] = ()


class MPOState(NamedTuple):
    """The state of MPO."""

    params: MPOParams
    target: MPOTarget
    optimizer: MPOParams  # the states of the optimizers, one for each group
    num_updates: jax.Array  # int32[]


@dataclasses.dataclass(frozen=True)
class MPONetworks:
    """A policy and one critic. Callers pass the parameters of both.

    Args:
        action_space: `Discrete` or `Box`.
        torso: the network below the heads of actor and critic.
        num_samples: the number of continuous actions that are drawn in each state.
        penalized: whether a second objective keeps continuous actions inside of their bounds.
    """

    action_space: Space
    torso: Torso
    num_samples: int
    penalized: bool

    @property
    def num_objectives(self) -> int:
        """The number of objectives that `candidates` returns."""
        return 2 if self.penalized and not isinstance(self.action_space, Discrete) else 1

    @property
    def policy(self) -> StochasticPolicy:
        """The policy, without its parameters."""
        return StochasticPolicy(self.action_space, self.torso)

    @property
    def critic(self) -> QNetwork | Critic:
        """The critic. It returns the values of all discrete actions, or the value of one continuous action."""
        if isinstance(self.action_space, Discrete):
            return QNetwork(self.action_space.num_actions, self.torso)
        return Critic(self.torso)

    def init(self, key: jax.Array, obs: PyTree, action: PyTree) -> MPOTarget:
        """Return the initial parameters, for observations like `obs` and actions like `action`; consumes `key`."""
        key_actor, key_critic = split(key)
        inputs = (obs,) if isinstance(self.action_space, Discrete) else (obs, action)
        return MPOTarget(self.policy.init_actor(key_actor, obs), init_network(self.critic, key_critic, *inputs))

    def values(self, params: PyTree, obs: PyTree, action: jax.Array) -> jax.Array:
        """Return the values `float32[B]` of actions `[B, ...]` in the environment's units."""
        if isinstance(self.action_space, Discrete):
            q = apply_batch(self.critic, params, obs)
            return jnp.take_along_axis(q, action[:, None], axis=1)[:, 0]
        return apply_batch(self.critic, params, obs, self.action_space.normalize(action))

    def candidates(self, target: MPOTarget, obs: PyTree, key: jax.Array) -> Candidates:
        """Return the actions that the improved policy chooses from at observations `[B, ...]`; consumes `key`.

        Discrete actions: all of them. Continuous actions: `num_samples` draws from the target policy.
        """
        policy = self.policy.distribution(target.actor, obs)
        if isinstance(policy, Categorical):
            q = apply_batch(self.critic, target.critic, obs)
            action = jnp.broadcast_to(jnp.arange(q.shape[1], dtype=jnp.int32)[None], q.shape)
            return Candidates(policy, action, policy.log_probs, q[:, None])
        spread = jax.tree.map(lambda leaf: jnp.repeat(leaf[:, None], self.num_samples, axis=1), policy)
        action = spread.sample(key)
        clipped = jnp.clip(action, -1, 1)
        value = functools.partial(apply_batch, self.critic, target.critic, obs)
        objectives = [jax.vmap(value, in_axes=1, out_axes=1)(clipped)]
        if self.penalized:
            objectives.append(-jnp.linalg.norm(action - clipped, axis=-1))
        log_prior = jnp.full(action.shape[:2], -jnp.log(self.num_samples), jnp.float32)
        return Candidates(policy, action, log_prior, jnp.stack(objectives, axis=1))

    def td_target(self, target: MPOTarget, batch: Batch, key: jax.Array) -> jax.Array:
        """Return `y = r + discount * E_{a ~ pi_t} Q_t(s', a)`, `float32[B]`; consumes `key`."""
        candidates = self.candidates(target, batch.next_obs, key)
        value = jnp.sum(jnp.exp(candidates.log_prior) * candidates.objectives[:, 0], axis=1)
        return jax.vmap(losses.td_target)(batch.reward, batch.discount, value)

    def critic_loss(
        self, params: PyTree, sample: Sample, target: jax.Array
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        """Return `L_q`, and the values and errors, `float32[B]` each."""
        q = self.values(params, sample.batch.obs, sample.batch.action)
        error = q - target
        return 0.5 * jnp.mean(sample.weights * error**2), (q, error)


def by_constraint(action_space: Space, of_policy: Scalar, of_variance: Scalar) -> jax.Array:
    """Return one number for each divergence.

    The shape is `float32[2, A]` for continuous actions, with rows for mean and variance. It is `float32[1]` for
    discrete actions.

    Args:
        action_space: `Discrete` or `Box`.
        of_policy: the number for discrete probabilities, or for the mean.
        of_variance: the number for the variance.
    """
    if isinstance(action_space, Discrete):
        return jnp.asarray(of_policy, jnp.float32)[None]
    both = jnp.stack([jnp.asarray(value, jnp.float32) for value in (of_policy, of_variance)])
    return jnp.broadcast_to(both[:, None], (2, action_space.size))


def map_passes(function: Callable[..., jax.Array], *grads: MPOParams) -> MPOParams:
    """Apply a function to all leaves of the groups in `OF_PASSES`, and return the resulting gradients."""
    groups = {name: jax.tree.map(function, *(getattr(one, name) for one in grads)) for name in OF_PASSES}
    return grads[0]._replace(**groups)
