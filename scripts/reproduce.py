"""Rerun rows of the tables of results, and write the tables, the pictures and the page.

    python scripts/reproduce.py --list
    python scripts/reproduce.py                                               # all rows that have no result yet
    python scripts/reproduce.py --only "td3 Pendulum-v1 --num-seeds 10"       # this row, whether it has one or not
    python scripts/reproduce.py --group "Classic control" --jobs 1            # rows of a group, one at a time
    python scripts/reproduce.py --write                                       # run nothing, write what there is
    python scripts/reproduce.py --quiet                                       # measure times on a quiet machine

The rows are in results/rows.yaml. Every row is a run of scripts/train.py, and its result is a small JSON file in
results/. Several rows run at a time. Ctrl-C saves their runs; the same command continues them. `--quiet` runs rows
again, one at a time, that have no time on the wall yet; their results stay the same.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from algorithms.runs.reproducing import Group, Result, Results, Row, read_rows, tables, write_all
from algorithms.runs.reproducing.display import Display
from algorithms.runs.reproducing.jobs import Jobs
from algorithms.runs.side_by_side import num_cores
from jaxrl_buffers._checks import one_line

ROOT = Path(__file__).parent.parent
MOST_LOAD = 0.5  # of a quiet machine


def main(arguments: list[str]) -> int:
    """Run the command; return its exit code."""
    options = _options(arguments)
    results = Results(options.results)
    try:
        groups = read_rows(options.rows)
        results.share([row for group in groups for row in group.rows])
        chosen = select(groups, options.only, options.group, results, options.quiet)
        if options.list:
            _list(groups, results)
        elif options.dry_run:
            print("\n".join(f"python scripts/train.py {row.command}" for row in chosen))
        else:
            _require_quiet(options.quiet and not options.write)
            write_all(groups, results, options.readme)  # refuses before hours are spent
            return 0 if options.write else _run(groups, chosen, results, options)
    except (ValueError, OSError) as error:
        print(f"reproduce.py: {one_line(error)}", file=sys.stderr)
        return 2
    return 0


def select(
    groups: Sequence[Group], names: list[str], titles: list[str], results: Results, quiet: bool = False
) -> list[Row]:
    """Return the rows with these names; without names, those of these groups (or of all) that have no result.

    Of rows that have the same settings, only the first is returned: they share their result. With `quiet`, a result
    without a time on the wall counts as none.
    """
    by_name = {row.command: row for group in groups for row in group.rows}
    by_title = {group.title: group.rows for group in groups}
    for option, given, known in (("--only", names, by_name), ("--group", titles, by_title)):
        for name in given:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
                raise ValueError(f"{option}: there is no {name!r}; did you mean {near[0]!r}? --list shows all.")
    if names:
        return [by_name[name] for name in names]
    wanted = [row for title in titles or by_title for row in by_title[title]]
    missing = [row for row in wanted if (found := results.read(row)) is None or (quiet and not found.times.is_quiet)]
    first = {json.dumps(row.settings()): row for row in reversed(missing)}
    return [row for row in missing if row in first.values()]


def _run(groups: Sequence[Group], rows: list[Row], results: Results, options: argparse.Namespace) -> int:
    num_jobs = 1 if options.quiet else min(options.jobs, len(rows)) or 1
    jobs = Jobs(results, options.runs, num_jobs, ROOT / "scripts" / "train.py", options.quiet)
    stopped_by: list[int] = []

    def stop(number: int, _: object) -> None:
        stopped_by.append(number)
        jobs.stop()

    with Display(rows) as display:

        def note(row: Row, result: Result) -> None:
            display.result(row, result)
            results.share([row for group in groups for row in group.rows])
            write_all(groups, results, options.readme)

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            jobs.run(rows, note, lambda: display.tick(jobs.shares()))
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    for row, code, message in jobs.failed:
        print(f"reproduce.py: {row.command} ended with {code}: {message}", file=sys.stderr)
    if stopped_by:
        print("reproduce.py: stopped; the same command continues.", file=sys.stderr)
        return 128 + stopped_by[0]
    return 1 if jobs.failed else 0


def _require_quiet(is_needed: bool) -> None:
    load = os.getloadavg()[0]
    if is_needed and load > MOST_LOAD:
        raise ValueError(f"--quiet: the load is {load:.1f}, so times would mean nothing; wait until nothing else runs.")


def _list(groups: Sequence[Group], results: Results) -> None:
    for group in groups:
        print(f"{group.title}\n\n{tables.long(group, results)}\n")


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="reproduce.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", default=[], metavar="ROW", help="run this row; may be repeated")
    parser.add_argument("--group", action="append", default=[], metavar="TITLE", help="of these groups only")
    parser.add_argument("--list", action="store_true", help="show all rows with the results so far")
    parser.add_argument("--dry-run", action="store_true", help="show the commands, run and write nothing")
    parser.add_argument("--write", action="store_true", help="write tables, pictures and the page, run nothing")
    parser.add_argument(
        "--jobs", type=_count, default=num_cores(), metavar="N", help="rows at a time; one for each core"
    )
    parser.add_argument("--quiet", action="store_true", help="measure times; nothing else may run on the machine")
    folder = ROOT / "results"
    parser.add_argument("--rows", type=Path, default=folder / "rows.yaml", metavar="FILE", help="with the rows")
    parser.add_argument("--results", type=Path, default=folder, metavar="FOLDER", help="of results")
    parser.add_argument("--runs", type=Path, default=Path("runs/reproduce"), metavar="FOLDER", help="of runs under way")
    parser.add_argument("--readme", type=Path, default=ROOT / "README.md", metavar="FILE", help="with the short table")
    return parser.parse_args(arguments)


def _count(word: str) -> int:
    number = int(word)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1 is needed")
    return number


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
