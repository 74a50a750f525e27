"""A training run by names and numbers, as the command line and run folders know it."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from algorithms import environments
from algorithms.ddpg import DDPG
from algorithms.ddqn import DDQN
from algorithms.environments import Environment
from algorithms.mpo import MPO
from algorithms.networks import Torso
from algorithms.normalization import Normalized
from algorithms.optimization import LinearDecay
from algorithms.plan import Plan
from algorithms.ppo import PPO
from algorithms.sac import SAC
from algorithms.spaces import Box, Discrete
from algorithms.td3 import TD3
from algorithms.types import Agent
from jaxrl_buffers import NStep, Prioritized, Recent, ReplayBuffer, Uniform
from jaxrl_buffers.checks import require_integer
from jaxrl_buffers.rollouts import Rollout

ALGORITHMS: dict[str, Any] = {"ddqn": DDQN, "ddpg": DDPG, "td3": TD3, "sac": SAC, "mpo": MPO, "ppo": PPO}
ACTION_SPACES = {
    "ddqn": (Discrete,),
    "ddpg": (Box,),
    "td3": (Box,),
    "sac": (Box, Discrete),
    "mpo": (Box, Discrete),
    "ppo": (Box, Discrete),
}
ON_POLICY = ("ppo",)
SAMPLERS: dict[str, Any] = {
    "uniform": Uniform,
    "prioritized": Prioritized,
    "recent": Recent,
    "recent_prioritized": Recent,
    "rollout": Rollout,
}
INSIDE = {"recent": Uniform(), "recent_prioritized": Prioritized()}  # samplers that others narrow down
SET_ELSEWHERE = ("torso", "schedule", "addons", "sampler", "num_envs", "gamma")


class Experiment(NamedTuple):
    """The components of a run."""

    agent: Agent
    buffer: ReplayBuffer | Rollout
    env: Environment
    plan: Plan


@dataclasses.dataclass(frozen=True)
class Settings:
    """Everything that decides the outcome of a run.

    Args:
        algorithm: `ddqn`, `ddpg`, `td3`, `sac`, `mpo`, `ppo`.
        environment: a name that gymnax knows.
        plan: budgets and intervals.
        buffer: how samples are drawn: `uniform`, `prioritized`, `recent`, `recent_prioritized`, or `rollout` for
            on-policy algorithms.
        n_step: steps summed up in a target; 1 for rollouts.
        gamma: discount of one step.
        capacity: transitions that a replay buffer holds; a rollout holds those of one iteration.
        hidden_sizes: widths of the networks' layers.
        activation: name of a function in `jax.nn`.
        anneals: bring the learning rates down to zero over the run, in a straight line.
        normalizes: bring observations, as networks see them, to mean 0 and deviation 1.
        agent: hyper-parameters of the algorithm.
        sampler: hyper-parameters of the buffer's sampler, or of the rollout.
        seed: of the first of the seeds.
        num_seeds: independent runs side by side.
    """

    algorithm: str
    environment: str
    plan: Plan
    buffer: str = "uniform"
    n_step: int = 1
    gamma: float = 0.99
    capacity: int = 100_000
    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: str = "relu"
    anneals: bool = False
    normalizes: bool = False
    agent: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    sampler: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    seed: int = 0
    num_seeds: int = 1

    def __post_init__(self):
        require_name("algorithm", self.algorithm, ALGORITHMS)
        require_name("buffer", self.buffer, SAMPLERS)
        if (self.algorithm in ON_POLICY) != (self.buffer == "rollout"):
            needed = "rollout" if self.algorithm in ON_POLICY else "uniform or prioritized"
            raise ValueError(f"{self.algorithm} does not learn from the buffer {self.buffer!r}; use {needed}.")
        if self.buffer == "rollout" and self.n_step != 1:
            raise ValueError(f"Settings(n_step={self.n_step}): a rollout's advantages take its place; leave it at 1.")
        require_integer("Settings", "capacity", self.capacity, 1)
        require_integer("Settings", "num_seeds", self.num_seeds, 1)
        require_integer("Settings", "seed", self.seed, 0)
        if not callable(getattr(jax.nn, self.activation, None)):
            raise ValueError(f"there is no activation {self.activation!r} in jax.nn; use relu, tanh, silu, gelu ...")
        for size in self.hidden_sizes:
            require_integer("Settings", "hidden_sizes", size, 1)

    def build(self) -> Experiment:
        """Return the components; refuse what does not fit together.

        Example:
            >>> settings = Settings("ddqn", "CartPole-v1", Plan(total_steps=2_000, start_steps=1_000))
            >>> settings.build().buffer.length
            100000
        """
        env = environments.make(self.environment)
        if not isinstance(env.action_space, ACTION_SPACES[self.algorithm]):
            fitting = [name for name, spaces in ACTION_SPACES.items() if isinstance(env.action_space, spaces)]
            raise ValueError(
                f"{self.algorithm} cannot act in {self.environment}, which has {env.action_space}; "
                f"use {' or '.join(fitting)}."
            )
        torso = Torso(tuple(self.hidden_sizes), activation=self.activation)
        num_updates = self.plan.num_iterations * self.plan.num_updates
        schedule = LinearDecay(num_updates) if self.anneals else None
        agent = ALGORITHMS[self.algorithm](env.action_space, torso=torso, schedule=schedule, **self.agent)
        agent = Normalized(agent) if self.normalizes else agent
        buffer = self._rollout() if self.algorithm in ON_POLICY else self._replay_buffer()
        self.plan.check_buffer(buffer)
        return Experiment(agent, buffer, env, self.plan)

    def _rollout(self) -> Rollout:
        num_envs = self.plan.num_envs
        return Rollout(self.plan.update_every // num_envs, num_envs, gamma=self.gamma, **self.sampler)

    def _replay_buffer(self) -> ReplayBuffer:
        length = -(-self.capacity // self.plan.num_envs)
        inside = {"sampler": INSIDE[self.buffer]} if self.buffer in INSIDE else {}
        sampler = SAMPLERS[self.buffer](**inside, **self.sampler)
        view = NStep(self.n_step, self.gamma)
        return ReplayBuffer(sampler, view, length=length, num_envs=self.plan.num_envs)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON knows them."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Settings:
        """Return the settings that `to_dict` gave."""
        plan, sizes = Plan(**values["plan"]), tuple(values["hidden_sizes"])
        return cls(**{**values, "plan": plan, "hidden_sizes": sizes})


def options_of(component: Any) -> dict[str, Any]:
    """Return the hyper-parameters of an agent or sampler class, with their defaults; not those set elsewhere."""
    fields = (field for field in dataclasses.fields(component) if field.default is not dataclasses.MISSING)
    return {field.name: field.default for field in fields if field.name not in SET_ELSEWHERE}


def require_name(what: str, name: str, known: Mapping[str, Any]) -> None:
    """Refuse a name that is not known, with the nearest that is."""
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1) or [", ".join(known)]
        raise ValueError(f"there is no {what} {name!r}; did you mean {near[0]}?")
