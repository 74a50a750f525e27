"""The protocols of agents and add-ons, and the data that crosses the border between agents and the training loop.

`Agent` is all that training off-policy needs. The other protocols say what some parts need on top of it:

* `OnPolicyAgent`: learning from rollouts;
* `PolicyAgent`: being imitated, as a behaviour of an add-on;
* `LearnerAgent`, whose states are `LearnerState`: add-ons and optimizers;
* `MemoryAgent` and `OnPolicyMemoryAgent`: the wrapper `Recurrent`;
* `HasParams`: the wrapper `Averaged`.

Groups of parameters have the same name in every agent: `actor`; `critic`, with leaves `[C, ...]` where `C` critics are
stacked; `addons`, a tuple with one entry for each add-on; and what is an algorithm's own, such as `log_alpha`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Protocol, Self, runtime_checkable

import jax

from algorithms.agents.optimizers import Optimizers, Schedule
from algorithms.environments.spaces import Space
from algorithms.networks.distributions import Distribution
from algorithms.networks.torsos import Torso
from jaxrl_buffers.types import PyTree, Sample, Scalar, Transition

Metrics = dict[str, jax.Array]  # a flat dict of scalars
Roles = tuple[tuple[str, tuple[int, ...]], ...]  # with how many networks are stacked: ("actor", ()), ("critic", (2,))


class StepInfo(NamedTuple):
    """What `gradients` returns besides the gradients."""

    priorities: jax.Array  # float32[B], absolute TD errors; float32[B, L] of sequences
    metrics: Metrics


@runtime_checkable
class Agent(Protocol):
    """An algorithm: a frozen pytree of hyper-parameters with pure methods. Its state is any pytree.

    `grads` covers every trained quantity. So training in parallel needs nothing but the average of `grads` over all
    devices. Clipping, delays and target averaging happen in `apply`, after that average.
    """

    @property
    def action_space(self) -> Space:
        """What the agent may do."""
        ...

    def init(self, key: jax.Array, obs: PyTree, action: PyTree) -> PyTree:
        """Return the first state, for observations and actions like these unbatched examples; consumes `key`."""
        ...

    def initial_carry(self, num_envs: int) -> PyTree:
        """Return what acting remembers from step to step, at the start of an episode.

        Leaves are `[N, ...]`; `()` if nothing is remembered.
        """
        ...

    def act(
        self, state: PyTree, obs: PyTree, carry: PyTree, key: jax.Array, deterministic: bool = False
    ) -> tuple[PyTree, PyTree, PyTree]:
        """Return actions `[N, ...]` in the environment's units, the next carry, and extras to store; consumes `key`."""
        ...

    def observe(self, state: PyTree, chunk: Transition) -> PyTree:
        """Return the state after seeing collected rows `[K, N, ...]`, for example with new observation statistics."""
        ...

    def gradients(self, state: PyTree, sample: Sample, key: jax.Array) -> tuple[PyTree, StepInfo]:
        """Return the gradients of all trained quantities; consumes `key`."""
        ...

    def apply(self, state: PyTree, grads: PyTree) -> PyTree:
        """Return the state after one update along the gradients."""
        ...


@runtime_checkable
class OnPolicyAgent(Agent, Protocol):
    """An agent that learns from rollouts: `gradients` gets a `RolloutBatch` as `sample.batch`.

    It holds shuffled rows `[B, ...]`, or whole columns `[B, K, ...]` if `learns_from_columns`.
    """

    @property
    def learns_from_columns(self) -> bool:
        """Whether minibatches are whole environments, as memories need them."""
        ...

    def values(self, state: PyTree, chunk: Transition) -> tuple[jax.Array, jax.Array]:
        """Return the values `float32[K, N]` of a chunk's observations, and those of their successors."""
        ...


@runtime_checkable
class PolicyAgent(Agent, Protocol):
    """An agent whose policy is a distribution of actions."""

    def distribution(self, state: PyTree, obs: PyTree) -> Distribution:
        """Return the policy's distributions at observations `[B, ...]`."""
        ...


@runtime_checkable
class HasParams(Protocol):
    """A state, always a NamedTuple, in which `params` holds everything that acting depends on."""

    @property
    def params(self) -> PyTree:
        """The trained parameters."""
        ...

    def _replace(self, **changes: Any) -> Self: ...


class Groups(Protocol):
    """A NamedTuple with an entry for each group of parameters: the parameters, their gradients, or their optimizers."""

    @property
    def addons(self) -> tuple[PyTree, ...]:
        """One entry for each add-on."""
        ...

    def _replace(self, **changes: PyTree) -> Self: ...


class LearnerState(Protocol):
    """The state of a learner whose parameters come in groups: a NamedTuple."""

    @property
    def params(self) -> Groups:
        """The trained parameters."""
        ...

    @property
    def optimizer(self) -> Groups:
        """The state of an optimizer for each group."""
        ...

    @property
    def num_updates(self) -> jax.Array:
        """How many updates have been made, `int32[]`."""
        ...

    def _replace(self, **changes: Any) -> Self: ...


@runtime_checkable
class Addon(Protocol):
    """A term of the policy's loss: a frozen pytree of hyper-parameters with pure methods."""

    @property
    def learning_rate(self) -> Scalar:
        """The rate of Adam for the add-on's own parameters."""
        ...

    def init(self, key: jax.Array, obs: PyTree, action: PyTree, features: jax.Array) -> PyTree:
        """Return the add-on's own parameters, `()` if there are none; consumes `key`.

        Args:
            key: a PRNG key.
            obs: an unbatched observation.
            action: an unbatched action.
            features: `float32[F]`, the output of the policy's torso for that observation.
        """
        ...

    def loss(
        self, params: PyTree, policy: Distribution, features: jax.Array, sample: Sample, key: jax.Array
    ) -> tuple[jax.Array, Metrics]:
        """Return the term `float32[]` and metrics; consumes `key`.

        Args:
            params: the add-on's own.
            policy: the learner's distributions at `sample.batch.obs`, `[B, ...]`.
            features: `float32[B, F]`, the outputs of the torso below them.
            sample: a batch with its weights, by which the loss must be weighted.
            key: a PRNG key.
        """
        ...


class GroupRule(NamedTuple):
    """How an agent steps one group of its parameters, unless it is given another optimizer."""

    learning_rate: str  # the name of the agent's field
    is_clipped: bool = True  # whether `max_grad_norm` applies


class LearnerAgent(PolicyAgent, Protocol):
    """An agent that takes add-ons and optimizers. Its states are `LearnerState`s."""

    @property
    def addons(self) -> tuple[Addon, ...]:
        """The terms to add to the loss of the policy."""
        ...

    groups: ClassVar[Mapping[str, GroupRule]]
    """How each group of parameters is stepped by default; `addons` is not listed."""

    @property
    def max_grad_norm(self) -> Scalar:
        """Gradients of a larger global norm are scaled down to it, each group for itself."""
        ...

    @property
    def optimizer(self) -> Optimizers | None:
        """The optimizers to use in the place of the default."""
        ...

    @property
    def schedule(self) -> Schedule | None:
        """The factor on all learning rates, as a function of the number of updates."""
        ...

    def features(self, state: PyTree, obs: PyTree) -> jax.Array:
        """Return the outputs `float32[B, F]` of the policy's torso at observations `[B, ...]`."""
        ...


@runtime_checkable
class MemoryAgent(Agent, Protocol):
    """An agent whose networks may have a memory. Its states are `HasParams`, with a group of parameters for each role.

    Its networks are made of `torso`. Where they get a `History` instead of observations, they answer for all rows.
    """

    @property
    def torso(self) -> Torso:
        """The network below all heads."""
        ...

    @property
    def roles(self) -> Roles:
        """The groups of parameters that hold networks, each with the number of networks stacked in it."""
        ...


@runtime_checkable
class OnPolicyMemoryAgent(MemoryAgent, Protocol):
    """A `MemoryAgent` that learns from rollouts."""

    def value(self, state: PyTree, obs: PyTree) -> jax.Array:
        """Return the critic's values `float32[N]` of observations `[N, ...]`."""
        ...
