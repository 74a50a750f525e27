"""A process of an environment that dies: the error names the environment, and nobody waits for ever."""

from __future__ import annotations

import re
import time
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from support import dying
from support.scripts import load_script

from algorithms.environments.gymnasium import from_factory
from algorithms.runs.host_loop import HostLoop

SOON = 20  # seconds; a process that was not told to end would be waited for without end
MESSAGE = (
    "Dying failed in `step`: the process of environment 1 ended by itself, with exit code 7; find out what ends it"
)


def _step_often(steps):
    for _ in range(dying.STEPS + 1):
        steps.step(np.zeros(2, int))
        time.sleep(0.05)


@pytest.mark.parametrize("make", [dying.in_step, dying.between_steps])
def test_a_dead_process_is_named_and_the_others_end(make):
    steps = from_factory(make, "Dying", use_processes=True).start(2, seed=0)
    processes, begun = steps._vector.processes, time.monotonic()
    with pytest.raises(OSError, match=re.escape(MESSAGE)):
        _step_often(steps)
    steps.close()
    assert time.monotonic() - begun < SOON
    assert not any(process.is_alive() for process in processes)


def test_a_process_that_dies_unseen_does_not_keep_the_others_from_ending():
    steps = from_factory(dying.between_steps, "Dying", use_processes=True).start(2, seed=0)
    processes = steps._vector.processes
    for _ in range(dying.STEPS):
        steps.step(np.zeros(2, int))
    processes[1].join(SOON)
    steps.close()
    assert not any(process.is_alive() for process in processes)


def test_a_process_that_dies_at_once_is_named():
    env = from_factory(dying.at_once, "Dying", use_processes=True)
    with pytest.raises(OSError, match="Dying: a process ended before its environment was made"):
        env.start(2, seed=0)


def test_the_rest_is_closed_if_one_cannot_be_closed():
    closed, loop = [], HostLoop.__new__(HostLoop)

    def close(name):
        closed.append(name)
        if name == "tests":
            raise OSError("cannot be closed")

    steps, tests, worker = (SimpleNamespace(close=partial(close, name)) for name in ("steps", "tests", "worker"))
    loop._tests, loop._collectors, loop._workers = {1: tests}, [SimpleNamespace(steps=steps)], [worker]
    with pytest.raises(OSError, match="cannot be closed"):
        loop.close()
    assert closed == ["worker", "steps", "tests"]
    loop.close()
    assert len(closed) == 3


def test_a_run_ends_with_one_line(tmp_path, capsys):
    words = "ddqn support.dying:in_step --processes --num-envs 2 --total-steps 100 --start-steps 40 --hidden-sizes 4"
    words += " --mini-batch-size 4"
    assert load_script("train").main([*words.split(), "--out", str(tmp_path / "run")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("train.py: support.dying:in_step failed in `step`: the process of environment 1 ended")
