"""Double deep Q-learning, with discrete actions.

    y = r + discount * Q_target(s', argmax_a Q(s', a))
    L = mean_i w_i (Q(s_i, a_i) - y_i)^2

Van Hasselt et al. (2016), https://arxiv.org/abs/1509.06461. The priority of a sample is `|Q(s, a) - y|`.

Add-ons need a distribution over actions. They get the Boltzmann distribution `softmax(Q(s, .) / policy_temperature)`,
and their terms are added to `L`.

Differences from the paper:

* The optimizer is Adam instead of RMSprop.
* The target network is a moving average of the trained network. The paper copies the trained network from time to
  time. For that, set `polyak=0` and a long `target_update_interval`.
* Gradients are clipped by their norm. The paper clips errors.
* Epsilon decays with the number of updates.
* A random action may persist for several steps.

Differences from PyTorchRL:

* The trained network chooses the next action, and the target network values it. In PyTorchRL the target network does
  both.
* Importance weights enter the loss.
* Every environment explores independently.
* Deterministic acting never explores.

All defaults are those of PyTorchRL. The number of updates of an iteration is set in `Plan`. In PyTorchRL it is 1 in the
class and 50 in the factory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms.addons import Addon, addon
from algorithms.agents import exploration, losses, optimization
from algorithms.agents._base import BaseAgent
from algorithms.environments.spaces import Discrete
from algorithms.networks import QNetwork, Torso, apply_batch, init_network, torso_features
from algorithms.networks.distributions import Categorical
from algorithms.optimizers import Optimizers, Schedule
from algorithms.types import GroupRule, Metrics, Roles, StepInfo
from jaxrl_buffers._checks import require_flag, require_number, require_positive
from jaxrl_buffers.component import Component, field
from jaxrl_buffers.types import PyTree, Sample, Scalar


class DDQNParams(NamedTuple):
    """Everything that is trained, or its gradients, or the states of its optimizers."""

    critic: PyTree
    addons: tuple[PyTree, ...] = ()


class DDQNState(NamedTuple):
    """The state of double Q-learning."""

    params: DDQNParams
    target: PyTree  # the parameters of the target network
    optimizer: DDQNParams  # the states of the optimizers, one for each group
    epsilon: jax.Array  # float32[]
    num_updates: jax.Array  # int32[]


class DDQN(BaseAgent, Component):
    """Double Q-learning with epsilon-greedy exploration.

    Args:
        action_space: `Discrete`.
        torso: the network below the head that returns the values.
        dueling: compute `Q(s, a)` as the value of the state plus the advantage of the action; see `QNetwork`.
        schedule: a factor on the learning rate, as a function of the number of updates, such as a schedule of optax.
        optimizer: optimizers to use instead of Adam; see `algorithms.agents.optimization`.
        learning_rate: learning rate of Adam.
        polyak: `target <- polyak * target + (1 - polyak) * params` moves the target network; 0 copies the trained one.
        target_update_interval: the number of updates between two moves of the target network; 0 counts as 1.
        max_grad_norm: the largest norm of the gradient. A gradient with a larger norm is scaled down to it.
        initial_epsilon: the probability of a random action before the first update.
        epsilon_decay: every update multiplies this probability by `epsilon_decay`.
        final_epsilon: the smallest probability of a random action.
        persistence: the probability that a random action persists into the next step, so that exploration goes in one
            direction for `1 / (1 - persistence)` steps on average; None for never. See `algorithms.agents.exploration`.
        policy_temperature: the temperature of the distribution that add-ons get, in the units of `Q`.
        addons: terms to add to the loss.

    Example:
        >>> from algorithms import environments
        >>> env = environments.make("CartPole-v1")
        >>> agent = DDQN(env.action_space, learning_rate=1e-3)
        >>> state = agent.init(jax.random.key(0), env.obs, env.action_space.example)
        >>> action, _, _ = agent.act(state, jnp.zeros((3, 4)), (), jax.random.key(1), deterministic=True)
        >>> action.shape
        (3,)
    """

    action_space: Discrete = field(static=True)
    torso: Torso = field(static=True, default=Torso())
    dueling: bool = field(static=True, default=False)
    schedule: Schedule | None = field(static=True, default=None)
    optimizer: Optimizers | None = field(static=True, default=None)
    learning_rate: Scalar = 1e-4
    polyak: Scalar = 0.995
    target_update_interval: Scalar = 1
    max_grad_norm: Scalar = 0.5
    initial_epsilon: Scalar = 1.0
    epsilon_decay: Scalar = 0.999
    final_epsilon: Scalar = 0.05
    persistence: Scalar | None = None
    policy_temperature: Scalar = 1.0
    addons: tuple[Addon, ...] = ()

    groups: ClassVar[Mapping[str, GroupRule]] = {"critic": GroupRule("learning_rate")}

    def __post_init__(self) -> None:
        if not isinstance(self.action_space, Discrete):
            raise ValueError(
                f"DDQN needs Discrete actions, but the action space is {self.action_space!r}; use SAC or TD3."
            )
        require_number(self, "learning_rate", self.learning_rate, 0)
        for name in ("max_grad_norm", "policy_temperature"):
            require_positive(self, name)
        for name in ("initial_epsilon", "epsilon_decay", "final_epsilon"):
            require_number(self, name, getattr(self, name), 0, 1)
        if self.persistence is not None:
            require_number(self, "persistence", self.persistence, 0, 1)
        require_flag("DDQN", "dueling", self.dueling)
        addon.check("DDQN", self.addons)
        optimization.check(self)
        optimization.check_target(self)

    @property
    def roles(self) -> Roles:
        """One critic, which is also the policy."""
        return (("critic", ()),)

    @property
    def network(self) -> QNetwork:
        """The network that turns one observation into the values `float32[A]` of all actions."""
        return QNetwork(self.action_space.num_actions, self.torso, self.dueling)

    def init(self, key: jax.Array, obs: PyTree, action: PyTree) -> DDQNState:
        """Return the first state, for observations like `obs`; consumes `key`."""
        params = DDQNParams(init_network(self.network, key, obs))
        target = jax.tree.map(jnp.copy, params.critic)  # a state that holds an array twice cannot be donated to `jit`
        epsilon = jnp.asarray(self.initial_epsilon, jnp.float32)
        state = DDQNState(params, target, optimization.init(self, params), epsilon, jnp.zeros((), jnp.int32))
        return addon.init(self, state, key, obs, action)

    def initial_carry(self, num_envs: int) -> PyTree:
        """Return the memory of exploration at the start of an episode; `()` if no random action persists."""
        return () if self.persistence is None else exploration.no_random_actions(num_envs)

    def act(
        self, state: DDQNState, obs: PyTree, carry: PyTree, key: jax.Array, deterministic: bool = False
    ) -> tuple[jax.Array, PyTree, PyTree]:
        """Return the actions `int32[N]` with the largest values; consumes `key`.

        Each action is replaced by a random one with probability epsilon, unless `deterministic`. With a `persistence`,
        the carry holds the last actions.
        """
        greedy = jnp.argmax(self._values(state.params.critic, obs), axis=-1).astype(jnp.int32)
        if deterministic:
            return greedy, carry, ()
        if self.persistence is None:
            action, _ = exploration.epsilon_greedy(self.action_space, greedy, state.epsilon, key)
            return action, carry, ()
        action, carry = exploration.epsilon_greedy(
            self.action_space, greedy, state.epsilon, key, self.persistence, carry
        )
        return action, carry, ()

    def distribution(self, state: DDQNState, obs: PyTree) -> Categorical:
        """Return `softmax(Q(s, .) / policy_temperature)` at observations `[B, ...]`."""
        q = self._values(state.params.critic, obs)
        return Categorical(jax.nn.log_softmax(q / jnp.asarray(self.policy_temperature, jnp.float32)))

    def features(self, state: DDQNState, obs: PyTree) -> jax.Array:
        """Return the outputs `float32[B, F]` of the torso for observations `[B, ...]`."""
        return torso_features(self.network, state.params.critic, obs)

    def gradients(self, state: DDQNState, sample: Sample, key: jax.Array) -> tuple[PyTree, StepInfo]:
        """Return the gradient of `L`, and the priorities `|Q(s, a) - y|`; only add-ons draw from `key`."""
        batch, weights = sample.batch, sample.weights
        q_next = self._values(state.params.critic, batch.next_obs)
        next_value = jax.vmap(losses.double_q_value)(q_next, self._values(state.target, batch.next_obs))
        target = jax.vmap(losses.td_target)(batch.reward, batch.discount, next_value)

        def loss(critic: PyTree) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
            q = self._values(critic, batch.obs)
            chosen = jnp.take_along_axis(q, batch.action[:, None], axis=1)[:, 0]
            error = chosen - target
            return jnp.mean(weights * error**2), (error, chosen)

        (loss_q, (error, q)), grads = jax.value_and_grad(loss, has_aux=True)(state.params.critic)
        metrics = {
            "loss_q": loss_q,
            "q": jnp.mean(q),
            **self.norms(DDQNParams(grads)),
            "epsilon": state.epsilon,
        }
        return addon.add_gradients(self, state, sample, key, DDQNParams(grads), StepInfo(jnp.abs(error), metrics))

    def norms(self, grads: DDQNParams) -> Metrics:
        """Return the metrics that are norms of gradients."""
        return {"grad_norm_q": optax.tree.norm(grads.critic)}

    def apply(self, state: DDQNState, grads: DDQNParams) -> DDQNState:
        """Step the network, move the target network towards it, and lower epsilon."""
        after = optimization.step(self, state, grads, ("critic", "addons"))
        after = optimization.follow(self, after, after.params.critic)
        decayed = state.epsilon * jnp.asarray(self.epsilon_decay, jnp.float32)
        return after._replace(epsilon=jnp.maximum(decayed, jnp.asarray(self.final_epsilon, jnp.float32)))

    def _values(self, params: PyTree, obs: PyTree) -> jax.Array:
        return apply_batch(self.network, params, obs)
