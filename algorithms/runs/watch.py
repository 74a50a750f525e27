"""Watches a run for faults between chunks, and reports each kind of fault once."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np

from algorithms.training import faults
from algorithms.training.metrics import Sums
from jaxrl_buffers._saved_leaves import SideBySide

_NONFINITE = [name for name in faults.NAMES if name.startswith("nonfinite_")]


class NotFinite(Exception):
    """The run met numbers that are not finite, and stopped as asked; its checkpoint, if any, is from before."""


class Watch:
    """Looks at the counts of a run, and reports faults.

    Args:
        report: called with one line.
        environment: its name.
        on_nan: as in `Plan`.
        kept_steps: returns the number of steps at the last finite checkpoint; None if there is none.
    """

    def __init__(
        self, report: Callable[[str], None], environment: str, on_nan: str, kept_steps: Callable[[], int | None]
    ):
        self._report = report
        self._environment = environment
        self._on_nan = on_nan
        self._kept_steps = kept_steps
        self._reported: set[str] = set()  # kinds of faults
        self._ends = np.zeros(2)  # truncated episodes, and those also terminated, up to the last reading

    def look(self, sums: Sums, is_read: bool) -> None:
        """Report new faults in the sums of all seeds; `is_read` says that the sums start from zero after this.

        Raises:
            NotFinite: if the run is to stop.
        """
        first = np.asarray(sums.first_steps).reshape(-1, len(faults.NAMES))
        ends = np.stack([np.sum(sums.total(name)) for name in ("truncated_episodes", "ended_both_ways")])
        self._look_for_nonfinite(first)
        self._look_at_ends(self._ends + ends, first)
        if is_read:
            self._ends += ends

    def saved_nonfinite(self) -> None:
        """Report that a state was saved whose agent is not finite."""
        line = f"the agent is not finite any more; its states go to checkpoint_nonfinite, and {self._kept()}."
        self._report_once("agent", line)

    def _kept(self) -> str:
        steps = self._kept_steps()
        return "there is no finite checkpoint" if steps is None else f"the checkpoint of {steps:,} steps is kept"

    def _look_for_nonfinite(self, first: np.ndarray) -> None:
        steps = {name: first[:, faults.NAMES.index(name)] for name in _NONFINITE}
        found = {name: _when(seeds) for name, seeds in steps.items() if np.any(seeds)}
        if not found:
            return
        listed = " and ".join(f"{name.removeprefix('nonfinite_')} at {when}" for name, when in found.items())
        if self._on_nan == "stop":
            raise NotFinite(f"stopped: {listed} were not finite; {self._kept()}")
        done = {
            "warn": "training goes on (`--on-nan skip` leaves such updates out, `--on-nan stop` ends the run)",
            "skip": "updates with such gradients are skipped",
        }
        self._report_once("nonfinite", f"{listed} were not finite; {done[self._on_nan]}.")

    def _look_at_ends(self, ends: np.ndarray, first: np.ndarray) -> None:
        truncated, both = ends
        if not both or both < truncated:  # a task may end in the very step of the time limit, but not every time
            return
        step = first[:, faults.NAMES.index("ended_both_ways")].max()
        self._report_once(
            "ends",
            f"in {self._environment} every episode that met its time limit was terminated as well (first at step "
            f"{step:,}), so the value of what would follow counts as zero; let `terminated` leave out the time limit.",
        )

    def _report_once(self, kind: str, line: str) -> None:
        if kind not in self._reported:
            self._reported.add(kind)
            self._report(line)


def _when(steps: np.ndarray) -> str:
    """Return when a fault first occurred, in words, from the `first_steps` of all seeds."""
    offline = steps[steps < 0]
    return f"offline update {-offline.max():,}" if offline.size else f"step {steps[steps > 0].min():,}"


def num_nonfinite(agent_state: object) -> int:
    """Count the numbers in an agent's state, of all seeds, that are not finite."""
    if isinstance(agent_state, SideBySide):
        return sum(map(num_nonfinite, agent_state.states))
    return int(_num_nonfinite(agent_state))


_num_nonfinite = jax.jit(faults.num_nonfinite)
