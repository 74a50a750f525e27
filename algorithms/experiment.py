"""The components of a run, built from its settings.

Buffer and agent are there by names and numbers, or as whole components, `{name, config}`, as `jaxrl_buffers.config`
knows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from algorithms import environments
from algorithms.averaging import Averaged
from algorithms.ddpg import DDPG
from algorithms.ddqn import DDQN
from algorithms.environments import Environment
from algorithms.loop import Buffer
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
from jaxrl_buffers import Hindsight, Mixture, NStep, Prioritized, Recent, ReplayBuffer, Sequence, Uniform, config
from jaxrl_buffers.rollouts import Rollout
from jaxrl_buffers.types import View

if TYPE_CHECKING:
    from algorithms.settings import Settings

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


class Experiment(NamedTuple):
    """The components of a run."""

    agent: Agent
    buffer: Buffer
    env: Environment
    plan: Plan


def build(settings: Settings) -> Experiment:
    """Return the components; refuse what does not fit together."""
    env = build_environment(settings)
    agent = build_agent(settings, env)
    agent = Recurrent(agent, settings.n_step) if settings.remembers else agent
    agent = Averaged(agent, settings.averaging) if settings.averaging else agent
    agent = Normalized(agent) if settings.normalizes else agent
    buffer = build_buffer(settings, env)
    settings.plan.check_buffer(buffer, by_columns=settings.remembers)
    _check_views(buffer, settings.remembers)
    return Experiment(agent, buffer, env, settings.plan)


def build_environment(settings: Settings) -> Environment:
    """Return the environment, which must be one that the algorithm can act in."""
    obs_dtype = None if settings.obs_dtype == "none" else settings.obs_dtype
    env = environments.make(settings.environment, obs_dtype=obs_dtype)
    if not isinstance(env.action_space, ACTION_SPACES[settings.algorithm]):
        fitting = [name for name, spaces in ACTION_SPACES.items() if isinstance(env.action_space, spaces)]
        raise ValueError(
            f"{settings.algorithm} cannot act in {settings.environment}, which has {env.action_space}; "
            f"use {' or '.join(fitting)}."
        )
    return env


def build_torso(settings: Settings) -> Torso:
    """Return the torso of an agent that has none of its own."""
    return Torso(
        tuple(settings.hidden_sizes),
        tuple(settings.channels),
        activation=settings.activation,
        memory=None if settings.memory == "none" else settings.memory,
        memory_size=settings.memory_size,
        kernel_sizes=tuple(settings.kernel_sizes),
        strides=tuple(settings.strides),
    )


def build_agent(settings: Settings, env: Environment) -> Any:
    """Return the agent as such, without what settings wrap it in."""
    torso = build_torso(settings)
    num_updates = settings.plan.num_iterations * settings.plan.num_updates
    schedule = LinearDecay(num_updates) if settings.anneals else None
    if not is_component(settings.agent):
        return ALGORITHMS[settings.algorithm](env.action_space, torso=torso, schedule=schedule, **settings.agent)
    own = config_of("agent", settings.agent)
    if "action_space" in own:
        raise ValueError(
            f"agent.config.action_space: got {own['action_space']!r}, expected nothing: it is the environment's."
        )
    parts = {"action_space": env.action_space, "torso": torso, "schedule": schedule}
    parts = {name: config.to_config(part) for name, part in parts.items() if part is not None}
    return _build("agent", {**settings.agent, "config": {**parts, **own}})


def build_buffer(settings: Settings, env: Environment | None = None) -> Buffer:
    """Return the buffer; without an environment, one that draws from the same rows but changes no goals."""
    num_envs = settings.plan.num_envs
    if not isinstance(settings.buffer, str):
        return build_whole_buffer(settings.buffer, num_envs)
    if settings.algorithm in ON_POLICY:
        return Rollout(settings.plan.update_every // num_envs, num_envs, gamma=settings.gamma, **settings.sampler)
    inside = {"sampler": INSIDE[settings.buffer]} if settings.buffer in INSIDE else {}
    sampler = SAMPLERS[settings.buffer](**inside, **settings.sampler)
    return ReplayBuffer(sampler, _view(settings, env), length=-(-settings.capacity // num_envs), num_envs=num_envs)


def build_whole_buffer(buffer: Mapping[str, Any], num_envs: int) -> Buffer:
    """Return a buffer that is a whole component, for `num_envs` environments unless it says for how many.

    The buffers of a mixture must say so: only the first one gets the rows of the run's environments.
    """
    built = _build("buffer", buffer)
    if isinstance(built, Mixture) or "num_envs" in config_of("buffer", buffer):
        return built
    return built.replace(num_envs=num_envs)


def is_component(value: Any) -> bool:
    """Tell a whole component from a name or from hyper-parameters, of which none has such a name."""
    return isinstance(value, Mapping) and ("name" in value or "config" in value)


def config_of(where: str, component: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a component says about itself, which may be nothing."""
    own = component.get("config")
    if own is not None and not isinstance(own, Mapping):
        raise ValueError(f"{where}.config: got {own!r}, expected keys with values.")
    return {} if own is None else own


def algorithm_of(agent: Mapping[str, Any]) -> str:
    """Return the name of the algorithm that a whole agent is."""
    for name, component in ALGORITHMS.items():
        if component.__name__ == agent.get("name"):
            return name
    names = ", ".join(component.__name__ for component in ALGORITHMS.values())
    raise ValueError(f"agent.name: got {agent.get('name')!r}, expected one of {names}.")


def _build(where: str, component: Mapping[str, Any]) -> Any:
    """Build a component that is part of an experiment; errors are one line and begin with its place there."""
    return config.check(Experiment, {where: component}, (where,))[where]


def _check_views(buffer: Buffer, remembers: bool) -> None:
    """Refuse single transitions for a memory, and sequences without one, before networks meet wrong shapes."""
    if isinstance(buffer, Rollout):
        return
    for part in buffer.buffers if isinstance(buffer, Mixture) else (buffer,):
        view = part.view
        while isinstance(view, Hindsight):
            view = view.view
        if remembers and isinstance(view, NStep):
            raise ValueError("an agent with a memory learns from sequences; give the buffer the view Sequence.")
        if not remembers and isinstance(view, Sequence):
            raise ValueError("sequences are for agents with a memory; give the torso one, or the buffer another view.")


def _view(settings: Settings, env: Environment | None) -> View:
    if settings.remembers:
        view = Sequence(settings.sequence_length, settings.burn_in, gamma=settings.gamma)
    else:
        view = NStep(settings.n_step, settings.gamma)
    if settings.hindsight == "none" or env is None:
        return view
    if env.goal is None:
        raise ValueError(
            f"Settings(hindsight={settings.hindsight!r}): {settings.environment} has no goals that could be exchanged; "
            "use an environment with goals, such as BitFlip15-v0 or PointReach-v0, or none."
        )
    return Hindsight(view, **env.goal._asdict(), strategy=settings.hindsight, ratio=settings.hindsight_ratio)
