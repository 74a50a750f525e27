"""The arguments of the commands that have few: their help, and errors of one line."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Sequence

from algorithms.commands.program import Program
from jaxrl_buffers._checks import shown


def new_parser(program: Program, text: str) -> argparse.ArgumentParser:
    """Return a parser that knows no arguments yet.

    Args:
        program: what was called.
        text: its help, with `{name}` and `{typed}` in the place of names.
    """
    return argparse.ArgumentParser(
        prog=program.name,
        usage=argparse.SUPPRESS,  # so that errors are one line
        description=program.explained(text),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Return the values of a command line.

    Raises:
        ValueError: an option is unknown (the error names the nearest one), or there are too many words.
        SystemExit: something else is wrong, and was reported in one line.
    """
    given, others = parser.parse_known_args(arguments)
    if not others:
        return given
    option = next((word.partition("=")[0] for word in others if word.startswith("-")), None)
    if option is None:
        raise ValueError(f"got {shown(others[0], str)} where an option is expected; all RUNs come before the options.")
    options = re.findall(r"^  (?:-\w, )?(--[\w-]+)", parser.format_help(), re.MULTILINE)
    near = difflib.get_close_matches(option, options, n=1)
    hint = f"did you mean {near[0]}?" if near else f"see {parser.prog} --help"
    raise ValueError(f"there is no option {shown(option, str)}; {hint}")
