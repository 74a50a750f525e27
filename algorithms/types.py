"""The protocols of agents and add-ons, and the data that agents exchange with the training loop.

`Agent` is everything that off-policy training needs. Other parts need a little more, and each says so by a protocol:

| protocol | needed by |
|---|---|
| `OnPolicyAgent` | training from rollouts, as PPO does |
| `PolicyAgent` | add-ons that compare a policy with this one |
| `LearnerAgent`, with states `LearnerState` | `algorithms.agents.optimization`, and add-ons of this agent |
| `TargetAgent`, with states `TargetState` | `optimization.follow`, which moves target networks |
| `MemoryAgent`, `OnPolicyMemoryAgent` | the wrapper `Recurrent` |
| `HasParams`, a state | the wrapper `Averaged` |

Parameters come in groups, which have the same name in every agent: `actor`; `critic`, with leaves `[C, ...]` if `C`
critics are stacked; `addons`, a tuple with an entry for each add-on; and an algorithm's own, such as `log_alpha`.
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
# Groups of parameters that hold networks, each with the axes by which networks are stacked in it, such as
# (("actor", ()), ("critic", (2,))) for one actor and two stacked critics.
Roles = tuple[tuple[str, tuple[int, ...]], ...]


class StepInfo(NamedTuple):
    """What `Agent.gradients` returns beside the gradients."""

    priorities: jax.Array  # float32[B], absolute TD errors; float32[B, L] for sequences
    metrics: Metrics


@runtime_checkable
class Agent(Protocol):
    """An algorithm: a frozen pytree of hyper-parameters with pure methods. Its state is any pytree.

    One update is `gradients`, then `apply`. The gradients cover everything that is trained. Clipping, delays and target
    networks belong to `apply`. So several devices train one agent by averaging their gradients between the two.
    """

    @property
    def action_space(self) -> Space:
        """The actions that the agent chooses from."""
        ...

    def init(self, key: jax.Array, obs: PyTree, action: PyTree) -> PyTree:
        """Return the first state; consumes `key`.

        Args:
            key: a PRNG key.
            obs: an example of one observation, of which only shapes and dtypes matter.
            action: an example of one action.
        """
        ...

    def initial_carry(self, num_envs: int) -> PyTree:
        """Return the memory with which acting begins an episode: leaves `[N, ...]`, or `()` if there is none."""
        ...

    def act(
        self, state: PyTree, obs: PyTree, carry: PyTree, key: jax.Array, deterministic: bool = False
    ) -> tuple[PyTree, PyTree, PyTree]:
        """Choose actions for observations `[N, ...]`; consumes `key`.

        Returns:
            Actions `[N, ...]` in the environment's units, the next carry, and extras `[N, ...]` to store with the step.
        """
        ...

    def observe(self, state: PyTree, chunk: Transition) -> PyTree:
        """Return the state after rows `[K, N, ...]` were collected, for example with new observation statistics."""
        ...

    def gradients(self, state: PyTree, sample: Sample, key: jax.Array) -> tuple[PyTree, StepInfo]:
        """Return the gradients of everything that is trained, with priorities and metrics; consumes `key`."""
        ...

    def apply(self, state: PyTree, grads: PyTree) -> PyTree:
        """Return the state after one update along the gradients."""
        ...


@runtime_checkable
class OnPolicyAgent(Agent, Protocol):
    """An agent that learns from rollouts: in `gradients`, `sample.batch` is a `RolloutBatch`.

    The batch holds shuffled rows `[B, ...]`. With `learns_from_columns` it holds all `K` rows of some environments,
    `[B, K, ...]`.
    """

    @property
    def learns_from_columns(self) -> bool:
        """Whether minibatches must hold all rows of an environment, in order, as a memory needs them."""
        ...

    def values(self, state: PyTree, chunk: Transition) -> tuple[jax.Array, jax.Array]:
        """Return the values `float32[K, N]` of a chunk's `obs`, and those of its `next_obs`."""
        ...


@runtime_checkable
class PolicyAgent(Agent, Protocol):
    """An agent whose policy is a distribution over actions."""

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
    """A NamedTuple with an entry for each group: its parameters, its gradients, or the state of its optimizer."""

    @property
    def addons(self) -> tuple[PyTree, ...]:
        """One entry for each add-on."""
        ...

    def _replace(self, **changes: PyTree) -> Self: ...


class LearnerState(Protocol):
    """The state of a `LearnerAgent`: a NamedTuple, whose parameters come in groups."""

    @property
    def params(self) -> Groups:
        """The trained parameters."""
        ...

    @property
    def optimizer(self) -> Groups:
        """The state of the optimizer of each group."""
        ...

    @property
    def num_updates(self) -> jax.Array:
        """How many updates have been made, `int32[]`."""
        ...

    def _replace(self, **changes: Any) -> Self: ...


class TargetState(LearnerState, Protocol):
    """The state of a `TargetAgent`."""

    @property
    def target(self) -> PyTree:
        """The parameters of the target networks."""
        ...


@runtime_checkable
class Addon(Protocol):
    """A term to add to the loss of a policy: a frozen pytree of hyper-parameters with pure methods."""

    @property
    def learning_rate(self) -> Scalar:
        """The learning rate of Adam for the add-on's own parameters."""
        ...

    def init(self, key: jax.Array, obs: PyTree, action: PyTree, features: jax.Array) -> PyTree:
        """Return the add-on's own first parameters, `()` if it has none; consumes `key`.

        Args:
            key: a PRNG key.
            obs: an unbatched observation.
            action: an unbatched action.
            features: `float32[F]`, what the policy's torso makes of that observation.
        """
        ...

    def loss(
        self, params: PyTree, policy: Distribution, features: jax.Array, sample: Sample, key: jax.Array
    ) -> tuple[jax.Array, Metrics]:
        """Return the term `float32[]` and metrics; consumes `key`.

        Args:
            params: the add-on's own parameters.
            policy: the learner's distributions at `sample.batch.obs`, `[B, ...]`.
            features: `float32[B, F]`, what the policy's torso makes of `sample.batch.obs`.
            sample: the batch, and the weight that each sample must have in the loss.
            key: a PRNG key.
        """
        ...


class GroupRule(NamedTuple):
    """How Adam, the default optimizer, steps one group of an agent's parameters."""

    learning_rate: str  # the name of the agent's field that holds it
    is_clipped: bool = True  # whether `max_grad_norm` applies


class LearnerAgent(PolicyAgent, Protocol):
    """An agent that takes add-ons and optimizers. Its states are `LearnerState`."""

    @property
    def addons(self) -> tuple[Addon, ...]:
        """Terms to add to the loss of the policy."""
        ...

    groups: ClassVar[Mapping[str, GroupRule]]
    """How each group of parameters is stepped by default. The group `addons` is not listed."""

    @property
    def max_grad_norm(self) -> Scalar:
        """The largest global norm of a group's gradients; larger ones are scaled down to it."""
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
        """Return what the policy's torso makes of observations `[B, ...]`: `float32[B, F]`."""
        ...


class TargetAgent(LearnerAgent, Protocol):
    """An agent with target networks, which follow the trained ones slowly. Its states are `TargetState`."""

    @property
    def polyak(self) -> Scalar:
        """The share that a target network keeps of itself when it follows."""
        ...

    @property
    def target_update_interval(self) -> Scalar:
        """How many updates there are from one such step to the next."""
        ...


@runtime_checkable
class MemoryAgent(Agent, Protocol):
    """An agent whose networks may have a memory. Its states are `HasParams`, with a group of parameters for each role.

    All its networks have the torso `torso`. Given a `History` in the place of observations, they return an output for
    each of its rows.
    """

    @property
    def torso(self) -> Torso:
        """The network below all heads."""
        ...

    @property
    def roles(self) -> Roles:
        """The groups of parameters that hold networks, each with the axes of its stack of networks."""
        ...


@runtime_checkable
class OnPolicyMemoryAgent(MemoryAgent, Protocol):
    """A `MemoryAgent` that learns from rollouts."""

    def value(self, state: PyTree, obs: PyTree) -> jax.Array:
        """Return the critic's values `float32[B]` of observations `[B, ...]`."""
        ...
