"""How a command was called, which its help and its messages repeat."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple


class Program(NamedTuple):
    """A command as its user knows it."""

    name: str  # in front of messages, and in usages
    typed: str  # what the examples of its help begin with
    words: tuple[str, ...]  # what follows the interpreter, to call it again

    @classmethod
    def of_module(cls, command: str) -> Program:
        """Return a command of `python -m algorithms`.

        Example:
            >>> Program.of_module("plot").name
            'python -m algorithms plot'
        """
        words = ("-m", "algorithms", command)
        return cls(shlex.join(["python", *words]), shlex.join(["python", *words]), words)

    @classmethod
    def of_script(cls, command: str) -> Program:
        """Return a command as a script of this project, which is the program that runs.

        Example:
            >>> Program.of_script("plot")[:2]
            ('plot.py', 'python scripts/plot.py')
        """
        return cls(f"{command}.py", f"python scripts/{command}.py", (sys.argv[0],))

    def explained(self, text: str) -> str:
        """Return a text with the names of this program in the place of `{name}` and `{typed}`."""
        return text.format(name=self.name, typed=self.typed)

    def parser(self, text: str, **options: Any) -> argparse.ArgumentParser:
        """Return a parser of the arguments of this program, whose help begins with `explained(text)`.

        The options are those of `ArgumentParser`.
        """
        return argparse.ArgumentParser(
            prog=self.name,
            description=self.explained(text),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **options,
        )

    def command_line(self, *arguments: str) -> str:
        """Return what to type to call this program again with the same interpreter."""
        python = shutil.which("python")
        is_usual = python is not None and Path(python).absolute() == Path(sys.executable).absolute()
        interpreter = "python" if is_usual else os.path.relpath(sys.executable)
        return shlex.join([interpreter, *self.words, *arguments])
