"""The commands of `python -m algorithms`, one a file. The scripts of the same names call them too."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from typing import NoReturn

from algorithms.commands.program import Program

COMMANDS = {
    "train": "train an agent, in a folder that can be resumed",
    "evaluate": "measure how good the policy of a run is, and film it",
    "plot": "draw the learning curve of a run, its priorities and the ages of its samples",
    "compare": "compare runs: a table of their scores, and a page with their learning curves",
}
MODULES = ("matplotlib", "rich", "scipy")  # what the extra `train` brings


def start(arguments: list[str]) -> NoReturn:
    """Run a command as the whole program, and end with its exit code.

    Args:
        arguments: the name of the command, and its own arguments.
    """
    command, *others = arguments or [""]
    if command in ("--help", "-h"):
        print(_help())
        sys.exit(0)
    reason = _refusal(command)
    if reason is not None:
        print(reason, file=sys.stderr)
        sys.exit(2)
    importlib.import_module(f"{__name__}.{command}").start(others, Program.of_module(command))
    raise AssertionError(f"{command} has returned.")


def _refusal(command: str) -> str | None:
    """Return why a command cannot be run; None if it can."""
    if not command:
        return _help()
    if command not in COMMANDS:
        near = difflib.get_close_matches(command, COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(COMMANDS)}."
        return f"python -m algorithms: there is no command {command!r}; {hint}"
    missing = [module for module in MODULES if importlib.util.find_spec(module) is None]
    if missing:
        what = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed"
        return f"{Program.of_module(command).name}: {what}; use: pip install 'jaxrl-buffers[train]'"
    return None


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {text}" for name, text in COMMANDS.items()]
    usage = "usage: python -m algorithms COMMAND ...\n"
    return "\n".join([usage, *lines, "\n`python -m algorithms COMMAND --help` explains a command."])
