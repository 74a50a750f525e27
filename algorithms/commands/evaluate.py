"""Measures how good the policy of a run is, and films it; `HELP` says how it is called."""

from __future__ import annotations

import argparse
import gc
import json
import sys
import warnings
from pathlib import Path
from typing import Any, NoReturn

from algorithms.commands.parsing import new_parser, parse
from algorithms.commands.program import Program
from algorithms.runs import compilation_cache, film
from algorithms.runs.policy import load_policies, load_policy
from jaxrl_buffers._checks import one_line

HELP = """Measure how good the policy of a run is, and film it.

    {typed} runs/ddqn_CartPole-v1_seed0 --episodes 1000
    {typed} runs/ddqn_CartPole-v1_seed0 --seed 2 --stochastic --json
    {typed} runs/ddqn_CartPole-v1_seed0 --seed 0 --episodes 1 --render episode.gif

prints a line for each seed of the run: the mean return of complete episodes, its 95 % confidence interval, and the
lowest and highest return. The run need not be finished: its last checkpoint with only finite numbers is used.

Exit codes: 0 done; 2 bad input.
"""


def start(arguments: list[str], program: Program) -> NoReturn:
    """Run the command as the whole program, and end with its exit code."""
    gc.freeze()  # what is imported stays, so it is not searched for garbage again and again while programs are traced
    warnings.formatwarning = lambda message, *_: f"{program.name}: {one_line(message)}\n"
    with compilation_cache.kept():
        sys.exit(main(arguments, program))


def main(arguments: list[str], program: Program) -> int:
    """Run the command; return its exit code."""
    try:
        given = parse(_parser(program), arguments)
        if given.render is not None:
            film.check(given.render)
        all_seeds = given.seed is None
        seeds = (
            [*enumerate(load_policies(given.run))] if all_seeds else [(given.seed, load_policy(given.run, given.seed))]
        )
        if given.render is not None:  # first, because it may not be possible here
            filmed = seeds[0][1].film(given.render, not given.stochastic, given.episode_seed, given.max_steps)
            end = "not over" if filmed.episode_return is None else f"return {filmed.episode_return:.1f}"
            print(f"{given.render}: seed {seeds[0][0]}, {filmed.length:,} steps, {end}", file=sys.stderr)
        found = []
        for seed, policy in seeds:
            episodes = policy.evaluate(given.episodes, not given.stochastic, given.episode_seed, given.max_steps)
            found.append({"seed": seed, **episodes.summary()})
            if not given.json:
                print(f"seed {seed}: {_line(found[-1])}", flush=True)
        if given.json:
            found = json.loads(json.dumps(found), parse_constant=lambda _: None)  # JSON has no NaN and no infinity
            print(json.dumps({"run": str(given.run), "deterministic": not given.stochastic, "seeds": found}, indent=2))
    except (ValueError, OSError) as error:
        print(f"{program.name}: {one_line(error)}", file=sys.stderr)
        return 2
    return 0


def _parser(program: Program) -> argparse.ArgumentParser:
    parser = new_parser(program, HELP)
    parser.add_argument("run", type=Path, metavar="RUN", help="The folder of a run.")
    parser.add_argument("--episodes", type=int, default=100, help="How many episodes of each seed; 100 by default.")
    parser.add_argument("--seed", type=int, help="Which of the run's seeds, counted from 0; all by default.")
    parser.add_argument("--stochastic", action="store_true", help="Explore as in training.")
    parser.add_argument(
        "--render", type=Path, metavar="FILE", help="Film an episode of the first of these seeds: .gif or .mp4."
    )
    parser.add_argument("--json", action="store_true", help="Print everything that is known as JSON.")
    parser.add_argument("--max-steps", type=int, help="Where to give up on episodes, for environments without a limit.")
    parser.add_argument("--episode-seed", type=int, default=0, help="Another one for other episodes; 0 by default.")
    return parser


def _line(summary: dict[str, Any]) -> str:
    """Return what a summary says in words."""
    given_up = f"; {summary['given_up']:,} given up" if summary["given_up"] else ""
    if not summary["episodes"]:
        return f"no episode was played to the end{given_up}"
    parts = []
    if "success" in summary:
        low, high = (100 * bound for bound in summary["success_confidence"])
        parts.append(f"success {100 * summary['success']:.1f} % ({low:.1f} to {high:.1f} with 95 % confidence)")
    confidence = summary["confidence"]
    sure = "" if confidence is None else f" ({confidence[0]:.1f} to {confidence[1]:.1f} with 95 % confidence)"
    parts.append(f"return {summary['mean_return']:.1f}{sure}")
    parts.append(f"range {summary['min_return']:.1f} to {summary['max_return']:.1f}")
    parts.append(f"length {summary['mean_length']:.1f}")
    parts.append(f"{summary['episodes']:,} episode{'s' * (summary['episodes'] > 1)}")
    return ", ".join(parts) + given_up
