"""Every buffer kind once: contract, in-place and model tests run over this list."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp

import jaxrl_buffers as jb


def relabel(transition, goal):
    """Put the goal in the place of the observed `x`: its rows can be told by it."""
    reached = jnp.all(transition.next_obs["x"] == goal)
    return transition._replace(
        obs=transition.obs | {"x": goal}, reward=jnp.where(reached, 0.0, -1.0), terminated=reached
    )


BUFFERS: dict[str, Callable[[int, int], jb.ReplayBuffer]] = {
    "uniform": lambda length, num_envs: jb.uniform(length, num_envs),
    "stratified": lambda length, num_envs: jb.uniform(length, num_envs, method="stratified"),
    "distinct": lambda length, num_envs: jb.uniform(length, num_envs, method="distinct"),
    "balanced": lambda length, num_envs: jb.ReplayBuffer(
        jb.Uniform("stratified", balanced=True), jb.Sequence(2), length=length, num_envs=num_envs, lockstep=False
    ),
    "n_step": lambda length, num_envs: jb.n_step(length, num_envs, n=3, gamma=0.9),
    "sequences": lambda length, num_envs: jb.sequences(length, num_envs, sequence_length=4, period=2, burn_in=1),
    "prioritized": lambda length, num_envs: jb.prioritized(length, num_envs),
    "prioritized_n_step": lambda length, num_envs: jb.prioritized(length, num_envs, n=3, gamma=0.9),
    "prioritized_wide": lambda length, num_envs: jb.n_step(
        length, num_envs, n=3, gamma=0.9, sampler=jb.Prioritized(fan_out=128)
    ),
    "prioritized_sequences": lambda length, num_envs: jb.sequences(
        length, num_envs, sequence_length=3, period=2, n=2, sampler=jb.Prioritized(stratified=False, weighting="batch")
    ),
    "within_episode": lambda length, num_envs: jb.sequences(
        length, num_envs, sequence_length=3, within_episode=True, sampler=jb.Uniform("stratified")
    ),
    "prioritized_within_episode": lambda length, num_envs: jb.sequences(
        length,
        num_envs,
        sequence_length=2,
        period=2,
        within_episode=True,
        sampler=jb.Prioritized(weighting="alf"),
        lockstep=False,
    ),
    "prioritized_per_env": lambda length, num_envs: jb.ReplayBuffer(
        jb.Prioritized(weighting="alf"), jb.NStep(n=2), length=length, num_envs=num_envs, lockstep=False
    ),
    "recent_prioritized": lambda length, num_envs: jb.emphasize_recent(
        length, num_envs, n=2, sampler=jb.Prioritized(), c_min=3.0, adaptive=True
    ),
    "mix": lambda length, num_envs: jb.ReplayBuffer(
        jb.Combined(jb.Recent(jb.Prioritized(), c_min=8.0), (jb.LastN(2.0), jb.Uniform("stratified")), (0.3, 0.2)),
        jb.Sequence(2),
        length=length,
        num_envs=num_envs,
        lockstep=False,
    ),
    "frames": lambda length, num_envs: jb.ReplayBuffer(
        jb.Prioritized(),
        jb.NStep(n=2),
        length=length,
        num_envs=num_envs,
        frames=jb.Frames(stack=2, axis=0, stacked="image", num_finals=length),
    ),
    "episodic": lambda length, num_envs: jb.ReplayBuffer(
        jb.Episodic(), jb.NStep(), length=length, num_envs=num_envs, returns=jb.EpisodicReturns(default=-9.0)
    ),
    "hindsight": lambda length, num_envs: jb.hindsight(
        length, num_envs, achieved="next_obs.x", relabel=relabel, n=3, gamma=0.9, sampler=jb.Prioritized()
    ),
}


def on_tpu(make: Callable[[int, int], jb.ReplayBuffer], platform: str = "tpu") -> Callable[[int, int], jb.ReplayBuffer]:
    """Return buffers laid out for a TPU, or another platform: rows packed into words, and wide trees."""
    return lambda length, num_envs: make(length, num_envs).replace(platform=platform)


# Trees of the widths that no platform has by default, for the contract and model tests.
FAN_OUTS: dict[str, Callable[[int, int], jb.ReplayBuffer]] = {
    "fan_out_4": lambda length, num_envs: jb.ReplayBuffer(
        jb.Prioritized(fan_out=4), jb.NStep(n=2), length=length, num_envs=num_envs
    ),
    "fan_out_32": lambda length, num_envs: jb.ReplayBuffer(
        jb.Prioritized(fan_out=32), jb.NStep(n=2), length=length, num_envs=num_envs, lockstep=False
    ),
}
# The same buffers in the other layout, which is only code and runs on any platform.
ON_TPU = {f"{name}_on_tpu": on_tpu(make) for name, make in (BUFFERS | FAN_OUTS).items()}
# A GPU has the rows of a TPU without padding, and trees of half the width.
ON_GPU = {f"{name}_on_gpu": on_tpu(BUFFERS[name], "gpu") for name in ("prioritized_n_step", "frames")}
# With several buffers behind one interface; their state has no storage of its own.
ALL: dict[str, Callable[[int, int], jb.ReplayBuffer | jb.Mixture]] = {
    **BUFFERS,
    "mixture": lambda length, num_envs: jb.Mixture(
        (jb.prioritized(length, num_envs, n=2), jb.uniform(2 * length, num_envs)), (2, 1)
    ),
}
