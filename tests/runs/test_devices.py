"""Runs whose seeds are shared by several devices."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import signal
import subprocess
import sys
import types
from pathlib import Path

import chex
import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from support import short_runs
from support.short_runs import FEW, SETTINGS, SharedPrograms, metrics_without_times

from algorithms import load_policy
from algorithms.runs import command_line, devices, memory_need, presets, run
from algorithms.runs.build import build, build_completed, complete
from algorithms.runs.on_devices import OnDevices
from algorithms.runs.run_folder import RunFolder
from algorithms.runs.settings import Settings
from algorithms.runs.side_by_side import way_for
from algorithms.training.metrics import Sums
from jaxrl_buffers import _processes as processes

ROOT = Path(run.__file__).parents[2]
PLAN = dataclasses.replace(SETTINGS.plan, num_envs=4, total_steps=140, test_every=40, devices=2)
ON_TWO = dataclasses.replace(SETTINGS, plan=PLAN, num_seeds=1)


def plain(state):
    return jax.device_get(jax.tree.map(lambda leaf: leaf, state._replace(key=jax.random.key_data(state.key))))


def taken_over(path, num_devices):
    """Return the state of a run after so many devices have restored it and saved it again."""
    before, after = RunFolder(path), RunFolder(path.with_name(f"on_{num_devices}"))
    settings = before.settings()
    settings = dataclasses.replace(settings, plan=dataclasses.replace(settings.plan, devices=num_devices))
    saved = run.compile_programs(settings).saved
    packed, progress = before.restore(saved.shapes)
    after.create(settings, begun=(saved.pack(saved.unpack(packed)), progress))
    return run.restore(after.path)


@pytest.mark.parametrize("num_seeds", [1, 2])
def test_a_run_that_was_stopped_goes_on(tmp_path, monkeypatch, num_seeds):
    """The same devices give the same bits, whether the run is stopped and resumed or not; others take over all."""

    def stop(report):
        if report.phase == "training":
            os.kill(os.getpid(), signal.SIGTERM)

    settings = dataclasses.replace(ON_TWO, num_seeds=num_seeds)
    with SharedPrograms(settings).shared():
        result = run.start(settings, tmp_path / "whole", FEW)
        with pytest.raises(run.Interrupted):
            run.start(settings, tmp_path / "parts", FEW._replace(on_chunk=stop))
        run.resume(tmp_path / "parts", FEW)
    assert len(result["return_of_seeds"]) == num_seeds
    whole, parts = (run.restore(tmp_path / name) for name in ("whole", "parts"))
    chex.assert_trees_all_equal(plain(whole), plain(parts))
    assert whole.collector.env.episode_length.shape == (num_seeds, 4)
    assert whole.buffer.storage.data.reward.shape[::2] == (num_seeds, 4)
    one, other = (metrics_without_times(RunFolder(tmp_path / name)) for name in ("whole", "parts"))
    assert one == other
    assert one[-1]["steps"] == 140
    assert load_policy(tmp_path / "whole")(np.zeros(4, np.float32)) in (0, 1)
    for number in (1, 4):
        chex.assert_trees_all_equal(plain(taken_over(tmp_path / "whole", number)), plain(whole))
    if num_seeds == 1:
        later = dataclasses.replace(settings, plan=dataclasses.replace(PLAN, total_steps=160), gamma=0.9)
        checked = []
        monkeypatch.setattr(memory_need, "check", checked.append)
        assert run.fork(tmp_path / "whole", later, tmp_path / "fork", FEW)["steps"] == 160
        for state in checked:  # memory for all environments on one device is never asked for
            assert all(isinstance(leaf.sharding, NamedSharding) for leaf in jax.tree.leaves(state))
        assert checked
    else:
        assert run.resume(tmp_path / "parts", FEW, total_steps=160, num_devices=1)["steps"] == 160


def test_sums_of_metrics_on_another_number_of_devices():
    """What is added up and dealt out again reads as the same metrics."""
    rng = np.random.default_rng(0)
    names = ("loss_q",)
    totals = rng.integers(1, 9, (2, 3, len(Sums.zero(names).totals))).astype(np.float32)
    totals[..., 0] = 6  # all devices make the same number of updates
    first = np.array([[[0, 7], [5, 0], [0, 9]]] * 2, np.int32)
    one = Sums(names, totals, first).added_up(axis=1)
    assert one.first_steps.tolist() == [[5, 7]] * 2
    np.testing.assert_allclose(one.total("episodes"), totals[..., 1].sum(1))
    np.testing.assert_allclose(one.total("loss_q"), totals[..., -1].mean(1), rtol=1e-6)
    again = one.dealt_out(axis=1, num_devices=4)
    assert again.totals.shape[:2] == again.first_steps.shape[:2] == (2, 4)
    np.testing.assert_allclose(again.added_up(axis=1).totals, one.totals, rtol=1e-6)
    assert (again.total("num_updates") == 6).all()


def test_settings_that_cannot_be_split():
    def built(plan=PLAN, **changes):
        return build(dataclasses.replace(ON_TWO, plan=plan, **changes))

    with pytest.raises(ValueError, match="is stepped on the host"):
        built(environment="gymnasium:CartPole-v1")
    with pytest.raises(ValueError, match="--dataset and --devices"):
        built(dataset={"path": "data.npz"})
    with pytest.raises(ValueError, match="largest weight of a batch"):
        built(sampler={"name": "prioritized", "weighting": "batch"})


def test_what_several_processes_have(monkeypatch):
    """Each has a part of the run: of one seed, or some of the seeds. Nothing is done by all of them."""
    plan = dataclasses.replace(PLAN, devices=1)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert isinstance(way_for(2), OnDevices)
    with pytest.raises(ValueError, match=r"is stepped on the host.*devices=1 and 2 processes; use one of each"):
        build(dataclasses.replace(ON_TWO, plan=plan, environment="gymnasium:CartPole-v1"))
    with pytest.raises(ValueError, match="not split over processes"):
        build(dataclasses.replace(ON_TWO, plan=plan, dataset={"path": "data.npz"}))
    with pytest.raises(ValueError, match="2 processes have 8 devices in all, and must use all of them; give --dev"):
        devices.check(dataclasses.replace(ON_TWO, num_seeds=3))
    devices.check(dataclasses.replace(ON_TWO, num_seeds=4))
    assert [devices.on_resume(dataclasses.replace(ON_TWO, num_seeds=number)) for number in (1, 2, 3, 4, 8)] == [
        *(8, 4, 8, 2, 2)
    ]
    monkeypatch.setattr(jax, "process_count", lambda: 1)
    assert devices.on_resume(ON_TWO) == 2


def test_only_the_first_process_tells(monkeypatch):
    told = []
    options = run.Options(on_notice=told.append)
    options.of_process().on_notice("first")
    monkeypatch.setattr(processes, "job", lambda: types.SimpleNamespace(index=1, count=2))
    for given in (options, run.Options()):  # whose default is a warning
        given.of_process().on_notice("second")
    assert told == ["first"]


def test_weights_of_a_batch_that_nobody_asked_for(monkeypatch):
    """A preset that has them can be split, with a note; one who asks for them gets the reason why not."""
    sampler = {"name": "prioritized", "alpha": 0.3, "weighting": "batch"}
    preset = presets.read("ddqn", "CartPole-v1") | {"sampler": sampler}
    monkeypatch.setattr(presets, "read", lambda *_, **__: preset)
    command = command_line.parse(["ddqn", "CartPole-v1", "--devices", "8"])
    assert command.settings.sampler == sampler | {"weighting": "buffer"}
    assert (command.notice or "").startswith('the preset has weighting="batch", which several devices cannot have')
    assert build(command.settings).plan.devices == 8
    for words in ([], ["--devices", "1"]):
        command = command_line.parse(["ddqn", "CartPole-v1", *words])
        assert (command.settings.sampler, command.notice) == (sampler, None)
    asked = command_line.parse(["ddqn", "CartPole-v1", "--devices", "8", "--sampler.weighting", "batch"])
    with pytest.raises(ValueError, match="largest weight of a batch"):
        build(asked.settings)
    nested = dataclasses.replace(ON_TWO, sampler={"name": "recent", "base": sampler})
    assert devices.without_batch_weights(nested)[0].sampler == {
        "name": "recent",
        "base": sampler | {"weighting": "buffer"},
    }
    assert devices.without_batch_weights(ON_TWO) == (ON_TWO, None)


def test_how_many_devices_a_run_uses(monkeypatch):
    """On an accelerator all that divide the plan, seeds first; on a CPU one."""
    unasked = Settings("ddqn", "CartPole-v1", dataclasses.replace(short_runs.PLAN, num_envs=4))
    assert complete(unasked).plan.devices == 1
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert [devices.devices_for(PLAN, num_seeds) for num_seeds in (1, 2, 3, 4, 8)] == [4, 4, 4, 2, 1]
    assert complete(unasked).plan.devices == 4
    batch = {"name": "prioritized", "weighting": "batch"}
    assert complete(dataclasses.replace(unasked, sampler=batch)).plan.devices == 1
    assert complete(dataclasses.replace(unasked, plan=PLAN)).plan.devices == 2
    assert isinstance(way_for(3, devices=2), OnDevices)


IDLE = {
    "sac Pendulum-v1": "uses 1 of 8 devices, because num_envs is 1; --num-envs 8 would use all.",
    "ppo CartPole-v1": "uses 2 of 8 devices, because mini_batch_size is 250; --mini-batch-size 256 would use all.",
    "sac Pendulum-v1 --num-envs 12 --num-seeds 2 --mini-batch-size 30": "uses 4 of 8 devices, because mini_batch_size "
    "is 30; --mini-batch-size 32 would use all.",
    "sac Pendulum-v1 --num-envs 12 --mini-batch-size 30": "uses 2 of 8 devices, because num_envs is 12 and "
    "mini_batch_size is 30; --num-envs 16 --mini-batch-size 32 would use all.",
    "ddqn CartPole-v1 --num-envs 8 --sampler prioritized --sampler.weighting batch": "uses 1 of 8 devices; on 8 it "
    "would be refused: Sharded(): the sampler is",
}


@pytest.mark.parametrize("words", IDLE)
def test_devices_that_are_left_idle_are_told_of(words, monkeypatch):
    """Unless the user has asked for it; and with the numbers of the line none is."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    told = []
    build_completed(command_line.parse(words.split()).settings, told.append)
    assert len(told) == 1
    assert told[0].startswith(IDLE[words])
    better = told[0].partition("; ")[2].removesuffix(" would use all.") if "would use all" in told[0] else "--devices 1"
    settings, _ = build_completed(command_line.parse([*words.split(), *better.split()]).settings, told.append)
    assert settings.plan.devices == ({2: 4, 1: 8}[settings.num_seeds] if better != "--devices 1" else 1)
    assert len(told) == 1


@pytest.mark.parametrize("begin", [run.start, functools.partial(run.fork, "origin")])
def test_runs_tell_of_idle_devices(begin, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyError("before anything is trained")

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(run, "_prepared", stop)
    told, settings = [], Settings("ddqn", "CartPole-v1", dataclasses.replace(short_runs.PLAN, num_envs=4))
    with pytest.raises(KeyError, match="before anything"):
        begin(settings, tmp_path / "run", run.Options(on_notice=told.append))
    assert [line.partition(";")[0] for line in told] == ["uses 4 of 8 devices, because num_envs is 4"]


def test_devices_of_a_cpu(tmp_path):
    """`--devices` makes as many of the CPU as are needed, for a new run and for one that is resumed."""
    environment = {name: value for name, value in os.environ.items() if name != devices.NUM_CPU_DEVICES}

    def train(*arguments):
        command = [sys.executable, str(ROOT / "scripts" / "train.py"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)

    options = "--num-envs 6 --devices 3 --total-steps 84 --start-steps 60 --update-every 12 --num-updates 1"
    options += " --mini-batch-size 6 --test-every 0 --final-episodes 1 --hidden-sizes 8 --out run --sampler uniform"
    done = train("ddqn", "CartPole-v1", *options.split())
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["plan"]["devices"] == 3
    done = train("--resume", "run", "--total-steps", "96")
    assert (done.returncode, done.stderr) == (0, "")
    environment[devices.NUM_CPU_DEVICES] = "2"
    done = train("--resume", "run", "--total-steps", "108")
    assert done.returncode == 2
    assert done.stderr.startswith("train.py: 3 devices are needed, but there are 2")
    done = train("ddqn", "CartPole-v1", "--num-envs", "10", "--devices", "4")
    assert done.returncode == 2
    assert done.stderr == "train.py: Plan(num_envs=10): `num_envs` must be a multiple of devices=4; 8 or 12 would do.\n"
