"""Train an agent: one compiled program, any number of seeds, and a folder with the settings, metrics and checkpoints.

    python scripts/train.py ddqn CartPole-v1 --sampler prioritized --n-step 3 --num-seeds 5 --total-steps 50_000
    python scripts/train.py ddqn CartPole-v1 --sampler recent --sampler.base prioritized --sampler.base.alpha 0.7
    python scripts/train.py sac Pendulum-v1 --num-envs 64 --devices 8
    python scripts/train.py ddqn CartPole-v1 --sweep agent.learning_rate=1e-4,3e-4,1e-3 --num-seeds 3
    python scripts/train.py --config settings.yaml --seed 1
    python scripts/train.py --resume runs/ddqn_CartPole-v1_seed0 [--total-steps 80_000] [--fresh-environments]
    python scripts/train.py --fork runs/ddqn_CartPole-v1_seed0 --out runs/slower --agent.learning-rate 1e-4
    python scripts/train.py --start-from runs/ddqn_CartPole-v1_seed0 --out runs/again
    python scripts/train.py sac Pendulum-v1 --dataset data.npz --offline-updates 10_000 --total-steps 0

Algorithm and environment come first, unless a file or another run names them. Each pair has a preset, whose values are
the defaults: `train.py ALGORITHM ENVIRONMENT --help` shows them. `--sampler NAME --help` shows its options.

Several processes, on one or more machines, train one run together if each is started with the same command and
`--distributed`, or `--coordinator HOST:PORT --num-processes P --process-id I`; see docs/guides/many_devices.md.

Exit codes: 0 done; 2 bad input; 3 numbers that are not finite stopped the run, or are in its agent or its result; 4
another process of the run is gone, so start all again with --resume; 128 + N stopped by signal N.
"""

from __future__ import annotations

import gc
import math
import os
import shlex
import shutil
import signal
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Ctrl-C ends this program at once, except during a run, which is saved first. A KeyboardInterrupt could get lost
    # in callbacks of JAX, or print a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import jax

from jaxrl_buffers import _processes as processes
from jaxrl_buffers import cluster
from jaxrl_buffers._checks import one_line

if __name__ == "__main__":
    try:  # before the packages below are imported, which start to use devices
        cluster.connect_as_told(sys.argv[1:])
    except ValueError as error:
        print(f"train.py: {one_line(error)}", file=sys.stderr)
        sys.exit(2)

from algorithms.runs import command_line, compilation_cache, devices, run, summary
from algorithms.runs.command import Command
from algorithms.runs.command_options import help_text
from algorithms.runs.progress_bar import ProgressBar
from algorithms.runs.watch import NotFinite

NOT_FINITE, OTHERS_GONE = 3, 4  # exit codes


def main(arguments: list[str]) -> int:
    """Run the command; return its exit code."""
    try:
        cluster.Cluster.of_arguments(arguments)  # refuses what could not be obeyed
        command = processes.all_or_none(processes.job(), lambda: command_line.parse(arguments))
        if command.explained:
            _say(help_text(command.explained, __doc__ or "").removesuffix("\n"))
            return 0
        return _train(command)
    except BrokenPipeError:  # nobody reads what is printed
        return _leave_quietly()
    except (ValueError, OSError) as error:  # the latter from files and from what environments download
        return _refuse(error)
    except jax.errors.JaxRuntimeError as error:
        if not processes.is_lost(error):
            raise
        return _refuse(error)


def _refuse(error: Exception) -> int:
    """Report an error, only once if all processes know of it; return the exit code."""
    index = processes.job().index
    if processes.is_lost(error):
        line = f"another process of the run is gone ({one_line(error)}); start all again with --resume."
        print(f"train.py: {line}", file=sys.stderr)
        return OTHERS_GONE
    if index and not processes.is_shared(error):
        print(f"train.py: process {index}: {one_line(error)}", file=sys.stderr)
    _warn(one_line(error))
    return 2


def _say(text: str) -> None:
    """Print a text, in the first process."""
    if not processes.job().index:
        print(text, flush=True)


def _warn(line: str) -> None:
    """Print a line to standard error, in the first process."""
    if not processes.job().index:
        print(f"train.py: {line}", file=sys.stderr)


def _begin_again(variables: dict[str, str]) -> None:
    """Replace this process by the same command, in which JAX starts with other environment variables."""
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **variables})


def _train(command: Command) -> int:
    if variables := devices.variables_for(command.settings):
        _begin_again(variables)
    if command.notice:
        _warn(command.notice)
    title = f"{command.settings.algorithm} on {command.settings.environment}"
    with ProgressBar(title, is_quiet=processes.job().index > 0) as bar:
        options = run.Options(
            on_chunk=bar.update,
            checkpoint_seconds=command.checkpoint_seconds,
            final_episodes=command.final_episodes,
            cores=command.cores,
            on_signal=_Stopping(bar),
            on_notice=lambda line: bar.say(f"train.py: {line}"),
            log=command.log,
            max_time=command.max_time,
            stop_at_return=command.stop_at_return,
        )
        try:
            results = command.train(options)
        except NotFinite as stop:
            bar.close()
            for folder in command.run_folders:
                folder.draw_curve()
            _warn(f"{stop}; {command.folder}")
            return NOT_FINITE
        except run.Interrupted as stop:
            bar.close()
            if not stop.is_unseen:
                _say(f"{stop}; continue with: {_command_line('--resume', str(command.folder))}")
            return _leave_quietly(128 + stop.signal_number)
    lines = summary.table(results) if command.is_sweep else summary.line(*results.values())
    _say(f"{title}: {lines}; {command.folder}")
    return max(_check_finite(name, result) for name, result in results.items())


def _check_finite(point: str, result: dict[str, Any]) -> int:
    num_nonfinite = result["nonfinite_numbers"]
    if num_nonfinite or not all(map(math.isfinite, result["return_of_seeds"])):
        what = f"{num_nonfinite:,} numbers of the agent" if num_nonfinite else "returns"
        of_point = f" of {point}" if point else ""
        _warn(f"do not use the result{of_point}: {what} are not finite.")
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


def _command_line(*arguments: str) -> str:
    """Return the command that calls this script again with the same interpreter."""
    python = shutil.which("python")
    is_usual = python is not None and Path(python).absolute() == Path(sys.executable).absolute()
    interpreter = "python" if is_usual else os.path.relpath(sys.executable)
    return shlex.join([interpreter, sys.argv[0], *arguments])


def _leave_quietly(code: int = 128 + 13) -> int:
    """Drop output that nobody reads, so that Python does not complain about it at exit; return the exit code."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


if __name__ == "__main__":
    gc.freeze()  # what is imported stays, so it is not searched for garbage again and again while programs are traced
    warnings.formatwarning = lambda message, *_: f"train.py: {one_line(message)}\n"
    code = 1
    try:
        with compilation_cache.kept():
            code = main(sys.argv[1:])
    except Exception:
        traceback.print_exc()
    cluster.leave(code)
