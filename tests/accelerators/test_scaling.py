"""Training on many devices: only gradients and a few numbers cross between them, on 8 devices as on 256."""

from __future__ import annotations

import pytest
from compiled_programs import collectives, report
from compilers import TOPOLOGIES, devices
from parallel_programs import Task, bytes_of_device, num_parameters

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


def test_the_share_of_a_device_does_not_depend_on_their_number(kind):
    shares = [
        bytes_of_device(Task(platform=kind).shapes(parallel.make_mesh(count, devices=devices(kind, count))))
        for count in COUNTS[kind]
    ]
    assert len(set(shares)) == 1
    assert shares[0] == pytest.approx(2**20 * 4 * 12, rel=0.3)  # a row of ten words, a priority and its leaf
