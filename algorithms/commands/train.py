"""Trains an agent in a folder; `HELP` says how it is called."""

from __future__ import annotations

import gc
import math
import os
import sys
import traceback
import warnings
from typing import Any, NoReturn

import jax

from algorithms.commands.program import Program
from algorithms.runs import command_line, compilation_cache, devices, run, summary
from algorithms.runs.command import Command
from algorithms.runs.command_options import help_text
from algorithms.runs.progress_bar import ProgressBar
from algorithms.runs.watch import NotFinite
from jaxrl_buffers import _processes as processes
from jaxrl_buffers import cluster
from jaxrl_buffers._checks import one_line

HELP = """\
Train an agent: one compiled program, any number of seeds, and a folder with the settings, metrics and checkpoints.

    {typed} ddqn CartPole-v1 --sampler prioritized --n-step 3 --num-seeds 5 --total-steps 50_000
    {typed} ddqn CartPole-v1 --sampler recent --sampler.base prioritized --sampler.base.alpha 0.7
    {typed} sac Pendulum-v1 --num-envs 64 --devices 8
    {typed} ddqn CartPole-v1 --sweep agent.learning_rate=1e-4,3e-4,1e-3 --num-seeds 3
    {typed} --config settings.yaml --seed 1
    {typed} --resume runs/ddqn_CartPole-v1_seed0 [--total-steps 80_000] [--fresh-environments]
    {typed} --fork runs/ddqn_CartPole-v1_seed0 --out runs/slower --agent.learning-rate 1e-4
    {typed} --start-from runs/ddqn_CartPole-v1_seed0 --out runs/again
    {typed} sac Pendulum-v1 --dataset data.npz --offline-updates 10_000 --total-steps 0

Algorithm and environment come first, unless a file or another run names them. Each pair has a preset, whose values are
the defaults: `{name} ALGORITHM ENVIRONMENT --help` shows them. `--sampler NAME --help` shows its options.

Several processes, on one or more machines, train one run together if each is started with the same command and
`--distributed`, or `--coordinator HOST:PORT --num-processes P --process-id I`; see docs/guides/many_devices.md.

Exit codes: 0 done; 2 bad input; 3 numbers that are not finite stopped the run, or are in its agent or its result; 4
another process of the run is gone, so start all again with --resume; 128 + N stopped by signal N.
"""
NOT_FINITE, OTHERS_GONE = 3, 4  # exit codes


def start(arguments: list[str], program: Program) -> NoReturn:
    """Run the command as the whole program, and end with its exit code.

    `cluster.connect_from_arguments` comes before this, and before `algorithms` is imported.
    """
    gc.freeze()  # what is imported stays, so it is not searched for garbage again and again while programs are traced
    warnings.formatwarning = lambda message, *_: f"{program.name}: {one_line(message)}\n"
    code = 1
    try:
        with compilation_cache.kept():
            code = main(arguments, program)
    except Exception:
        traceback.print_exc()
    cluster.leave(code)


def main(arguments: list[str], program: Program) -> int:
    """Run the command; return its exit code."""
    try:
        cluster.Cluster.of_arguments(arguments)  # refuses what could not be obeyed
        command = processes.all_or_none(processes.job(), lambda: command_line.parse(arguments, program.name))
        if command.explained:
            _say(help_text(command.explained, program.explained(HELP), program.name).removesuffix("\n"))
            return 0
        return _train(command, program)
    except BrokenPipeError:  # nobody reads what is printed
        return _leave_quietly()
    except (ValueError, OSError) as error:  # the latter from files and from what environments download
        return _refuse(error, program)
    except jax.errors.JaxRuntimeError as error:
        if not processes.is_lost(error):
            raise
        return _refuse(error, program)


def _refuse(error: Exception, program: Program) -> int:
    """Report an error, only once if all processes know of it; return the exit code."""
    job = processes.job()
    if processes.is_lost(error):
        line = f"another process of the run is gone ({one_line(error)}); start all again with --resume."
        print(f"{program.name}: {line}", file=sys.stderr)
        return OTHERS_GONE
    is_known = processes.is_shared(error) or processes.is_said(job, one_line(error), cluster.LEAVING)
    if job.index and not is_known:
        print(f"{program.name}: process {job.index}: {one_line(error)}", file=sys.stderr)
    _warn(one_line(error), program)
    return 2


def _say(text: str) -> None:
    """Print a text, in the first process."""
    if not processes.job().index:
        print(text, flush=True)


def _warn(line: str, program: Program) -> None:
    """Print a line to standard error, in the first process."""
    if not processes.job().index:
        print(f"{program.name}: {line}", file=sys.stderr)


def _begin_again(variables: dict[str, str]) -> None:
    """Replace this process by the same command, in which JAX starts with other environment variables."""
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **variables})


def _train(command: Command, program: Program) -> int:
    if variables := devices.variables_for(command.settings):
        _begin_again(variables)
    if command.notice:
        _warn(command.notice, program)
    title = f"{command.settings.algorithm} on {command.settings.environment}"
    with ProgressBar(title, is_quiet=processes.job().index > 0) as bar:
        options = run.Options(
            on_chunk=bar.update,
            checkpoint_seconds=command.checkpoint_seconds,
            final_episodes=command.final_episodes,
            cores=command.cores,
            on_signal=_Stopping(bar),
            on_notice=lambda line: bar.say(f"{program.name}: {line}"),
            log=command.log,
            max_time=command.max_time,
            stop_at_return=command.stop_at_return,
        )
        try:
            results = command.train(options)
        except NotFinite as stop:
            bar.close()
            for folder in command.run_folders:
                folder.draw_curve(folder.settings())
            _warn(f"{stop}; {command.folder}", program)
            return NOT_FINITE
        except run.Interrupted as stop:
            bar.close()
            if not stop.is_unseen:
                _say(f"{stop}; continue with: {program.command_line('--resume', str(command.folder))}")
            return _leave_quietly(128 + stop.signal_number)
    lines = summary.table(results) if command.is_sweep else summary.line(*results.values())
    _say(f"{title}: {lines}; {command.folder}")
    return max(_check_finite(name, result, program) for name, result in results.items())


def _check_finite(point: str, result: dict[str, Any], program: Program) -> int:
    num_nonfinite = result["nonfinite_numbers"]
    if num_nonfinite or not all(map(math.isfinite, result["return_of_seeds"])):
        what = f"{num_nonfinite:,} numbers of the agent" if num_nonfinite else "returns"
        of_point = f" of {point}" if point else ""
        _warn(f"do not use the result{of_point}: {what} are not finite.", program)
        return NOT_FINITE
    return 0


class _Stopping:
    """Answers the first signal with a line, and ends the process at the second, also while compiled code is running."""

    def __init__(self, bar: ProgressBar):
        self._bar = bar
        self._is_second = False

    def __call__(self, number: int) -> None:
        if self._is_second:
            self._bar.close()
            os._exit(128 + number)
        self._is_second = True
        if self._bar.is_live:
            self._bar.say("stopping as soon as the present chunk is done and saved; once more to stop at once.")


def _leave_quietly(code: int = 128 + 13) -> int:
    """Drop output that nobody reads, so that Python does not complain about it at exit; return the exit code."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code
