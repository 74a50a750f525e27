"""Real processes train one run together: stopped, killed, resumed, and as many or fewer of them."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import time

import jax
import numpy as np
import pytest
from support.bits import assert_same_bits
from support.processes import (
    ENDING,
    LONG,
    environment,
    exit_codes,
    free_port,
    outputs,
    started,
    train_command,
    wait_for,
    wait_until,
)

from algorithms.commands import train
from algorithms.commands.program import Program
from algorithms.commands.train import OTHERS_GONE
from algorithms.runs import command_line, run
from jaxrl_buffers import _processes as job
from jaxrl_buffers import checkpoint

TINY = shlex.split(
    "ddqn CartPole-v1 --sampler prioritized --sampler.weighting buffer --num-envs 8 --hidden-sizes 4 --capacity 400 "
    "--start-steps 80 --update-every 16 --num-updates 2 --mini-batch-size 16 --total-steps 6480 --test-every 1600 "
    "--num-test-episodes 2"
)
PROGRAM = Program("train.py", "python scripts/train.py", ("train.py",))
QUICK = ("--final-episodes", 2, "--checkpoint-seconds", 0.5)


def test_two_processes_stopped_killed_and_resumed_by_others(tmp_path, monkeypatch):
    """However a run is cut, and by however many processes: two devices give the bits of two devices."""
    folder, output = tmp_path / "run", tmp_path / "output"
    begun = time.monotonic()
    with started(2, output, *TINY, "--out", folder, *QUICK) as processes:
        wait_for(output, "steps/s")
        starting = time.monotonic() - begun
        processes[1].send_signal(signal.SIGTERM)
        assert exit_codes(processes) == [128 + signal.SIGTERM] * 2
    said = outputs(output)
    assert f"continue with: {' '.join(said[0].split()[-4:])}" in said[0]
    assert "steps/s" not in said[1]
    assert "stopped by" not in said[1]
    assert {file.name for file in newest(folder).iterdir()} == {"arrays.bin", "arrays_00001.bin", "manifest.json"}
    refuse_other_budgets(folder, monkeypatch)
    refuse_what_is_not_whole(folder, tmp_path)
    kill_two_processes(folder, tmp_path, starting)
    options = run.Options(final_episodes=2)
    result = run.resume(folder, options)
    settings = command_line.parse([*TINY, "--devices", "2"]).settings
    assert run.start(settings, tmp_path / "whole", options)["return_of_seeds"] == result["return_of_seeds"]
    whole = plain(tmp_path / "whole")
    assert_same_bits(plain(folder), whole)
    lines = [(tmp_path / name / "metrics.jsonl").read_text().count("\n") for name in ("run", "whole")]
    assert lines == [4, 4]
    taken_over_by_four_and_by_two(folder, tmp_path, whole)


def plain(folder):
    state = run.restore(folder)
    return jax.tree.map(np.asarray, state._replace(key=jax.random.key_data(state.key)))


def newest(folder):
    return max((folder / "checkpoint").glob("step_*"))


def contents(folder):
    """Return every file but the lock, which also says which process holds it."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock"}


def refuse_other_budgets(folder, monkeypatch):
    """Resume as the first of two processes, of which the other one was given another `--total-steps`."""

    class First(job.Alone):
        count = 2

        def to_first(self, value):
            is_settings = isinstance(value, dict) and "plan" in value
            return [value, value | {"plan": value["plan"] | {"total_steps": 8_080}} if is_settings else value]

    before = contents(folder)
    with monkeypatch.context() as patched:
        patched.setattr(job, "job", First)
        with pytest.raises(ValueError, match=r"^process 1 was started with other values than process 0: plan\.total_s"):
            run.resume(folder, total_steps=9_680)
    assert contents(folder) == before


def refuse_what_is_not_whole(folder, tmp_path):
    """Resume while a part of the checkpoint is missing: one line, and nothing is overwritten."""
    part = newest(folder) / "arrays_00001.bin"
    part.rename(tmp_path / part.name)
    before = contents(folder)
    with started(2, tmp_path / "refused", "--resume", folder) as processes:
        assert exit_codes(processes) == [2, 2]
    said = [line for text in outputs(tmp_path / "refused") for line in text.splitlines() if line[:5] == "train"]
    assert len(said) == 1
    assert f"lacks {part.name}, which another process of the run has written; put it back, or remove" in said[0]
    assert contents(folder) == before
    (tmp_path / part.name).rename(part)


def kill_two_processes(folder, tmp_path, starting):
    """Kill one process while the run is restored or compiled, and one while it is trained and saved all the time."""
    rng = np.random.default_rng()
    saved = checkpoint.read_metadata(folder / "checkpoint")["metadata"]["iteration"]
    lock = (folder / "lock").read_text()
    begun = time.monotonic()
    for output in (tmp_path / "early", tmp_path / "late"):
        with started(2, output, "--resume", folder, "--checkpoint-seconds", 0, "--log", "csv") as processes:
            if output.name == "early":
                wait_until(lambda: (folder / "lock").read_text() != lock)  # they have met
                time.sleep(rng.uniform(0, max(starting - (time.monotonic() - begun), 0.1)))
            else:
                wait_for(output, "steps/s")
                time.sleep(rng.uniform(0, 1))
            kill_one(processes, output, rng)
    assert checkpoint.read_metadata(folder / "checkpoint")["metadata"]["iteration"] >= saved
    assert (folder / "metrics.csv").exists()


def taken_over_by_four_and_by_two(folder, tmp_path, whole):
    """More processes go on with a finished run, and fewer with theirs: each saves first what it has restored."""
    output = tmp_path / "four"  # which has a budget that it cannot use up
    once = ("--checkpoint-seconds", 100_000)
    with started(4, output, "--resume", folder, "--total-steps", 800_080, *once) as processes:
        wait_for(output, "steps/s")
        kill_one(processes, output, np.random.default_rng())
    assert len([*newest(folder).glob("arrays*")]) == 4
    assert_same_bits(plain(folder), whole)
    with started(2, tmp_path / "two", "--resume", folder, "--total-steps", 6_480) as processes:
        assert exit_codes(processes) == [0, 0]
    assert len([*newest(folder).glob("arrays*")]) == 2
    assert_same_bits(plain(folder), whole)
    assert [run.RunFolder(folder).settings().plan.devices, run.resume(folder)["steps"]] == [2, 6_480]


GONE = "train.py: another process of the run is gone ("


def kill_one(processes, folder, rng):
    """Kill one process. The others end soon: with one line and an exit code of its own, or aborted by JAX."""
    processes[rng.integers(len(processes))].kill()
    begun = time.monotonic()
    codes = exit_codes(processes)
    assert time.monotonic() - begun < ENDING
    assert codes.count(-signal.SIGKILL) == 1
    for code, said in zip(codes, outputs(folder), strict=True):
        assert code in (-signal.SIGKILL, -signal.SIGABRT, OTHERS_GONE), said
        lines = [line for line in said.splitlines() if line.startswith("train.py: ")]
        assert code != OTHERS_GONE or [line.startswith(GONE) for line in lines] == [True], said


class Second(job.Alone):
    """The second of two processes, whose others say nothing."""

    index, count = 1, 2


@pytest.mark.parametrize("text", ["Gloo AllGather failed:\n Connection closed by peer", "UNAVAILABLE: it is gone"])
def test_a_process_that_is_gone_is_told_in_one_line(text, monkeypatch, capsys):
    def fail(*_):
        raise jax.errors.JaxRuntimeError(text)

    monkeypatch.setattr(command_line, "parse", fail)
    with pytest.raises(jax.errors.JaxRuntimeError):  # alone, it is an error like any other
        train.main([], PROGRAM)
    monkeypatch.setattr(job, "job", Second)
    assert train.main([], PROGRAM) == OTHERS_GONE
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"{GONE}{' '.join(text.split())}); start all again with --resume.\n"


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="Open MPI is not installed")
def test_open_mpi_starts_processes_that_find_each_other(tmp_path):
    variables = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    variables |= {"JAX_COORDINATOR_PORT": str(free_port())}
    command = ["mpirun", "--oversubscribe", "-n", "2", *train_command(*TINY, "--out", tmp_path / "run", *QUICK)]
    command += ["--distributed", "--total-steps", "1680"]
    done = subprocess.run(command, env=environment(**variables), capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("after 1,680 steps") == 1
    assert os.path.exists(tmp_path / "run" / "result.json")


def slurm(process: int, count: int, port: int) -> dict[str, str]:
    """Return the variables of a task that srun starts, as far as JAX reads them."""
    variables = {"JOB_ID": "77", "STEP_NODELIST": "localhost", "NTASKS": count, "PROCID": process, "LOCALID": process}
    named = {f"SLURM_{name}": str(value) for name, value in variables.items()}
    return environment(**named, JAX_COORDINATOR_PORT=str(port))


def test_tasks_of_slurm_find_each_other(tmp_path):
    """Two real processes, with the variables that SLURM sets."""
    port, command = free_port(), train_command(*TINY, "--out", tmp_path / "run", *QUICK, "--total-steps", 1680)
    both = [
        subprocess.Popen(
            [*command, "--distributed"], env=slurm(process, 2, port), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for process in range(2)
    ]
    said = [process.communicate(timeout=LONG) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert [b"after 1,680 steps" in output for output, _ in said] == [True, False]
    assert (tmp_path / "run" / "result.json").exists()


FAULTS = {
    "--num-processes 2": "--coordinator: is missing; --coordinator, --num-processes and --process-id go together.",
    "--coordinator here --num-processes 2 --process-id 0": "got 'here', expected HOST:PORT of process 0",
    "--coordinator here:1 --num-processes two --process-id 0": "--num-processes: got 'two', expected a whole number",
    "--coordinator here:1 --num-processes 2 --process-id 2": "Cluster(process_id=2): ",
    "--distributed --process-id 1": "--process-id: --distributed asks the launcher for it; leave out one of the two.",
    "--distributed": "--distributed: this process was not started by a launcher; looked for SLURM (srun), Open MPI 4",
}


@pytest.mark.parametrize("arguments", FAULTS)
def test_what_cannot_work_ends_in_one_line(arguments, tmp_path):
    """Before anything is made, and before anybody is waited for."""
    command = train_command(*TINY, "--out", tmp_path / "run", *arguments.split())
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=LONG)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("train.py: ")
    assert done.stderr.count("\n") == 1
    assert FAULTS[arguments] in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("is_launched", [False, True])
def test_a_port_in_use_ends_in_one_line(tmp_path, is_launched):
    """With an address that the user gives, and with one that the launcher gives."""
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        which = ["--distributed"]
        if not is_launched:
            which = ["--coordinator", f"127.0.0.1:{port}", "--num-processes", 2, "--process-id", 0]
        command = train_command(*TINY, "--out", tmp_path / "run", *which)
        done = subprocess.run(command, env=slurm(0, 2, port), capture_output=True, text=True, timeout=LONG)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"train.py: process 0 cannot listen on port {port} (Address already in use)")
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_other_settings_in_one_process(tmp_path):
    with started(
        2, tmp_path / "output", *TINY, "--out", tmp_path / "run", by_process=[("--seed", 1), ("--seed", 2)]
    ) as both:
        assert exit_codes(both) == [2, 2]
    said = [
        [line for line in text.splitlines() if line.startswith("train.py")] for text in outputs(tmp_path / "output")
    ]
    refused = "train.py: process 1 was started with other values than process 0: seed; start all processes with the"
    assert len(said[0]) == 1
    assert said[0][0].startswith(refused)
    assert not (tmp_path / "run").exists()
