"""A training run by names and numbers, or by whole components, as files, the command line and run folders know it."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Collection, Mapping
from typing import Any

from algorithms import environments, experiment, memory
from algorithms.experiment import ALGORITHMS, ON_POLICY, SAMPLERS, Experiment
from algorithms.plan import Plan
from jaxrl_buffers import config
from jaxrl_buffers._checks import require_choice, require_flag, require_integer, require_number, shown
from jaxrl_buffers.rollouts import Rollout
from jaxrl_buffers.views.hindsight import STRATEGIES

HINDSIGHT = ("none", *STRATEGIES)
MEMORIES = ("none", *memory.KINDS)
OBS_DTYPES = ("none", *environments.OBS_DTYPES)
GROUPS = ("plan", "agent", "sampler")  # settings that hold others
MAX_SEED = 2**32 - 1  # larger ones would begin the same random numbers as smaller ones
MAX_SEEDS = 1_000_000
SET_ELSEWHERE = ("torso", "schedule", "addons", "sampler", "num_envs", "gamma")
# Settings whose place a whole buffer takes, or a part of a whole agent.
OF_BUFFER = (
    "capacity",
    "n_step",
    "gamma",
    "hindsight",
    "hindsight_ratio",
    "sampler",
    "sequence_length",
    "burn_in",
)
SIZES = ("hidden_sizes", "channels", "kernel_sizes", "strides")
OF_AGENT = {"torso": (*SIZES, "activation", "memory", "memory_size"), "schedule": ("anneals",)}
KINDS = (
    ("environment", str, "the name of an environment"),
    ("plan", Plan, "a Plan"),
    ("buffer", (str, Mapping), "a name, or keys with values"),
    ("agent", Mapping, "keys with values"),
    ("sampler", Mapping, "keys with values"),
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Everything that decides the outcome of a run.

    Buffer and agent may also be whole components, `{name, config}` as `jaxrl_buffers.from_config` takes them. What is
    left out of such a `config` is as in the component's class, never as in a preset. Settings whose place it takes stay
    at their defaults: those of `OF_BUFFER`, and of `OF_AGENT` if the agent has that part. A whole agent is given no
    action space; a whole buffer is for the plan's environments, unless it says for how many. Numbers of the plan that
    nobody asked for are made to fit the buffer.

    Args:
        algorithm: `ddqn`, `ddpg`, `td3`, `sac`, `mpo`, `ppo`.
        environment: a name that gymnax knows.
        plan: budgets and intervals.
        buffer: how samples are drawn: `uniform`, `prioritized`, `recent`, `recent_prioritized`, or `rollout` for
            on-policy algorithms; in a file also a whole buffer.
        n_step: steps summed up in a target; 1 for rollouts.
        hindsight: pretend that goals which were achieved had been pursued, in environments with goals: `none`, or
            which goals are taken, `future`, `final`, `episode` or `random`.
        hindsight_ratio: which part of the samples is relabelled in hindsight.
        gamma: discount of one step.
        capacity: transitions that a replay buffer holds; a rollout holds those of one iteration.
        hidden_sizes: widths of the networks' layers.
        channels: of the convolutions that images pass through first, one after the other. The network of Nature, for
            frames of 84x84, has channels 32 64 64, kernel sizes 8 4 3, strides 4 2 1 and hidden sizes 512.
        kernel_sizes: heights and widths of the convolutions' kernels; one for each, or a single one for all.
        strides: of the convolutions; one for each, or a single one for all.
        activation: name of a function in `jax.nn`.
        memory: what networks remember earlier observations by: `none`, `gru` or `lstm`.
        memory_size: width of what they remember.
        sequence_length: steps that off-policy algorithms learn from in one go, if there is a memory.
        burn_in: steps at the beginning of a sequence that only refresh the memory.
        anneals: bring the learning rates down to zero over the run, in a straight line.
        averaging: act by an average of parameters, with this weight on the old one at every update, where actions are
            deterministic, as in tests; 0 to act by the parameters themselves.
        normalizes: bring observations, as networks see them, to mean 0 and deviation 1.
        agent: hyper-parameters of the algorithm, or a whole agent.
        sampler: hyper-parameters of the buffer's sampler, or of the rollout.
        seed: of the first of the seeds.
        num_seeds: independent runs side by side.
        obs_dtype: what observations are stored as: `none` to leave them as they are; `bool` where they are zeros and
            ones, as in MinAtar, which takes a quarter of the memory and changes no result; `uint8` for images of values
            up to 255, which networks divide by 255.
    """

    algorithm: str
    environment: str
    plan: Plan
    buffer: str | Mapping[str, Any] = "uniform"
    n_step: int = 1
    hindsight: str = "none"
    hindsight_ratio: float = 0.8
    gamma: float = 0.99
    capacity: int = 100_000
    hidden_sizes: tuple[int, ...] = (64, 64)
    channels: tuple[int, ...] = (16,)
    kernel_sizes: tuple[int, ...] = (3,)
    strides: tuple[int, ...] = (1,)
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
    obs_dtype: str = "none"

    def __post_init__(self):
        require_name("algorithm", self.algorithm, ALGORITHMS)
        for name, kind, what in KINDS:
            if not isinstance(getattr(self, name), kind):
                raise ValueError(f"Settings({name}={shown(getattr(self, name))}): `{name}` must be {what}.")
        self._check_buffer()
        require_integer("Settings", "n_step", self.n_step, 1)
        if self.algorithm in ON_POLICY and self.n_step != 1:
            raise ValueError(f"Settings(n_step={self.n_step}): a rollout's advantages take its place; leave it at 1.")
        require_choice("Settings", "hindsight", self.hindsight, HINDSIGHT)
        require_number("Settings", "hindsight_ratio", self.hindsight_ratio, 0, 1)
        if self.algorithm in ON_POLICY and self.hindsight != "none":
            raise ValueError(
                f"Settings(hindsight={self.hindsight!r}): {self.algorithm} learns from what its policy just did, not "
                "from other goals; use an off-policy algorithm, or none."
            )
        require_choice("Settings", "memory", self.memory, MEMORIES)
        require_choice("Settings", "obs_dtype", self.obs_dtype, OBS_DTYPES)
        require_number("Settings", "averaging", self.averaging, 0, 1)
        require_number("Settings", "gamma", self.gamma, 0, 1)
        for name in ("anneals", "normalizes"):
            require_flag("Settings", name, getattr(self, name))
        require_integer("Settings", "sequence_length", self.sequence_length, 1)
        require_integer("Settings", "burn_in", self.burn_in, 0)
        require_integer("Settings", "capacity", self.capacity, 1)
        require_integer("Settings", "num_seeds", self.num_seeds, 1, MAX_SEEDS)
        require_integer("Settings", "seed", self.seed, 0, MAX_SEED)
        experiment.build_torso(self)  # which refuses what no network can be
        self._check_agent()
        for group, component in self.groups.items():
            check_group(group, {group: getattr(self, group)}, component, options_of(component))
        defaults = _defaults(self.replaced)
        self.refuse_replaced({name: getattr(self, name) for name in defaults if getattr(self, name) != defaults[name]})
        plan = self.plan.fitted(experiment.build_buffer(self), by_columns=self.remembers)
        object.__setattr__(self, "plan", plan)

    def _check_buffer(self) -> None:
        if isinstance(self.buffer, str):
            require_name("buffer", self.buffer, SAMPLERS)
            name, is_rollout = self.buffer, self.buffer == "rollout"
        else:
            buffer = experiment.build_whole_buffer(self.buffer, self.plan.num_envs)
            name, is_rollout = self.buffer["name"], isinstance(buffer, Rollout)
        if (self.algorithm in ON_POLICY) != is_rollout:
            needed = "rollout" if self.algorithm in ON_POLICY else "uniform or prioritized"
            raise ValueError(f"{self.algorithm} does not learn from the buffer {name!r}; use {needed}.")

    def _check_agent(self) -> None:
        if not experiment.is_component(self.agent):
            return
        algorithm = experiment.algorithm_of(self.agent)
        if self.algorithm != algorithm:
            raise ValueError(f"algorithm: got {self.algorithm!r}, expected {algorithm}, as the agent's name says.")
        experiment.build_agent(self, experiment.build_environment(self))

    @property
    def groups(self) -> dict[str, Any]:
        """The classes whose hyper-parameters are settings, by the setting that holds them; none of whole components."""
        groups = {} if experiment.is_component(self.agent) else {"agent": ALGORITHMS[self.algorithm]}
        return groups | ({"sampler": SAMPLERS[self.buffer]} if isinstance(self.buffer, str) else {})

    @property
    def replaced(self) -> dict[str, str]:
        """The settings whose place a whole component takes, each with where it is decided instead."""
        names = {} if isinstance(self.buffer, str) else dict.fromkeys(OF_BUFFER, "buffer.config")
        if self.remembers:  # agents with a memory sum up rewards themselves
            names.pop("n_step", None)
        return names | _replaced_by(self.agent)

    def refuse_replaced(self, given: Mapping[str, Any]) -> None:
        """Refuse those of the given settings whose place a whole component takes."""
        for name, where in self.replaced.items():
            if name in given:
                raise ValueError(f"{name}: got {given[name]!r}, expected nothing: {where} takes its place.")

    @property
    def remembers(self) -> bool:
        """Whether the networks have a memory."""
        torso = experiment.config_of("agent", self.agent).get("torso")
        return self.memory != "none" if torso is None else config.from_config(torso).memory is not None

    def build(self) -> Experiment:
        """Return the components; refuse what does not fit together.

        Example:
            >>> settings = Settings("ddqn", "CartPole-v1", Plan(total_steps=2_000, start_steps=1_000))
            >>> settings.build().buffer.length
            100000
        """
        return experiment.build(self)

    def with_buffer(self, buffer: str | Mapping[str, Any]) -> Settings:
        """Return the settings with another buffer, which then has its own defaults."""
        if not isinstance(buffer, str):
            return dataclasses.replace(self, buffer=buffer, **_defaults(OF_BUFFER))
        require_name("buffer", buffer, SAMPLERS)
        return self if buffer == self.buffer else dataclasses.replace(self, buffer=buffer, sampler={})

    def with_agent(self, agent: Mapping[str, Any]) -> Settings:
        """Return the settings with a whole agent, which then has its own defaults."""
        return dataclasses.replace(self, agent=agent, **_defaults(_replaced_by(agent)))

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON knows them, without those whose place a whole component takes."""
        replaced = self.replaced
        values = {name: value for name, value in dataclasses.asdict(self).items() if name not in replaced}
        return {**values, "plan": self.plan.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Settings:
        """Return the settings that `to_dict` gave."""
        flat = check_flat(require_keys("settings", values))
        for name in ("algorithm", "environment", "plan"):
            if name not in values:
                raise ValueError(f"{name}: is missing, expected it as in the config.json of a run.")
        plan = check_group("plan", values, Plan, [field.name for field in dataclasses.fields(Plan)])
        if "total_steps" not in plan:
            raise ValueError("plan.total_steps: is missing, expected a whole number.")
        return cls(**{**values, **flat, "plan": Plan(**plan)})


def _replaced_by(agent: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings whose place parts of a whole agent take, each with where it is decided instead."""
    parts = [part for part in OF_AGENT if part in experiment.config_of("agent", agent)]
    return {name: f"agent.config.{part}" for part in parts for name in OF_AGENT[part]}


def _defaults(names: Collection[str]) -> dict[str, Any]:
    """Return what settings are if they are not given."""
    fields = [field for field in dataclasses.fields(Settings) if field.name in names]
    return {
        field.name: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        for field in fields
    }


def options_of(component: Any) -> dict[str, Any]:
    """Return the hyper-parameters of an agent or sampler class, with their defaults; not those set elsewhere."""
    fields = (field for field in dataclasses.fields(component) if field.default is not dataclasses.MISSING)
    return {field.name: field.default for field in fields if field.name not in SET_ELSEWHERE}


def check_flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those settings that do not hold others, as `Settings` asks for them; refuse what is unknown or wrong."""
    names = [field.name for field in dataclasses.fields(Settings)]
    for key in values:
        if key not in names:
            known = ", ".join(names)
            raise ValueError(f"{shown(key, str)}: is unknown (got {shown(values[key])}), expected are: {known}.")
    nested = {*GROUPS, "buffer"} if isinstance(values.get("buffer"), Mapping) else GROUPS
    flat = {key: value for key, value in values.items() if key not in nested}
    return config.check(Settings, flat, [name for name in names if name not in nested])


def check_group(name: str, values: Mapping[str, Any], component: Any, keys: Collection[str]) -> dict[str, Any]:
    """Return the settings that a setting holds, as a component asks for them; refuse what is unknown or wrong."""
    given = require_keys(name, {} if values.get(name) is None else values[name])
    try:
        return config.check(component, given, keys)
    except ValueError as error:
        raise ValueError(f"{name}.{error}") from None


def require_keys(name: str, values: Any) -> Mapping[str, Any]:
    """Refuse what has no keys."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{name}: got {shown(values)}, expected keys with values.")
    return values


def require_name(what: str, name: str, known: Mapping[str, Any]) -> None:
    """Refuse a name that is not known, with the nearest that is."""
    if not isinstance(name, str) or name not in known:
        near = difflib.get_close_matches(shown(name, str), known, n=1) or [", ".join(known)]
        raise ValueError(f"there is no {what} {shown(name)}; did you mean {near[0]}?")
