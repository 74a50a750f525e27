"""The blocks of code in `docs/guides`, and a reader who does what they say."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any
from unittest import mock

from support.scripts import load_script

import jaxrl_buffers as jb

ROOT = Path(jb.__file__).parents[1]
BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Such as: NAME=value python scripts/plot.py runs/one > lines.txt
COMMAND = re.compile(r"((?:\w+=\S+ )*)python scripts/(\w+)\.py (.*?)(?: > (\S+))?")


def blocks(guide: str) -> list[tuple[str, str, str]]:
    """Return the blocks of a guide: (language, the word after it, text)."""
    return BLOCK.findall((ROOT / "docs" / "guides" / f"{guide}.md").read_text())


class Reader:
    """Follows a guide in the present folder, block by block, and checks what is written below code and commands.

    Scripts are called in this process. Blocks marked by a file's name are written there. Text marked `example` shows
    what may differ.

    Args:
        guide: its name.
        environment: of all commands that are no scripts of the project, such as `ls`.
    """

    def __init__(self, guide: str, environment: dict[str, str] | None = None):
        self.blocks = blocks(guide)
        self.names: dict[str, Any] = {}  # of the code
        self.printed: dict[str, str] = {}  # by every command line
        self._environment = environment

    def follow(self) -> None:
        """Do everything that the guide says."""
        printed = ""
        for language, mark, text in self.blocks:
            if mark.endswith(".py"):
                Path(mark).write_text(text)
            elif language == "text":
                assert mark == "example" or printed == text
            elif language == "python":
                printed = self._execute(text)
            else:
                printed = "".join(map(self.call, text.replace("\\\n", "").splitlines()))

    def call(self, line: str) -> str:
        """Run a command line; return what it printed."""
        script = COMMAND.fullmatch(line)
        if script is None:
            command = ["bash", "-c", line]
            done = subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=120)
            code, printed, errors = done.returncode, done.stdout, done.stderr
        else:
            variables, name, words, file = script.groups()
            with mock.patch.dict(os.environ, dict(word.split("=") for word in variables.split())):
                code, printed, errors = call_script(name, *shlex.split(words))
            if file is not None:
                Path(file).write_text(printed)
                printed = ""
        assert code == 0, f"{line}\n{errors}"
        self.printed[line] = printed
        return printed

    def _execute(self, text: str) -> str:
        if text.startswith(("import ", "from ")):  # it needs nothing of the code before
            self.names = {}
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(text, "guide", "exec"), self.names)
        return printed.getvalue()


def call_script(name: str, *arguments: str) -> tuple[int, str, str]:
    """Call a script in this process; return its exit code and what it printed to either stream."""
    main = load_script(name).main
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as errors:
        code = main([*arguments])
    return code, out.getvalue(), errors.getvalue()
