"""Training on many devices: only gradients and a few numbers cross between them, on 8 devices as on 256."""

from __future__ import annotations

import jax.numpy as jnp
import pytest
from compiled_programs import collectives, report
from compilers import TOPOLOGIES, devices
from parallel_programs import Task, bytes_of_device, num_parameters, run, shapes

import jaxrl_buffers as jb
from algorithms import (
    DDQN,
    PPO,
    AttractionKL,
    Normalized,
    Plan,
    Recurrent,
    RewardPrediction,
    Torso,
    environments,
)
from algorithms.addons import behavior
from algorithms.networks.distributions import Categorical
from algorithms.training import parallel

NUM_METRICS = 8  # of SAC
COUNTS = {kind: [count for count in counts if count > 1] for kind, counts in TOPOLOGIES.items()}


def test_what_crosses_between_devices(kind):
    """From 2^21 slots on, a TPU would hold a copy of a ring whose rows are not padded; see `rows.empty`."""
    sizes = []
    for count, slots in ((COUNTS[kind][0], 2**22), (COUNTS[kind][-1], 2**20)):
        task = Task(slots=slots, platform=kind)
        mesh = parallel.make_mesh(count, devices=devices(kind, count))
        like = task.shapes(mesh)
        compiled = task.run(mesh, 3).lower(like).compile()
        crossing = collectives(compiled)
        assert {one.operation for one in crossing} == {"all-reduce"}, crossing
        assert len(crossing) <= 4
        sizes.append(sorted(one.num_bytes for one in crossing))
        assert sum(sizes[-1]) <= 4 * (num_parameters(like) + NUM_METRICS + 32) + 64
        assert max(sizes[-1]) >= 4 * num_parameters(like)  # the gradients were found
        memory = compiled.memory_analysis()
        share = bytes_of_device(like)
        assert share <= memory.argument_size_in_bytes < 1.1 * share + 2**20
        assert memory.temp_size_in_bytes < share // 4  # networks and batches
        assert report(compiled, task.slots, whole=True).copies == []
    assert sizes[0] == sizes[1]


def with_memory(num_envs):
    agent = Recurrent(DDQN(CART, Torso((8,), memory="gru", memory_size=4)))
    return agent, jb.sequences(30, num_envs, sequence_length=4, sampler=jb.Prioritized())


def with_three_samplers(num_envs):
    """Return an agent and a buffer whose samplers exchange most."""
    samplers = jb.Combined(jb.Prioritized(), (jb.Uniform(), jb.LastN(2.0)), (0.25, 0.25))
    return DDQN(CART, SMALL), jb.ReplayBuffer(samplers, length=30, num_envs=num_envs)


def with_addons(num_envs):
    addons = AttractionKL(BEHAVIORS, scale=0.3), RewardPrediction()
    return DDQN(CART, SMALL, addons=addons), jb.prioritized(30, num_envs)


def with_cursors(num_envs):
    return DDQN(CART, SMALL), jb.ReplayBuffer(jb.LastN(3.0), length=30, num_envs=num_envs, lockstep=False)


CARTPOLE = environments.make("CartPole-v1")
CART, SMALL = CARTPOLE.action_space, Torso((8,))
BEHAVIORS = tuple(
    behavior(lambda obs, p=p: Categorical(jnp.log(jnp.broadcast_to(jnp.array(p), (obs.shape[0], 2)))))
    for p in ([0.8, 0.2], [0.1, 0.9])
)
# How many collectives there are in one iteration with one update, as the guide says.
CASES = {
    "memory": (with_memory, 4),
    "three_samplers": (with_three_samplers, 4),
    "uniform": (lambda num: (DDQN(CART, SMALL), jb.uniform(30, num)), 2),
    "mixture": (lambda num: (DDQN(CART, SMALL), jb.Mixture((jb.prioritized(30, num), jb.uniform(30, num)))), 4),
    "adaptive": (lambda num: (DDQN(CART, SMALL), jb.emphasize_recent(30, num, adaptive=True)), 3),
    "cursors": (with_cursors, 3),
    "normalized": (lambda num: (Normalized(DDQN(CART, SMALL)), jb.prioritized(30, num)), 5),
    "addons": (with_addons, 5),
    "ppo": (lambda num: (PPO(CART, SMALL), jb.rollout(8, num)), 4),
}
COMPARED = {"memory": "tpu", "three_samplers": "gpu"}


@pytest.mark.parametrize("name", CASES)
def test_numbers_cross_together(kind, name):
    """Whatever agents and samplers need from all devices, in few collectives: as many for all numbers of devices.

    Of some cases, two numbers of devices are compared for one kind of accelerator. The others are compiled for GPUs.
    """
    if name not in COMPARED and kind == "tpu":
        pytest.skip("compiled for GPUs only")
    found = []
    for count in [COUNTS[kind][0], COUNTS[kind][-1]][: 2 if COMPARED.get(name) == kind else 1]:
        like, crossing = crossing_of(CASES[name][0], kind, count)
        assert {one.operation for one in crossing} == {"all-reduce"}, crossing
        assert len(crossing) == CASES[name][1], crossing
        sizes = sorted(one.num_bytes for one in crossing)
        assert sum(sizes) <= 4 * (num_parameters(like) + len(like.sums.names) + 32) + 64
        found.append(sizes)
    assert found[0] == found[-1]


def crossing_of(make, kind, count):
    """Return the shapes of the state, and the collectives of a program in which each device has one environment."""
    mesh = parallel.make_mesh(count, devices=devices(kind, count))
    agent, buffer = make(count)
    rows, options = 1, {"start_steps": 20 * count, "num_updates": 1}
    if isinstance(buffer, jb.Mixture):
        buffer = buffer.replace(buffers=tuple(part.replace(platform=kind) for part in buffer.buffers))
    elif isinstance(buffer, jb.ReplayBuffer):
        buffer = buffer.replace(platform=kind)
    else:
        rows, options = buffer.length, {"start_steps": 0, "num_updates": 2}
    options |= {"num_envs": count, "update_every": rows * count, "mini_batch_size": 4 * count, "test_every": 0}
    plan = Plan(400 * count, **options)
    plan = parallel.on_mesh(mesh, plan, agent, buffer)
    parts = *parallel.parts(agent, buffer, plan), CARTPOLE, plan
    like = shapes(parts, mesh)
    return like, collectives(run(parts, mesh, 3).lower(like).compile())


def test_the_share_of_a_device_does_not_depend_on_their_number(kind):
    shares = [
        bytes_of_device(Task(platform=kind).shapes(parallel.make_mesh(count, devices=devices(kind, count))))
        for count in COUNTS[kind]
    ]
    assert len(set(shares)) == 1
    words = 16 if kind == "tpu" else 9  # of a row
    assert shares[0] == pytest.approx(2**20 * 4 * (words + 2), rel=0.1)  # and a priority and its leaf
