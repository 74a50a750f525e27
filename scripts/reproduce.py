"""Rerun the runs in the README's table of results, and write this table.

    python scripts/reproduce.py --list
    python scripts/reproduce.py                                  # all rows that have no result yet
    python scripts/reproduce.py --only "td3 Pendulum-v1"         # this row, whether it has one or not

Every row is a run of scripts/train.py with five seeds and the preset of its pair. Results are lines of
FOLDER/results.jsonl. If a command has several results, the last one counts. The table is written between the two marks
in the README.
"""

from __future__ import annotations

import argparse
import difflib
import json
import shlex
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- reproduce:begin -->", "<!-- reproduce:end -->"
NUM_SEEDS = 5
# `recent` narrows its range from the first update of an iteration to the last, so it needs more than one update.
BURSTS = ("--update-every", "50", "--num-updates", "50")


class Row(NamedTuple):
    """A line of the table: what is run, and what it should reach."""

    algorithm: str
    environment: str
    goal: float
    flags: tuple[str, ...] = ()
    is_ceiling: bool = False  # the result should stay below the goal, for tasks that cannot be learned
    floor: float | None = None  # no seed should be below this
    of_success: bool = False  # the result is the share of goals that were reached, not the return

    @property
    def name(self) -> str:
        """What follows `train.py` in the table."""
        return shlex.join([self.algorithm, self.environment, *self.flags])

    @property
    def arguments(self) -> list[str]:
        """What follows `train.py` in a shell."""
        return [self.algorithm, self.environment, "--num-seeds", str(NUM_SEEDS), *self.flags]

    @property
    def aim(self) -> str:
        """The goal, in words."""
        unit = " %" if self.of_success else ""
        floor = "" if self.floor is None else f", no seed below {self.floor:g}{unit}"
        return f"{'below ' if self.is_ceiling else ''}{self.goal:g}{unit}{floor}"

    def of_seeds(self, result: dict[str, Any]) -> list[float]:
        """Return the return or the share of successes of every seed."""
        return [100 * share for share in result["success_of_seeds"]] if self.of_success else result["return_of_seeds"]

    def is_met(self, seeds: list[float]) -> bool:
        """Return whether the seeds reach the goal."""
        mean = statistics.mean(seeds)
        if self.is_ceiling:
            return mean < self.goal
        return mean >= self.goal and (self.floor is None or min(seeds) >= self.floor)


ROWS = (
    Row("ddqn", "CartPole-v1", 475, floor=400),
    Row("ddqn", "CartPole-v1", 475, ("--sampler", "uniform"), floor=400),
    Row("ddqn", "CartPole-v1", 475, ("--sampler", "recent"), floor=400),
    Row("ddqn", "CartPole-v1", 475, ("--sampler", "recent", "--sampler.base", "prioritized"), floor=400),
    Row("ddqn", "MaskedCartPole-v1", 400, floor=300),
    Row("ddqn", "MaskedCartPole-v1", 200, ("--memory", "none"), is_ceiling=True),
    Row("ddqn", "BitFlip15-v0", 100, of_success=True),
    Row("ddqn", "BitFlip15-v0", 5, ("--hindsight", "none"), is_ceiling=True, of_success=True),
    Row("ddpg", "PointReach-v0", 100, of_success=True),
    Row("sac", "Pendulum-v1", -180, floor=-250),
    Row("sac", "Pendulum-v1", -180, ("--sampler", "prioritized"), floor=-250),
    Row("sac", "Pendulum-v1", -180, ("--sampler", "recent", *BURSTS), floor=-250),
    Row("sac", "Pendulum-v1", -180, ("--sampler", "recent", "--sampler.base", "prioritized", *BURSTS), floor=-250),
    Row("ddpg", "Pendulum-v1", -180, floor=-250),
    Row("td3", "Pendulum-v1", -180, floor=-250),
    Row("td3", "MountainCarContinuous-v0", 90, floor=85),
    Row("sac", "CartPole-v1", 475, floor=400),
    Row("mpo", "Pendulum-v1", -180, floor=-250),
    Row("mpo", "CartPole-v1", 475, floor=400),
    Row("ppo", "CartPole-v1", 475, floor=400),
)


class Results:
    """The results in a folder, by command.

    Args:
        folder: made when the first result comes.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    def load(self) -> dict[str, dict[str, Any]]:
        """Return the last result of every command."""
        if not self._path.exists():
            return {}
        lines = map(json.loads, self._path.read_text().splitlines())
        return {line["command"]: line for line in lines}

    def run(self, row: Row) -> None:
        """Run a row, and keep its result."""
        out = self.folder / row.name.replace(" ", "_").replace("/", "_")
        shutil.rmtree(out, ignore_errors=True)  # a run of the same row, which this one replaces
        command = [sys.executable, str(ROOT / "scripts" / "train.py"), *row.arguments, "--out", str(out)]
        subprocess.run(command, check=True)
        result = json.loads((out / "result.json").read_text())
        with self._path.open("a") as file:
            file.write(json.dumps({"command": row.name, **result}) + "\n")

    @property
    def _path(self) -> Path:
        return self.folder / "results.jsonl"


def table(rows: tuple[Row, ...], results: dict[str, dict[str, Any]]) -> str:
    """Return the table in Markdown; rows without a result say so."""
    lines = ["| command | steps | reached | goal | |", "|---|---|---|---|---|"]
    for row in rows:
        told = _told(row, results[row.name]) if row.name in results else ("", "", "not run")
        lines.append("| " + " | ".join([f"`{row.name}`", *told[:2], row.aim, told[2]]) + " |")
    return "\n".join(lines)


def write(path: Path, text: str) -> None:
    """Put a text between the marks of a file."""
    whole = path.read_text()
    if whole.count(BEGIN) != 1 or whole.count(END) != 1 or whole.index(BEGIN) > whole.index(END):
        raise ValueError(f"{path} needs the lines {BEGIN} and {END}, once each, around the table's place.")
    before, rest = whole.split(BEGIN)
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}")


def select(rows: tuple[Row, ...], names: list[str], known: dict[str, Any]) -> list[Row]:
    """Return the rows with these names; without names, those that have no result."""
    if not names:
        return [row for row in rows if row.name not in known]
    by_name = {row.name: row for row in rows}
    for name in names:
        if name not in by_name:
            near = difflib.get_close_matches(name, by_name, n=1, cutoff=0.0)
            raise ValueError(f"--only: there is no row {name!r}; did you mean {near[0]!r}? --list shows all.")
    return [by_name[name] for name in names]


def main(arguments: list[str], rows: tuple[Row, ...] = ROWS) -> int:
    """Run the command; return its exit code."""
    options = _options(arguments)
    results = Results(options.results)
    try:
        if options.list:
            print(table(rows, results.load()))
            return 0
        chosen = select(rows, options.only, results.load())
        if not options.dry_run:
            write(options.readme, table(rows, results.load()))  # refuses before hours are spent
        for row in chosen:
            print(f"python scripts/train.py {shlex.join(row.arguments)}", flush=True)
            if not options.dry_run:
                results.run(row)
                write(options.readme, table(rows, results.load()))
    except ValueError as error:
        print(f"reproduce.py: {error}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        print(f"reproduce.py: the run ended with {error.returncode}; the rows before it are kept.", file=sys.stderr)
        return 1
    return 0


def _told(row: Row, result: dict[str, Any]) -> tuple[str, str, str]:
    """Return steps, what was reached, and the verdict."""
    steps, seeds = result["steps"], row.of_seeds(result)
    shown = f"{steps // 1000}k" if steps % 1000 == 0 else f"{steps:,}"
    reached = f"{statistics.mean(seeds):.1f}{' %' if row.of_success else ''} ({min(seeds):.1f} to {max(seeds):.1f})"
    return shown, reached, "met" if row.is_met(seeds) else "**not met**"


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="reproduce.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", default=[], metavar="ROW", help="run this row; may be repeated")
    parser.add_argument("--list", action="store_true", help="show all rows with the results so far")
    parser.add_argument("--dry-run", action="store_true", help="show the commands, run and write nothing")
    parser.add_argument("--results", type=Path, default=Path("runs/reproduce"), metavar="FOLDER", help="of results")
    parser.add_argument("--readme", type=Path, default=ROOT / "README.md", metavar="FILE", help="with the table")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
