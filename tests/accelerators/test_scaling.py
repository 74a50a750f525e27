"""Training on many devices: only gradients and a few numbers cross between them, on 8 devices as on 256."""

from __future__ import annotations

import pytest
from compiled_programs import collectives, report
from compilers import TOPOLOGIES, devices
from parallel_programs import Task, bytes_of_device, num_parameters, run, shapes

import jaxrl_buffers as jb
from algorithms import DDQN, Plan, Recurrent, Torso, environments
from algorithms.training import parallel

NUM_METRICS = 8  # of SAC
COUNTS = {kind: [count for count in counts if count > 1] for kind, counts in TOPOLOGIES.items()}


def test_what_crosses_between_devices(kind):
    task, sizes = Task(platform=kind), []
    for count in (COUNTS[kind][0], COUNTS[kind][-1]):
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
        assert report(compiled, task.slots).copies == []
    assert sizes[0] == sizes[1]


def with_memory(num_envs):
    agent = Recurrent(DDQN(CARTPOLE.action_space, Torso((8,), memory="gru", memory_size=4)))
    return agent, jb.sequences(30, num_envs, sequence_length=4, sampler=jb.Prioritized())


def with_three_samplers(num_envs):
    """Return an agent and a buffer whose samplers exchange most."""
    samplers = jb.Combined(jb.Prioritized(), (jb.Uniform(), jb.LastN(2.0)), (0.25, 0.25))
    return DDQN(CARTPOLE.action_space, Torso((8,))), jb.ReplayBuffer(samplers, length=30, num_envs=num_envs)


CARTPOLE = environments.make("CartPole-v1")
CASES = {"memory": with_memory, "three_samplers": with_three_samplers}
COMPARED = {"memory": "tpu", "three_samplers": "gpu"}


@pytest.mark.parametrize("name", CASES)
def test_numbers_cross_together(kind, name):
    """Whatever agents and samplers need from all devices: four collectives, the same for all numbers of devices.

    Of each case, two numbers of devices are compared for one kind of accelerator.
    """
    found = []
    for count in [COUNTS[kind][0], COUNTS[kind][-1]][: 2 if COMPARED[name] == kind else 1]:
        mesh = parallel.make_mesh(count, devices=devices(kind, count))
        agent, buffer = CASES[name](count)
        buffer = buffer.replace(platform=kind)
        plan = Plan(
            400 * count,
            num_envs=count,
            start_steps=20 * count,
            update_every=count,
            num_updates=1,
            mini_batch_size=3 * count,
            test_every=0,
        )
        plan = parallel.on_mesh(mesh, plan, agent, buffer)
        parts = *parallel.parts(agent, buffer, plan), CARTPOLE, plan
        like = shapes(parts, mesh)
        crossing = collectives(run(parts, mesh, 3).lower(like).compile())
        assert {one.operation for one in crossing} == {"all-reduce"}, crossing
        assert len(crossing) <= 4, crossing
        sizes = sorted(one.num_bytes for one in crossing)
        assert sum(sizes) <= 4 * (num_parameters(like) + len(like.sums.names) + 32) + 64
        found.append(sizes)
    assert found[0] == found[-1]


def test_the_share_of_a_device_does_not_depend_on_their_number(kind):
    shares = [
        bytes_of_device(Task(platform=kind).shapes(parallel.make_mesh(count, devices=devices(kind, count))))
        for count in COUNTS[kind]
    ]
    assert len(set(shares)) == 1
    assert shares[0] == pytest.approx(2**20 * 4 * 12, rel=0.3)  # a row of ten words, a priority and its leaf
