"""Every agent and every kind of buffer in the whole training program on 256 devices: what crosses between them."""

from __future__ import annotations

import jax.numpy as jnp
import pytest
from support.crossing import REDUCTIONS, crossing

import jaxrl_buffers as jb
from algorithms import (
    DDPG,
    DDQN,
    MPO,
    PPO,
    SAC,
    TD3,
    AttractionKL,
    Averaged,
    Normalized,
    Plan,
    Recurrent,
    RewardPrediction,
    Torso,
    environments,
)
from algorithms.addons import behavior
from algorithms.networks.distributions import Categorical

ROWS, ENVS = 10_000, 64  # of a device: whatever has an axis of either is larger than the bound allows
SMALL, GRU = Torso((8,)), Torso((8,), memory="gru", memory_size=4)
CARTPOLE, PENDULUM = environments.make("CartPole-v1"), environments.make("Pendulum-v1")
CART, PEND = CARTPOLE.action_space, PENDULUM.action_space
PER, ONE_STEP = jb.Prioritized(), jb.NStep()


def replay(num_envs, sampler=PER, view=ONE_STEP, **options):
    return jb.ReplayBuffer(sampler, view, length=ROWS, num_envs=num_envs, **options)


BUFFERS = {
    "uniform": lambda num: replay(num, jb.Uniform()),
    "uniform_balanced": lambda num: replay(num, jb.Uniform("stratified", balanced=True), lockstep=False),
    "prioritized": lambda num: replay(num, view=jb.NStep(n=3)),
    "prioritized_alf": lambda num: replay(num, jb.Prioritized(weighting="alf"), lockstep=False),
    "recent": lambda num: replay(num, jb.Recent(jb.Prioritized(), adaptive=True)),
    "recent_uniform": lambda num: replay(num, jb.Recent(), lockstep=False),
    "last_n": lambda num: replay(num, jb.LastN(3.0, max_share=0.5), lockstep=False),
    "combined": lambda num: replay(num, jb.Combined(jb.Recent(jb.Prioritized()), (jb.LastN(9.0),), (0.25,))),
    "episodic": lambda num: replay(num, jb.Episodic(), returns=jb.EpisodicReturns(default=-9.0)),
    "hindsight": lambda num: replay(num, view=jb.Hindsight(jb.NStep(n=3), achieved="next_obs", relabel=as_reached)),
    "frames": lambda num: replay(num, frames=jb.Frames(4)),
    "mixture": lambda num: jb.Mixture((replay(num), replay(num, jb.Uniform())), (3, 1)),
}


def as_reached(transition, goal):
    return transition._replace(obs=goal)


def replayed(agent, env=CARTPOLE, **options):
    return agent, lambda num: replay(num, **options), env


BEHAVIORS = tuple(
    behavior(lambda obs, p=p: Categorical(jnp.log(jnp.broadcast_to(jnp.array(p), (obs.shape[0], 2)))))
    for p in ([0.8, 0.2], [0.1, 0.9])
)
ADDONS = AttractionKL(BEHAVIORS, scale=0.3), RewardPrediction()
AGENTS = {
    "ddqn_dueling": replayed(Averaged(DDQN(CART, SMALL, dueling=True), 0.9)),
    "ddpg": replayed(DDPG(PEND, SMALL, noise="ornstein_uhlenbeck"), PENDULUM),
    "td3": replayed(TD3(PEND, SMALL, noise="pink"), PENDULUM),
    "sac": replayed(SAC(PEND, SMALL), PENDULUM),
    "sac_discrete": replayed(SAC(CART, SMALL, annealing_updates=100)),
    "mpo": replayed(MPO(PEND, SMALL, num_samples=3), PENDULUM),
    "mpo_passes": replayed(MPO(CART, SMALL, num_passes=2)),
    "normalized": replayed(Normalized(SAC(PEND, SMALL)), PENDULUM),
    "addons": replayed(DDQN(CART, SMALL, addons=ADDONS)),
    "memory": replayed(Recurrent(DDQN(CART, GRU)), view=jb.Sequence(4, burn_in=1)),
    "memory_sac": replayed(Recurrent(SAC(PEND, GRU)), PENDULUM, view=jb.Sequence(4, within_episode=True)),
    "ppo": (PPO(PEND, SMALL), lambda num: jb.rollout(8, num), PENDULUM),
    "ppo_memory": (Normalized(Recurrent(PPO(CART, GRU))), lambda num: jb.rollout(8, num), CARTPOLE),
}
CASES = {name: (DDQN(CART, SMALL), make, CARTPOLE) for name, make in BUFFERS.items()} | AGENTS


def plan_for(num_devices, is_on_policy):
    """Return a plan in which every iteration makes one update from one row, or two from a rollout."""
    num_envs = ENVS * num_devices
    options = {"num_envs": num_envs, "mini_batch_size": 32 * num_devices, "test_every": 0}
    if is_on_policy:
        return Plan(16 * num_envs, start_steps=0, update_every=8 * num_envs, num_updates=16, **options)
    return Plan(40 * num_envs, start_steps=20 * num_envs, update_every=num_envs, num_updates=1, **options)


def of_case(name, num_devices):
    agent, make, env = CASES[name]
    plan = plan_for(num_devices, is_on_policy=name.startswith("ppo"))
    return crossing(agent, make(plan.num_envs), env, plan, num_devices)


@pytest.mark.parametrize("name", CASES)
def test_only_gradients_and_a_few_numbers_cross(name):
    found = of_case(name, 256)
    num_gradients = found.num_parameters * (2 if name == "mpo_passes" else 1)  # the policy has one for each pass
    assert found.operations <= REDUCTIONS
    assert 4 * found.num_parameters <= found.num_bytes
    assert found.num_bytes <= 4 * (num_gradients + found.num_metrics + 32) + 64


def test_as_much_crosses_between_8_devices():
    assert of_case("combined", 8) == of_case("combined", 256)
