"""Memory: what a run needs is compared with what there is before any of it is taken."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from algorithms.runs import memory_need, presets, run
from algorithms.runs.run_folder import RunFolder

SETTINGS = presets.preset("ddqn", "CartPole-v1")


def test_the_size_of_a_state_that_is_only_described():
    state = {"x": jnp.zeros((3, 5)), "flag": jnp.zeros(7, bool), "key": jax.random.key(0)}
    expected = 3 * 5 * 4 + 7 + state["key"].dtype.itemsize
    assert memory_need.num_bytes(state) == memory_need.num_bytes(jax.eval_shape(lambda: state)) == expected


@pytest.mark.parametrize("num_seeds", [1, 3])
def test_a_run_that_cannot_fit_is_refused_before_anything_is_made(num_seeds, tmp_path, monkeypatch):
    """51.7 bytes a transition; the whole ring of 100 million is never allocated."""
    monkeypatch.setattr(memory_need, "available", lambda: num_seeds * 5 * 10**9)
    settings = dataclasses.replace(SETTINGS, capacity=100_000_000, num_seeds=num_seeds)
    needed = {1: r"5\.7", 3: r"17\.1"}[num_seeds]
    there = {1: r"5\.0", 3: r"15\.0"}[num_seeds]
    message = rf"needs about {needed} GB of memory, and {there} GB are free; use a smaller --capacity, or fewer"
    with pytest.raises(ValueError, match=message):
        run.start(settings, tmp_path / "run")
    assert not list(tmp_path.iterdir())
    RunFolder(tmp_path / "run").create(settings)
    with pytest.raises(ValueError, match=message):
        run.resume(tmp_path / "run")


def test_what_fits_is_let_through(monkeypatch):
    state = jax.ShapeDtypeStruct((1000,), jnp.float32)
    for there, fits in ((4401, True), (4399, False), (None, True)):
        monkeypatch.setattr(memory_need, "available", lambda there=there: there)
        if fits:
            memory_need.check(state)
        else:
            with pytest.raises(ValueError, match=r"0\.0 MB of memory"):
                memory_need.check(state)


@pytest.mark.parametrize("error", [MemoryError(), jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 8 bytes\nmore")])
def test_an_allocation_that_fails_is_one_line(error, tmp_path, monkeypatch):
    def fail(*_):
        raise error

    monkeypatch.setattr(run, "train", fail)
    with pytest.raises(ValueError, match=r"not enough memory for the run.*; use a smaller --capacity") as refused:
        run.start(SETTINGS, tmp_path / "run")
    assert len(str(refused.value).splitlines()) == 1


def test_a_real_allocation_that_fails():
    """More than any address can name."""
    with pytest.raises(ValueError, match=r"not enough memory for the run.*RESOURCE_EXHAUSTED"), memory_need.explained():
        jnp.zeros((2**30, 2**18), jnp.uint8)


def test_other_errors_stay_as_they_are():
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"), memory_need.explained():
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with 1,000 kB free of 4,000, and no groups."""
    monkeypatch.setattr(memory_need, "_MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(memory_need, "_OWN_CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(memory_need, "_CGROUPS", tmp_path / "groups")
    (tmp_path / "meminfo").write_text("MemTotal: 4000 kB\nMemAvailable: 1000 kB\nSwapFree: 0 kB\n")
    return tmp_path


def group(folder, limit, usage, cached, version):
    names = {1: ("memory.limit_in_bytes", "memory.usage_in_bytes"), 2: ("memory.max", "memory.current")}[version]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{usage}\n")
    (folder / "memory.stat").write_text(f"anon 1\n{'total_' if version == 1 else ''}inactive_file {cached}\n")


def test_what_the_machine_has_left(machine):
    assert memory_need.available() == 1_024_000
    (machine / "meminfo").unlink()
    assert memory_need.available() > 1_024_000  # all that this one has


def test_limits_of_groups_count(machine):
    """Those of the group of the process and of all above it, but not what is cached of files."""
    (machine / "cgroup").write_text("0::/job/step\n")
    group(machine / "groups" / "job" / "step", "max", 100, 0, 2)
    assert memory_need.available() == 1_024_000
    group(machine / "groups" / "job", 5000, 3000, 500, 2)
    assert memory_need.available() == 2500
    (machine / "cgroup").write_text("5:cpu:/\n4:memory:/box\n")
    group(machine / "groups" / "memory" / "box", 9000, 2000, 0, 1)
    assert memory_need.available() == 7000
    (machine / "cgroup").write_text("0::/nowhere\n")
    assert memory_need.available() == 1_024_000


def test_the_memory_of_an_accelerator(monkeypatch):
    class Device:
        def memory_stats(self):
            return {"bytes_limit": 100, "bytes_in_use": 30}

    monkeypatch.setattr(jax, "local_devices", lambda: [Device()])
    assert memory_need.available() == 70
