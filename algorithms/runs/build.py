"""Builds the components of a run from its settings, and refuses settings that are wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from algorithms import environments
from algorithms.environments import Described, Environment, custom
from algorithms.environments.gymnasium import HostEnvironment
from algorithms.networks import Torso, torso_for
from algorithms.optimizers import LinearDecay
from algorithms.runs import components, data_set, devices, settings_checks
from algorithms.runs.components import ACTION_SPACES, ALGORITHMS, ON_POLICY, Algorithm
from algorithms.runs.host_loop import check_actors
from algorithms.runs.settings import SIZES, Settings, is_component, replaced_settings, require_keys
from algorithms.training import parallel
from algorithms.training.evaluation import time_limit
from algorithms.training.learning import Buffer
from algorithms.training.plan import Plan, Suggested
from algorithms.types import Agent
from algorithms.wrappers.averaging import Averaged
from algorithms.wrappers.normalization import Normalized
from algorithms.wrappers.recurrence import Recurrent
from jaxrl_buffers import Frames, Hindsight, Mixture, NStep, ReplayBuffer, Sequence, config
from jaxrl_buffers._checks import one_line, shown
from jaxrl_buffers.rollouts import Rollout
from jaxrl_buffers.types import View


class Experiment(NamedTuple):
    """The components of a run."""

    agent: Agent
    buffer: Buffer
    env: Environment | HostEnvironment
    plan: Plan


def build(settings: Settings) -> Experiment:
    """Return the components of a run.

    Raises:
        ValueError: naming a setting that is wrong, or settings that do not fit together.

    Example:
        >>> settings = Settings("ddqn", "CartPole-v1", Plan(total_steps=2_000, start_steps=1_000))
        >>> build(settings).buffer.length
        100000
    """
    settings_checks.check(settings)
    env = _environment(settings)
    agent = _agent(settings, env)
    has_memory = agent.torso.memory is not None
    buffer = _buffer(settings, settings.plan, env, has_memory)
    plan = settings.plan.fitted(buffer, by_columns=has_memory)
    if isinstance(buffer, Rollout):
        buffer = _buffer(settings, plan, env, has_memory)  # it has the length of the plan's iterations
    plan.check_buffer(buffer, by_columns=has_memory, is_filled=settings.dataset is not None)
    _check_views(buffer, has_memory)
    if plan.devices > 1:
        parallel.check(buffer, plan)
    if settings.anneal:
        agent = agent.replace(schedule=LinearDecay(plan.updates(plan.num_iterations)))
    agent = Recurrent(agent) if has_memory else agent
    agent = Averaged(agent, settings.averaging) if settings.averaging else agent
    agent = Normalized(agent) if settings.normalize else agent
    return Experiment(agent, buffer, env, plan)


def complete(settings: Settings) -> Settings:
    """Return the settings with the plan that `build` makes, and with every option of the agent and the sampler.

    Example:
        >>> complete(Settings("ddqn", "CartPole-v1", Plan(total_steps=2_000))).sampler
        {'name': 'uniform', 'method': 'independent', 'balanced': False}
    """
    return build_completed(settings)[0]


def build_completed(
    settings: Settings, on_notice: Callable[[str], None] = lambda line: None
) -> tuple[Settings, Experiment]:
    """Return the settings of `complete`, and the components that `build` makes from them.

    Args:
        settings: of the run.
        on_notice: called with a line if the run leaves devices of an accelerator idle that nobody told it to.
    """
    if settings.dataset is not None:
        settings = dataclasses.replace(settings, dataset=data_set.described(settings.dataset))
    experiment = build(settings)
    if isinstance(settings.plan.devices, Suggested) and isinstance(experiment.env, Environment):
        experiment = _on_devices(settings, experiment, on_notice)
    if settings.dataset is not None:
        data_set.check(settings.dataset, experiment.env)
    replaced = replaced_settings({"agent": settings.agent})
    sizes = _sizes(settings, experiment.env).items()
    groups: dict[str, Any] = {name: value for name, value in sizes if name not in replaced}
    if not is_component(settings.agent):
        groups["agent"] = components.complete("agent", ALGORITHMS[settings.algorithm], settings.agent)
    if settings.buffer is None and settings.algorithm in ON_POLICY:
        groups["rollout"] = components.complete("rollout", Rollout, settings.rollout)
    elif settings.buffer is None:
        groups["sampler"] = components.complete_sampler(settings.sampler)
    return dataclasses.replace(settings, plan=experiment.plan, **groups), experiment


def _on_devices(settings: Settings, experiment: Experiment, on_notice: Callable[[str], None]) -> Experiment:
    """Return the components of a run that does not say on how many devices; one device if it cannot be split."""
    plan, refusal = experiment.plan, None
    number = devices.devices_for(plan, settings.num_seeds)
    if number > 1:
        try:
            experiment = build(dataclasses.replace(settings, plan=dataclasses.replace(plan, devices=number)))
        except ValueError as error:
            if jax.process_count() > 1:  # one device would leave processes without work
                raise
            number, refusal = 1, f"on {number} it would be refused: {one_line(error)}"
    if line := devices.idle(plan, settings.num_seeds, number, refusal):
        on_notice(line)
    return experiment._replace(plan=dataclasses.replace(experiment.plan, devices=number))


def _environment(settings: Settings) -> Environment | HostEnvironment:
    """Return the environment, which must be one that the algorithm can act in."""
    options = _environment_options(settings)
    try:
        env = environments.make(settings.environment, **options, **settings.env)
    except TypeError as error:
        if not settings.env:
            raise
        raise ValueError(f"env: {settings.environment} does not take {dict(settings.env)}: {error}.") from error
    env = env.with_info(settings.info) if settings.info else env
    if not isinstance(env.action_space, ACTION_SPACES[settings.algorithm]):
        fitting = [name for name, spaces in ACTION_SPACES.items() if isinstance(env.action_space, spaces)]
        raise ValueError(
            f"{settings.algorithm} cannot act in {settings.environment}, which has {env.action_space}; "
            f"use {' or '.join(fitting)}."
        )
    time_limit(env, None)  # refuses an environment that cannot be evaluated
    if isinstance(env, HostEnvironment):
        if settings.plan.devices > 1 or jax.process_count() > 1:
            raise ValueError(
                f"{settings.environment} is stepped on the host, and only environments inside the compiled program are "
                f"split: got plan.devices={settings.plan.devices} and {jax.process_count()} processes; use one of each."
            )
        check_actors(settings.actors, settings.plan.num_envs)
    else:
        _refuse_on_host(settings, ("processes", "actors", "collect_then_learn"), "runs inside the compiled program")
    return env


def _environment_options(settings: Settings) -> dict[str, Any]:
    """Return the arguments for making the environment, besides the options of its constructor."""
    options: dict[str, Any] = {"obs_dtype": None if settings.obs_dtype == "none" else settings.obs_dtype}
    if settings.environment.startswith("gymnasium:"):
        options |= {"frame_skip": settings.frame_skip, "frame_stack": settings.frame_stack}
    else:
        _refuse_on_host(settings, ("frame_skip",), "is not an Atari game of Gymnasium")
        if custom.is_own(settings.environment):
            options["frame_stack"] = settings.frame_stack
        else:
            _refuse_on_host(settings, ("frame_stack",), "is not made by Gymnasium")
    if settings.processes:
        if not custom.is_own(settings.environment) and "frame_skip" not in options:
            _refuse_on_host(settings, ("processes",), "runs inside the compiled program")
        options["use_processes"] = True
    for name in settings.env:
        if name in {*options, "use_processes"}:
            raise ValueError(f"env.{name}: got {shown(settings.env[name])}; it is a setting of its own, not of `env`.")
    return options


def _refuse_on_host(settings: Settings, names: tuple[str, ...], why: str) -> None:
    """Refuse settings that have no effect in this environment."""
    defaults = {field.name: field.default for field in dataclasses.fields(settings)}
    for name in names:
        if getattr(settings, name) != defaults[name]:
            raise ValueError(
                f"Settings({name}={getattr(settings, name)}): {settings.environment} {why}; `{name}` is for "
                "environments such as gymnasium:CartPole-v1, so leave it out."
            )


def _agent(settings: Settings, env: Described) -> Algorithm:
    """Return the bare agent, without the wrappers that the settings ask for."""
    torso = Torso(
        activation=settings.activation,
        memory=None if settings.memory == "none" else settings.memory,
        memory_size=settings.memory_size,
        **_sizes(settings, env),
    )
    if is_component(settings.agent):
        return _whole_agent(settings, env, torso)
    return components.make("agent", ALGORITHMS[settings.algorithm], settings.agent, env.action_space, torso=torso)


def _sizes(settings: Settings, env: Described) -> dict[str, Any]:
    """Return the sizes of the networks' layers: those that are given, and for the others what fits observations."""
    fitting = torso_for(env.obs)
    given = {name: tuple(value) for name in SIZES if (value := getattr(settings, name)) is not None}
    others = fitting if not given.keys() - {"hidden_sizes"} else Torso(fitting.hidden_sizes)
    return {name: getattr(others, name) for name in SIZES} | given


def _whole_agent(settings: Settings, env: Described, torso: Torso) -> Algorithm:
    """Return an agent that is given as a component. If it names no torso, it gets the torso of the settings."""
    algorithm, own = components.algorithm_of(settings.agent), settings.agent.get("config")
    if settings.algorithm != algorithm:
        raise ValueError(f"algorithm: got {settings.algorithm!r}, expected {algorithm}, because of the agent's name.")
    own = require_keys("agent.config", {} if own is None else own)
    if "action_space" in own:
        space = shown(own["action_space"])
        raise ValueError(f"agent.config.action_space: got {space}, but the environment decides it; leave it out.")
    parts = {"action_space": config.to_config(env.action_space), "torso": config.to_config(torso)}
    return _component("agent", {**settings.agent, "config": {**parts, **own}})


def _buffer(settings: Settings, plan: Plan, env: Described, has_memory: bool) -> Buffer:
    """Return the buffer for a plan."""
    if settings.buffer is not None:
        return _whole_buffer(settings.algorithm, settings.buffer, plan.num_envs)
    if settings.algorithm in ON_POLICY:
        length = plan.update_every // plan.num_envs
        return components.make("rollout", Rollout, settings.rollout, length, plan.num_envs, gamma=settings.gamma)
    sampler, view = components.make_sampler(settings.sampler), _view(settings, env, has_memory)
    frames = Frames(settings.frame_stack) if settings.frame_stack > 1 else None
    length = -(-settings.capacity // plan.num_envs)
    online = ReplayBuffer(sampler, view, length=length, num_envs=plan.num_envs, frames=frames)
    if settings.dataset is None:
        return online
    num_rows = data_set.described(settings.dataset)["rows"]
    if num_rows == 0:
        raise ValueError(
            "dataset: it has no row whose successor is known, so there is nothing to learn from; give more rows, or "
            "`next_observations`."
        )
    if num_rows < view.span:
        raise ValueError(
            f"dataset: it has {num_rows} rows, but one sample spans {view.span}; give more data, or take a smaller "
            f"{'sequence_length' if has_memory else 'n_step'}."
        )
    stored = online.replace(length=num_rows, num_envs=1)
    return Mixture((online, stored), (1 - settings.dataset_share, settings.dataset_share))


def _whole_buffer(algorithm: str, given: Mapping[str, Any], num_envs: int) -> Buffer:
    """Return a buffer that is given as a component.

    It is for `num_envs` environments unless its `config` gives another number. The buffers of a mixture must give it
    themselves, because only the first of them gets the rows of the run's environments.
    """
    buffer = _component("buffer", given)
    if (algorithm in ON_POLICY) != isinstance(buffer, Rollout):
        needed = "rollout" if algorithm in ON_POLICY else "uniform or prioritized"
        raise ValueError(f"{algorithm} does not learn from the buffer {given['name']!r}; use {needed}.")
    if isinstance(buffer, Mixture) or "num_envs" in (given.get("config") or {}):
        return buffer
    return buffer.replace(num_envs=num_envs)


def _component(where: str, given: Mapping[str, Any]) -> Any:
    """Return a whole component. Errors are one line and begin with the name of the setting."""
    return config.check(Experiment, {where: given}, (where,))[where]


def _view(settings: Settings, env: Described, has_memory: bool) -> View:
    if has_memory:
        view = Sequence(settings.sequence_length, settings.burn_in, gamma=settings.gamma, n=settings.n_step)
    else:
        view = NStep(settings.n_step, settings.gamma)
    if settings.hindsight == "none":
        return view
    if env.goal is None:
        raise ValueError(
            f"Settings(hindsight={settings.hindsight!r}): {settings.environment} has no goals to relabel; use an "
            "environment with goals, such as BitFlip15-v0 or PointReach-v0, or leave `hindsight` out."
        )
    return Hindsight(view, **env.goal._asdict(), strategy=settings.hindsight, ratio=settings.hindsight_ratio)


def _check_views(buffer: Buffer, has_memory: bool) -> None:
    """Refuse single transitions for agents with a memory, and sequences for agents without one."""
    if isinstance(buffer, Rollout):
        return
    for part in buffer.buffers if isinstance(buffer, Mixture) else (buffer,):
        view = part.view
        while isinstance(view, Hindsight):
            view = view.view
        if has_memory and isinstance(view, NStep):
            raise ValueError("an agent with a memory learns from sequences; give the buffer the view Sequence.")
        if not has_memory and isinstance(view, Sequence):
            raise ValueError("sequences are for agents with a memory; give the torso one, or the buffer another view.")
