"""A training run by names and numbers, as the command line and run folders know it."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from algorithms import environments, memory
from algorithms.averaging import Averaged
from algorithms.ddpg import DDPG
from algorithms.ddqn import DDQN
from algorithms.environments import Environment
from algorithms.mpo import MPO
from algorithms.networks import Torso
from algorithms.normalization import Normalized
from algorithms.optimization import LinearDecay
from algorithms.plan import Plan
from algorithms.ppo import PPO
from algorithms.recurrence import Recurrent
from algorithms.sac import SAC
from algorithms.spaces import Box, Discrete
from algorithms.td3 import TD3
from algorithms.types import Agent
from jaxrl_buffers import Hindsight, NStep, Prioritized, Recent, ReplayBuffer, Sequence, Uniform
from jaxrl_buffers.checks import require_choice, require_integer, require_number
from jaxrl_buffers.rollouts import Rollout
from jaxrl_buffers.types import View
from jaxrl_buffers.views.hindsight import STRATEGIES

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
HINDSIGHT = ("none", *STRATEGIES)
MEMORIES = ("none", *memory.KINDS)
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
        hindsight: pretend that goals which were achieved had been pursued, in environments with goals: `none`, or
            which goals are taken, `future`, `final`, `episode` or `random`.
        hindsight_ratio: which part of the samples is relabelled in hindsight.
        gamma: discount of one step.
        capacity: transitions that a replay buffer holds; a rollout holds those of one iteration.
        hidden_sizes: widths of the networks' layers.
        activation: name of a function in `jax.nn`.
        memory: what networks remember earlier observations by: `none`, `gru` or `lstm`.
        memory_size: width of what they remember.
        sequence_length: steps that off-policy algorithms learn from in one go, if there is a memory.
        burn_in: steps at the beginning of a sequence that only refresh the memory.
        anneals: bring the learning rates down to zero over the run, in a straight line.
        averaging: act by an average of parameters, with this weight on the old one at every update, where actions are
            deterministic, as in tests; 0 to act by the parameters themselves.
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
    hindsight: str = "none"
    hindsight_ratio: float = 0.8
    gamma: float = 0.99
    capacity: int = 100_000
    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: str = "relu"
    memory: str = "none"
    memory_size: int = 64
    sequence_length: int = 20
    burn_in: int = 5
    anneals: bool = False
    averaging: float = 0.0
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
        require_choice("Settings", "hindsight", self.hindsight, HINDSIGHT)
        require_number("Settings", "hindsight_ratio", self.hindsight_ratio, 0, 1)
        if self.buffer == "rollout" and self.hindsight != "none":
            raise ValueError(
                f"Settings(hindsight={self.hindsight!r}): {self.algorithm} learns from what its policy just did, not "
                "from other goals; use an off-policy algorithm, or none."
            )
        require_choice("Settings", "memory", self.memory, MEMORIES)
        require_number("Settings", "averaging", self.averaging, 0, 1)
        require_integer("Settings", "memory_size", self.memory_size, 1)
        require_integer("Settings", "sequence_length", self.sequence_length, 1)
        require_integer("Settings", "burn_in", self.burn_in, 0)
        require_integer("Settings", "capacity", self.capacity, 1)
        require_integer("Settings", "num_seeds", self.num_seeds, 1)
        require_integer("Settings", "seed", self.seed, 0)
        if not callable(getattr(jax.nn, self.activation, None)):
            raise ValueError(f"there is no activation {self.activation!r} in jax.nn; use relu, tanh, silu, gelu ...")
        for size in self.hidden_sizes:
            require_integer("Settings", "hidden_sizes", size, 1)
        _require_keys("agent", self.agent, ALGORITHMS[self.algorithm])
        _require_keys("sampler", self.sampler, SAMPLERS[self.buffer])

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
        torso = Torso(
            tuple(self.hidden_sizes),
            activation=self.activation,
            memory=None if self.memory == "none" else self.memory,
            memory_size=self.memory_size,
        )
        num_updates = self.plan.num_iterations * self.plan.num_updates
        schedule = LinearDecay(num_updates) if self.anneals else None
        agent = ALGORITHMS[self.algorithm](env.action_space, torso=torso, schedule=schedule, **self.agent)
        agent = agent if self.memory == "none" else Recurrent(agent, self.n_step)
        agent = Averaged(agent, self.averaging) if self.averaging else agent
        agent = Normalized(agent) if self.normalizes else agent
        buffer = self._rollout() if self.algorithm in ON_POLICY else self._replay_buffer(env)
        self.plan.check_buffer(buffer, by_columns=self.memory != "none")
        return Experiment(agent, buffer, env, self.plan)

    def _rollout(self) -> Rollout:
        num_envs = self.plan.num_envs
        return Rollout(self.plan.update_every // num_envs, num_envs, gamma=self.gamma, **self.sampler)

    def _replay_buffer(self, env: Environment) -> ReplayBuffer:
        view = self._view(env)
        length = -(-self.capacity // self.plan.num_envs)
        inside = {"sampler": INSIDE[self.buffer]} if self.buffer in INSIDE else {}
        sampler = SAMPLERS[self.buffer](**inside, **self.sampler)
        return ReplayBuffer(sampler, view, length=length, num_envs=self.plan.num_envs)

    def _view(self, env: Environment) -> View:
        if self.memory == "none":
            view = NStep(self.n_step, self.gamma)
        else:
            view = Sequence(self.sequence_length, self.burn_in, gamma=self.gamma)
        if self.hindsight == "none":
            return view
        if env.goal is None:
            raise ValueError(
                f"Settings(hindsight={self.hindsight!r}): {self.environment} has no goals that could be exchanged; use "
                "an environment with goals, such as BitFlip15-v0 or PointReach-v0, or none."
            )
        return Hindsight(view, **env.goal._asdict(), strategy=self.hindsight, ratio=self.hindsight_ratio)

    def with_buffer(self, buffer: str) -> Settings:
        """Return the settings with another buffer, which then has its own defaults."""
        require_name("buffer", buffer, SAMPLERS)
        return self if buffer == self.buffer else dataclasses.replace(self, buffer=buffer, sampler={})

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


def _require_keys(group: str, values: Mapping[str, Any], component: Any) -> None:
    """Refuse hyper-parameters that an agent or sampler does not have."""
    known = options_of(component)
    for key in values:
        if key not in known:
            raise ValueError(
                f"Settings({group}={{{key!r}: ...}}): {component.__name__} has no {key!r}; use {', '.join(known)}."
            )


def require_name(what: str, name: str, known: Mapping[str, Any]) -> None:
    """Refuse a name that is not known, with the nearest that is."""
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1) or [", ".join(known)]
        raise ValueError(f"there is no {what} {name!r}; did you mean {near[0]}?")
