"""Names for runs: what differs in their settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from algorithms.runs.command_line import flat
from algorithms.runs.settings import Settings

# Settings of how long runs train and how they are evaluated. They are part of a label only if no others differ.
AMOUNTS = ("seed", "num_seeds", "total_steps", "test_every", "num_test_episodes", "on_nan")
MOST_PARTS = 4  # of a label, unless more are needed to tell runs apart


def named(settings: Settings) -> dict[str, str]:
    """Return settings as words, by the names that options have on the command line.

    Example:
        >>> from algorithms import Plan
        >>> named(Settings("ddqn", "CartPole-v1", Plan(total_steps=2_000), sampler={"name": "recent"}))["sampler"]
        'recent'
    """
    return {name.removeprefix("plan."): _spelled(value) for name, value in flat(settings.to_dict()).items()}


def differences(runs: Sequence[Mapping[str, str]]) -> dict[str, list[str | None]]:
    """Return the settings that are not the same in all runs, with the value that each has, or None."""
    names = dict.fromkeys(name for run in runs for name in run)
    values = {name: [run.get(name) for run in runs] for name in names}
    return {name: of_runs for name, of_runs in values.items() if len({*of_runs}) > 1}


def labels(runs: Sequence[Mapping[str, str]], folders: Sequence[str]) -> list[str]:
    """Return a unique name for each run: the settings in which the runs differ, or else their folders.

    Settings that all runs have come first. Others, such as the options of one sampler, are used only if runs cannot be
    told apart without them.

    Example:
        >>> labels([{"n_step": "1", "seed": "0"}, {"n_step": "3", "seed": "1"}], ["a", "b"])
        ['n_step=1', 'n_step=3']
        >>> labels([{"n_step": "1"}, {"n_step": "1", "sampler.alpha": "0.5"}], ["a", "b"])
        ['sampler.alpha=none', 'sampler.alpha=0.5']
        >>> labels([{"n_step": "1"}, {"n_step": "1"}], ["a", "b"])
        ['a', 'b']
    """
    different = differences(runs)
    shared = [name for name, values in different.items() if name not in AMOUNTS and None not in values]
    others = [name for name in different if name not in AMOUNTS and name not in shared]
    amounts = [name for name in different if name in AMOUNTS]
    for names in (["algorithm"], shared[:MOST_PARTS], shared, [*shared, *others], [*shared, *others, *amounts]):
        found = [_label(run, [name for name in names if name in different]) for run in runs]
        if len({*found}) == len(runs) > 1:
            return found
    return list(folders)


def _label(run: Mapping[str, str], names: Sequence[str]) -> str:
    return ", ".join(run[name] if name == "algorithm" else f"{name}={run.get(name, 'none')}" for name in names)


def _spelled(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return "x".join(map(_spelled, value))
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
