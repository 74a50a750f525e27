"""The settings of a run, as plain data: what files, the command line and run folders hold.

`algorithms.runs.build.build` makes the components of a run from them, and refuses wrong settings.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any

from algorithms.runs import data_set
from algorithms.training.plan import Plan, Suggested
from jaxrl_buffers import config
from jaxrl_buffers._checks import shown

GROUPS = ("plan", "agent", "sampler", "rollout", "buffer", "env", "dataset")  # settings that hold others
# Settings that describe a buffer. They are refused beside a whole buffer, which describes itself.
OF_BUFFER = (
    *("capacity", "n_step", "gamma", "hindsight", "hindsight_ratio"),
    *("sampler", "rollout", "sequence_length", "burn_in", "dataset", "dataset_share"),
)
SIZES = ("hidden_sizes", "channels", "kernel_sizes", "strides")
# Likewise, settings that describe a part of an agent.
OF_AGENT: dict[str, tuple[str, ...]] = {
    "torso": (*SIZES, "activation", "memory", "memory_size"),
    "schedule": ("anneal",),
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Everything that decides the outcome of a run.

    A sampler is `{"name": ..., option: value, ...}`. Some samplers apply a second sampler to a part of the buffer.
    The second one is under `base`: `{"name": "recent", "eta": 0.99, "base": {"name": "prioritized", "alpha": 0.7}}`.

    Buffer and agent may also be whole components, `{"name": ..., "config": {...}}`, as `jaxrl_buffers.from_config`
    builds them. What their `config` leaves out has the default of the component's class. With a whole buffer, the
    settings in `OF_BUFFER` are refused. With a whole agent, so are those in `OF_AGENT` for parts that its config gives.
    A whole agent gets the action space of the environment. A whole buffer is
    for as many environments as the plan has, unless its `config` gives another number.

    Args:
        algorithm: `ddqn`, `ddpg`, `td3`, `sac`, `mpo` or `ppo`.
        environment: the name of an environment: `CartPole-v1` of gymnax, `brax:ant`, `gymnasium:HalfCheetah-v5`, or
            `module:function` for your own.
        plan: budgets and intervals.
        sampler: which transitions of a replay buffer are drawn. None is `{"name": "uniform"}`. To combine several
            samplers, give a whole `buffer` that has the sampler `Combined`.
        rollout: options of the rollout from which an on-policy algorithm learns.
        buffer: a whole buffer; None to make one from the other settings.
        n_step: rewards summed up in a target; 1 for on-policy algorithms.
        hindsight: in environments with goals, also learn from goals that were reached by chance. `none`, or the choice
            of these goals: `future`, `final`, `episode` or `random`.
        hindsight_ratio: the share of samples whose goal is replaced.
        gamma: discount of one step.
        capacity: transitions that a replay buffer holds. A rollout holds those of one iteration.
        hidden_sizes: widths of the networks' dense layers. If it is not given, 512 for images from 36x36, else 64 64.
        channels: channels of the convolutions that images pass through first. If neither these nor kernel sizes nor
            strides are given, images from 36x36 get the network of the Nature paper (channels 32 64 64, kernel sizes
            8 4 3, strides 4 2 1), images from 20x20 channels 32 64, kernel sizes 4 3 and strides 2 2, and smaller
            ones channels 16.
        kernel_sizes: height and width of each convolution's kernel, or one number for all; 3 beside given channels.
        strides: stride of each convolution, or one number for all; 1 beside given channels.
        activation: name of a function in `jax.nn`.
        memory: the recurrent core through which networks remember earlier observations: `none`, `gru` or `lstm`.
        memory_size: width of the recurrent core.
        sequence_length: steps of one sample, for off-policy algorithms with a memory.
        burn_in: steps at the beginning of such a sample that only bring the memory up to date.
        anneal: lower the learning rates to zero over the run, in a straight line.
        averaging: evaluate the policy with a running average of its parameters; `averaging` is the weight of the old
            average in each update. 0 to evaluate with the parameters themselves.
        normalize: scale observations to mean 0 and deviation 1 before networks see them.
        agent: hyper-parameters of the algorithm, or a whole agent. `{"optimizer": {"name": "adamw", "learning_rate":
            3e-4}}` replaces Adam by another optimizer of optax. A dict from groups of parameters, such as `critic`,
            to such dicts does so for these groups only.
        seed: the first seed.
        num_seeds: independent runs side by side, with the seeds that follow the first.
        obs_dtype: dtype in which observations are stored. `none` leaves them as they are. `bool` is for zeros and ones,
            as in MinAtar: it takes a quarter of the memory and changes no result. `uint8` is for images with values up
            to 255, which networks divide by 255.
        env: options of the environment's constructor, such as `{"ctrl_cost_weight": 0.2}`.
        frame_skip: for how many frames an action is repeated, in Atari games; None for 4.
        frame_stack: how many observations are stacked along a new last axis, in environments of Gymnasium. A replay
            buffer stores each of them once: with four frames of 84x84, a transition takes 7,938 bytes, not 56,448.
        processes: step every environment of Gymnasium in its own process, which is faster if steps are slow.
        actors: threads that step the environments of Gymnasium beside the learner, each an equal share of them.
        collect_then_learn: collect and learn one after the other, in environments of Gymnasium. Otherwise a chunk is
            collected while the agent learns from the chunk before it, by the policy from before this learning.
        info: numbers of the environment's `info`, by name, that are stored with every step. The metrics have their
            means over steps, and over the last steps of episodes.
        dataset: a data set to learn from besides what the run collects, by its path: a `.npz` or `.hdf5` file with the
            keys of D4RL, or a folder or name of Minari. With `offline_updates`, also before the first step.
        dataset_share: the share of every batch that comes from the data set, once there are steps.

    Example:
        >>> settings = Settings("ddqn", "CartPole-v1", Plan(total_steps=2_000), sampler={"name": "prioritized"})
        >>> Settings.from_dict(settings.to_dict()) == settings
        True
    """

    algorithm: str
    environment: str
    plan: Plan
    sampler: Mapping[str, Any] | None = None
    rollout: Mapping[str, Any] | None = None
    buffer: Mapping[str, Any] | None = None
    n_step: int = 1
    hindsight: str = "none"
    hindsight_ratio: float = 0.8
    gamma: float = 0.99
    capacity: int = 100_000
    hidden_sizes: tuple[int, ...] | None = None
    channels: tuple[int, ...] | None = None
    kernel_sizes: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None
    activation: str = "relu"
    memory: str = "none"
    memory_size: int = 64
    sequence_length: int = 20
    burn_in: int = 5
    anneal: bool = False
    averaging: float = 0.0
    normalize: bool = False
    agent: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    seed: int = 0
    num_seeds: int = 1
    obs_dtype: str = "none"
    env: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    frame_skip: int | None = None
    frame_stack: int = 1
    processes: bool = False
    actors: int = 1
    collect_then_learn: bool = False
    info: tuple[str, ...] = ()
    dataset: Mapping[str, Any] | None = None
    dataset_share: float = 0.5

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as values of JSON, without those that a whole component replaces."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        values |= {name: list(values[name]) for name in (*SIZES, "info") if values[name] is not None}
        values["plan"] = self.plan.to_dict()
        replaced = replaced_settings(values)
        return {name: value for name, value in values.items() if value is not None and name not in replaced}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Settings:
        """Return the settings in a dict, in the form that `to_dict` returns.

        Settings that are left out have their defaults. Algorithm, environment and the plan's total are required.
        Options of agents and samplers are kept as they are until `build` checks them.
        """
        flat = _check_flat(require_keys("settings", values))
        for name in ("algorithm", "environment", "plan"):
            if name not in values:
                raise ValueError(f"{name}: is missing, expected it as in the config.json of a run.")
        groups = {name: values[name] for name in GROUPS if values.get(name) is not None}
        require_keys("buffer", groups.get("buffer", {}))
        groups |= {"dataset": data_set.checked(groups["dataset"])} if "dataset" in groups else {}
        refuse_replaced(values)
        checked: dict[str, Any] = {**groups, **flat, "plan": _plan(groups.get("plan"))}
        return cls(**checked)


def is_component(value: object) -> bool:
    """Return whether a value is a whole component, `{name, config}`, and not only options."""
    return isinstance(value, Mapping) and ("name" in value or "config" in value)


def replaced_settings(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that a whole buffer or agent replaces, each with the name of this component's setting."""
    agent = values.get("agent")
    own = _config_of(agent) if is_component(agent) else {}
    names = {} if values.get("buffer") is None else dict.fromkeys(OF_BUFFER, "buffer.config")
    return names | {name: f"agent.config.{part}" for part in OF_AGENT if part in own for name in OF_AGENT[part]}


def refuse_replaced(values: Mapping[str, Any]) -> None:
    """Refuse settings that a whole buffer or agent beside them replaces."""
    for name, where in replaced_settings(values).items():
        if values.get(name) is not None:
            raise ValueError(f"{name}: got {shown(values[name])}, but {where} takes its place; leave it out.")


def _config_of(component: object) -> Mapping[str, Any]:
    """Return the `config` of a whole component; empty if it has none that can be read."""
    own = component.get("config") if isinstance(component, Mapping) else None
    return own if isinstance(own, Mapping) else {}


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return two dicts of settings as one, in which `above` wins; both have the form of `Settings.to_dict`.

    Options of the plan, the agent and the sampler are merged one by one. If `above` has another sampler or a whole
    component, it begins with its own defaults, and takes nothing from what it replaces in `below`.

    Example:
        >>> preset = {"gamma": 0.9, "sampler": {"name": "prioritized", "alpha": 0.3}}
        >>> merged(preset, {"sampler": {"beta": 1.0}})
        {'gamma': 0.9, 'sampler': {'name': 'prioritized', 'alpha': 0.3, 'beta': 1.0}}
        >>> merged(preset, {"sampler": "recent"})
        {'gamma': 0.9, 'sampler': {'name': 'recent'}}
    """
    replaced = {*replaced_settings(above), *(OF_BUFFER if above.get("buffer") is not None else ())}
    replaced |= {"agent"} if is_component(above.get("agent")) else set()
    replaced |= {"buffer"} if "sampler" in above and "buffer" not in above else set()
    below = {name: value for name, value in below.items() if name not in replaced}
    both = {**below, **above}
    for name in ("plan", "agent", "rollout", "env"):
        if isinstance(below.get(name), Mapping) and isinstance(above.get(name), Mapping):
            both[name] = {**below[name], **above[name]}
    if above.get("sampler") is not None:
        both["sampler"] = _merged_samplers(below.get("sampler"), above["sampler"])
    return both


def _merged_samplers(below: object, above: object) -> Any:
    below, above = ({"name": one} if isinstance(one, str) else one for one in (below, above))
    if not isinstance(below, Mapping) or not isinstance(above, Mapping):
        return above
    if above.get("name", below.get("name")) != below.get("name"):
        below = {}
    both = {**below, **above}
    return both | ({"base": _merged_samplers(below.get("base"), above["base"])} if "base" in above else {})


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the dotted names of settings that differ; components of different names count as one difference."""
    names = []
    for name in {**one, **other}:
        here, there = one.get(name), other.get(name)
        if here == there:
            continue
        if isinstance(here, Mapping) and isinstance(there, Mapping) and here.get("name") == there.get("name"):
            names += [f"{name}.{inner}" for inner in differing(here, there)]
        else:
            names.append(name)
    return names


def check_options(where: str, values: object, component: Callable[..., Any], keys: Collection[str]) -> dict[str, Any]:
    """Return options with the types of a component's parameters; refuse unknown options and wrong types."""
    given = require_keys(where, {} if values is None else values)
    try:
        return config.check(component, given, keys)
    except ValueError as error:
        raise ValueError(f"{where}.{error}") from None


def require_keys(name: str, values: object) -> Mapping[str, Any]:
    """Refuse a value that is not a mapping."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{name}: got {shown(values)}, expected keys with values.")
    return values


def _check_flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that are not groups, with the types of `Settings`; refuse unknown names and wrong types."""
    names = [field.name for field in dataclasses.fields(Settings)]
    for key in values:
        if key not in names:
            known = ", ".join(names)
            raise ValueError(f"{shown(key, str)}: is unknown (got {shown(values[key])}); known are: {known}.")
    flat = {key: value for key, value in values.items() if key not in GROUPS}
    return config.check(Settings, flat, [name for name in names if name not in GROUPS])


def _plan(values: object) -> Plan:
    given = require_keys("plan", {} if values is None else values)
    suggested = {name: value for name, value in given.items() if isinstance(value, Suggested)}
    others = {name: value for name, value in given.items() if name not in suggested}
    plan: dict[str, Any] = suggested | check_options(
        "plan", others, Plan, [field.name for field in dataclasses.fields(Plan)]
    )
    if "total_steps" not in plan:
        raise ValueError("plan.total_steps: is missing, expected a whole number.")
    return Plan(**plan)
