"""Folders of runs with made-up returns."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from algorithms import Plan
from algorithms.runs.build import complete
from algorithms.runs.run_folder import RunFolder
from algorithms.runs.settings import Settings

SCRIPTS = Path(__file__).parents[2] / "scripts"
PLAN = Plan(total_steps=300, start_steps=100, update_every=50, test_every=50)
SETTINGS = complete(Settings("ddqn", "CartPole-v1", PLAN))


def make_run(path, level, settings=SETTINGS, seeds=4, steps=(100, 200, 300), final=True):
    """Write a run whose seeds reach `level`, `level + 1` ... in the end, and half of it in the middle."""
    settings = dataclasses.replace(settings, num_seeds=seeds)
    folder = RunFolder(path)
    folder.create(settings)
    for step in steps:
        scores = [(level + seed) * step / 300 for seed in range(seeds)]
        folder.append({"steps": step, "seconds": 1.0, "returns": [[score - 1, score + 1] for score in scores]})
    if final:
        of_seeds = [level + 0.5 + seed for seed in range(seeds)]
        folder.finish({"steps": steps[-1], "episodes": 7, "return_of_seeds": of_seeds})
    return folder


def make_pair(folder):
    """Write two runs that differ in one setting; return their paths."""
    one = make_run(folder / "one", 20.0)
    three = make_run(folder / "three", 60.0, dataclasses.replace(SETTINGS, n_step=3))
    return [one.path, three.path]
