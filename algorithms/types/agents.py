"""The protocols of agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Protocol, runtime_checkable

import jax

from algorithms.environments.spaces import Space
from algorithms.networks.distributions import Distribution
from algorithms.networks.torsos import Torso
from algorithms.optimizers import Optimizers, Schedule
from algorithms.types.addons import Addon
from algorithms.types.data import GroupRule, Metrics, Roles, StepInfo
from jaxrl_buffers.types import PyTree, Sample, Scalar, Transition


@runtime_checkable
class Agent(Protocol):
    """An algorithm: a frozen pytree of hyper-parameters with pure methods. Its state may be any pytree.

    One update calls `gradients` and then `apply`. The gradients cover everything that is trained. `apply` clips them,
    steps the parameters and moves the target networks. To train one agent on several devices, average the gradients of
    all devices after `gradients` and before `apply`.
    """

    @property
    def action_space(self) -> Space:
        """The actions that the agent chooses from."""
        ...

    def init(self, key: jax.Array, obs: PyTree, action: PyTree) -> PyTree:
        """Return the state before the first update; consumes `key`.

        Args:
            key: a PRNG key.
            obs: an example of one observation, without a batch axis. Only its shapes and dtypes matter.
            action: an example of one action, without a batch axis. Only its shapes and dtypes matter.
        """
        ...

    def initial_carry(self, num_envs: int) -> PyTree:
        """Return what `act` remembers at the start of an episode: leaves `[N, ...]`, or `()` if it remembers nothing.

        Pass it to the first call of `act`, and then pass on the carry that each call returns. Where an episode ends,
        the training loop puts the initial carry back.
        """
        ...

    def act(
        self, state: PyTree, obs: PyTree, carry: PyTree, key: jax.Array, deterministic: bool = False
    ) -> tuple[PyTree, PyTree, PyTree]:
        """Choose actions for observations `[N, ...]`; consumes `key`.

        Args:
            state: the agent's state.
            obs: observations `[N, ...]`, one for each environment.
            carry: what `act` remembers: the result of `initial_carry`, or the carry that the last call returned.
            key: a PRNG key.
            deterministic: act without exploration.

        Returns:
            Actions `[N, ...]` in the environment's units, the next carry, and extras `[N, ...]` to store with the step.
        """
        ...

    def observe(self, state: PyTree, chunk: Transition) -> PyTree:
        """Return the state after `K` rows of `N` environments were collected: leaves of `chunk` are `[K, N, ...]`.

        For example, `Normalized` updates the mean and variance of observations here.
        """
        ...

    def gradients(self, state: PyTree, sample: Sample, key: jax.Array) -> tuple[PyTree, StepInfo]:
        """Return the gradients of everything that is trained, with priorities and metrics; consumes `key`.

        The state does not change. Pass the gradients to `apply`, and the priorities to the buffer.
        """
        ...

    def apply(self, state: PyTree, grads: PyTree) -> PyTree:
        """Return the state after one update with gradients from `gradients`."""
        ...


@runtime_checkable
class WrapperAgent(Agent, Protocol):
    """An agent that adds something to another agent, which is inside of it."""

    @property
    def agent(self) -> Agent:
        """The agent inside."""
        ...


@runtime_checkable
class OnPolicyAgent(Agent, Protocol):
    """An agent that learns from rollouts. The `sample.batch` that `gradients` gets is a `RolloutBatch`.

    The batch holds shuffled rows, with leaves `[B, ...]`. If `learns_from_columns` is True, the batch holds all `K`
    rows of `B` environments instead, with leaves `[B, K, ...]`.
    """

    @property
    def learns_from_columns(self) -> bool:
        """Whether a minibatch must hold all rows of an environment in order. Networks with a memory need this."""
        ...

    def values(self, state: PyTree, chunk: Transition) -> tuple[jax.Array, jax.Array]:
        """Return the values of a chunk's `obs` and the values of its `next_obs`, `float32[K, N]` each."""
        ...


@runtime_checkable
class ReportsNorms(Protocol):
    """An agent that reports norms of its gradients as metrics."""

    def norms(self, grads: PyTree) -> Metrics:
        """Return these metrics for gradients from `gradients`."""
        ...


@runtime_checkable
class PolicyAgent(Agent, Protocol):
    """An agent whose policy is a distribution over actions."""

    def distribution(self, state: PyTree, obs: PyTree) -> Distribution:
        """Return the policy's distributions over actions, one for each of the observations `[B, ...]`."""
        ...


class LearnerAgent(PolicyAgent, Protocol):
    """An agent that takes add-ons and optimizers. Its states are `LearnerState`."""

    @property
    def addons(self) -> tuple[Addon, ...]:
        """Terms to add to the loss of the policy."""
        ...

    groups: ClassVar[Mapping[str, GroupRule]]
    """The settings of Adam for each group of parameters, except for the group `addons`."""

    @property
    def max_grad_norm(self) -> Scalar:
        """The largest global norm of a group's gradients. Gradients with a larger norm are scaled down to it."""
        ...

    @property
    def optimizer(self) -> Optimizers | None:
        """The optimizers to use instead of Adam."""
        ...

    @property
    def schedule(self) -> Schedule | None:
        """A factor on all learning rates of Adam, as a function of the number of updates."""
        ...

    def features(self, state: PyTree, obs: PyTree) -> jax.Array:
        """Return the outputs `float32[B, F]` of the policy's torso for observations `[B, ...]`."""
        ...


class TargetAgent(LearnerAgent, Protocol):
    """An agent with target networks, which slowly follow the trained networks. Its states are `TargetState`.

    Every `target_update_interval` updates, `target <- polyak * target + (1 - polyak) * params`.
    """

    @property
    def polyak(self) -> Scalar:
        """The weight of the old target parameters in this average, from 0 to 1."""
        ...

    @property
    def target_update_interval(self) -> Scalar:
        """The number of updates between two moves of the target networks."""
        ...


@runtime_checkable
class MemoryAgent(Agent, Protocol):
    """An agent whose networks may have a memory.

    Its states are `HasParams`, and `params` has one group for each of the `roles`. All networks have the torso `torso`.
    When the networks get a `History` instead of observations, they return one output for each row of the history.
    """

    @property
    def torso(self) -> Torso:
        """The network below all heads."""
        ...

    @property
    def roles(self) -> Roles:
        """The groups of parameters that hold networks, each with the sizes of its stacking axes; see `Roles`."""
        ...


@runtime_checkable
class OnPolicyMemoryAgent(MemoryAgent, Protocol):
    """A `MemoryAgent` that learns from rollouts."""

    def value(self, state: PyTree, obs: PyTree) -> jax.Array:
        """Return the critic's values `float32[B]` of observations `[B, ...]`."""
        ...
