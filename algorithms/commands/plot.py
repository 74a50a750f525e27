"""Draws what a training run left in its folder; `HELP` says how it is called."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import jax

from algorithms.commands.parsing import new_parser, parse
from algorithms.commands.program import Program
from algorithms.runs import comparing, plotting, run
from algorithms.runs.build import build
from algorithms.runs.command import run_folders
from algorithms.runs.run_folder import RunFolder
from jaxrl_buffers import Mixture, ReplayBuffer
from jaxrl_buffers._checks import one_line

HELP = """Draw what a training run left in its folder: the learning curve, the priorities and the ages of samples.

    {typed} runs/ddqn_CartPole-v1_seed0

writes curve.png, priorities.png and ages.png there. The latter two show the replay buffer of the last checkpoint; of a
mixture they show the first buffer.

    {typed} runs/one_step runs/three_steps --out compare.png

draws the learning curves of several runs into one picture instead. Runs are named by the settings in which they differ.
The extension of the file decides its format: .png, .pdf, .svg.
"""


def start(arguments: list[str], program: Program) -> NoReturn:
    """Run the command as the whole program, and end with its exit code."""
    sys.exit(main(arguments, program))


def main(arguments: list[str], program: Program) -> int:
    """Run the command; return its exit code."""
    parser = new_parser(program, HELP)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="The folder of a run, or of a sweep.")
    parser.add_argument("--out", type=Path, help="One picture with the learning curves of all runs, and no others.")
    try:
        given = parse(parser, arguments)
        folders = [folder for path in given.runs for folder in run_folders(path)]
        if given.out is not None:
            _draw_together([folder.path for folder in folders], given.out)
            return 0
        for folder in folders:
            _draw(folder)
    except (ValueError, OSError) as error:
        print(f"{program.name}: {one_line(error)}", file=sys.stderr)
        return 2
    return 0


def _draw_together(paths: list[Path], out: Path) -> None:
    found = comparing.compare(paths)
    curves = [(one.label, one.steps, one.returns) for one in found.runs]
    plotting.draw_curves(curves, found.axis, found.title, out)
    print(out)


def _draw(folder: RunFolder) -> None:
    settings, metrics = folder.settings(), folder.metrics()
    title = f"{settings.algorithm} on {settings.environment}"
    if metrics:
        folder.draw_curve(settings)
        print(folder.curve)
    buffer = build(settings).buffer
    if not isinstance(buffer, (ReplayBuffer, Mixture)):
        raise ValueError(f"{folder.path} holds no replay buffer: {settings.algorithm} keeps no rows to look at.")
    state = run.restore(folder.path).buffer
    if isinstance(buffer, Mixture):  # whose first part has the rows of the run
        buffer, state = buffer.buffers[0], state.parts[0]
    look = plotting.look_at_buffer(buffer, state, jax.random.key(0))
    plotting.draw_priorities(look, title, folder.priorities)
    plotting.draw_ages(look, title, folder.ages)
    print(folder.priorities, folder.ages, sep="\n")
