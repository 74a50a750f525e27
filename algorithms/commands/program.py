"""How a command was called, which its help and its messages repeat."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple


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
        """Return a text as wide as the terminal, with the names of this program for `{name}` and `{typed}`.

        Paragraphs that begin with a space, such as examples, keep their lines.
        """
        paragraphs = text.format(name=self.name, typed=self.typed).strip("\n").split("\n\n")
        width = shutil.get_terminal_size().columns - 2  # as argparse leaves it for options
        wrapper = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
        return "\n\n".join(part if part[:1] == " " else wrapper.fill(" ".join(part.split())) for part in paragraphs)

    def command_line(self, *arguments: str) -> str:
        """Return what to type to call this program again with the same interpreter."""
        python = shutil.which("python")
        is_usual = python is not None and Path(python).absolute() == Path(sys.executable).absolute()
        interpreter = "python" if is_usual else os.path.relpath(sys.executable)
        return shlex.join([interpreter, *self.words, *arguments])
