"""How far a run is, and what a fork of it takes over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from algorithms.runs.run_folder import RunFolder
from algorithms.runs.saved_states import SavedStates
from algorithms.runs.settings import Settings
from algorithms.runs.side_by_side import Members, shapes_of_all
from algorithms.training.plan import Plan
from algorithms.training.train_state import TrainState
from jaxrl_buffers import _saved_leaves as saved_leaves
from jaxrl_buffers._checks import first_difference
from jaxrl_buffers.types import PyTree


class Progress(NamedTuple):
    """How far a run is. `seconds` exclude compilation and evaluation; `offline_seconds` are a part of them."""

    iteration: int = 0
    seconds: float = 0.0
    offline_seconds: float = 0.0

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> Progress:
        """Return the progress that is saved in a checkpoint."""
        try:
            times = float(saved["seconds"]), float(saved.get("offline_seconds", 0))
            return cls(int(saved["iteration"]), *times)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"this is not the checkpoint of a run: {error!r} in {dict(saved)}.") from None

    def steps(self, plan: Plan) -> int:
        """Return how many environment steps of each seed were made."""
        return plan.steps(self.iteration)

    def after(self, plan: Plan, num_iterations: int, seconds: float) -> Progress:
        """Return the progress after more iterations of one phase, which took `seconds`."""
        offline = seconds if self.iteration < plan.offline_updates else 0.0
        return Progress(self.iteration + num_iterations, self.seconds + seconds, self.offline_seconds + offline)

    def chunk(self, plan: Plan, most: int | None = None) -> int:
        """Return the number of iterations in the next chunk.

        There are about ten chunks between two evaluations, and more if a chunk would have more than `most` iterations.
        No chunk goes past an evaluation.
        """
        tested, next_test = plan.interval(self.iteration)
        interval = next_test - tested
        # Parts are equal, so that they share one program. A run whose budget was changed may be inside a part.
        part = next(interval // parts for parts in (10, 8, 12, 5, 4, 3, 2, 1) if interval % parts == 0)
        if most is not None and part > most:
            # If no part of about this size is equal to all others, one program more is compiled for the last one.
            part = next((size for size in range(most, most // 4, -1) if interval % size == 0), most)
        return min(part, next_test - self.iteration)

    def summary(self, plan: Plan, num_seeds: int) -> dict[str, Any]:
        """Return the progress as metrics and results show it; with offline updates, also the number of updates."""
        steps = self.steps(plan)
        trained = num_seeds * max(steps - plan.start_steps, 0)
        speed = trained / max(self.seconds - self.offline_seconds, 1e-9)
        updates = {"updates": plan.updates(self.iteration)} if plan.offline_updates else {}
        return {"steps": steps, **updates, "seconds": self.seconds, "steps_per_second": speed}

    def num_tests(self, plan: Plan) -> int:
        """Return how many evaluations there were: those at multiples of the interval, and one at the end.

        Raising the budget does not change which tests a run has. The test at the old end is not counted, so the next
        one plays the same episodes.
        """
        return plan.num_tests(self.iteration)


def check_total(folder: RunFolder, plan: Plan, steps: int) -> None:
    """Refuse a budget below the steps that a run has made."""
    if steps > plan.total_steps:
        raise ValueError(
            f"total_steps is {plan.total_steps:,}, but {folder.path} has made {steps:,} steps already; choose at "
            "least that many."
        )


def read_agent(origin: RunFolder, like_origin: TrainState, like: TrainState) -> PyTree:
    """Return the agent of another run; its shapes must be those of the new run's agent.

    Args:
        origin: the other run.
        like_origin: shapes of the other run's state.
        like: shapes of the new run's state.
    """
    both = map(shapes_of_all, (like_origin, like))
    stored, wanted = (saved_leaves.kinds({"agent": one.agent}) for one in both)
    if (found := first_difference(stored, wanted)) is not None:
        name, there, needed = found
        raise ValueError(
            f"the agent of {origin.path} cannot go on here: it has {there} for {name}, and {needed} is needed; "
            "networks, wrappers and the number of seeds must be the same."
        )
    return origin.restore(_only(like, "agent"), partial=True)[0].agent


def _only(like: PyTree, *names: str) -> Any:
    """Return shapes of a state of which only some fields are read."""
    if isinstance(like, Members):
        return Members(tuple(_only(state, *names) for state in like.states))
    return TrainState(*(getattr(like, name) if name in names else () for name in TrainState._fields))  # pyright: ignore[reportArgumentType]


def read_origin(
    origin: RunFolder, settings: Settings, like_origin: TrainState, saved_states: SavedStates
) -> tuple[PyTree, PyTree, Progress]:
    """Return the agent, the buffer and the progress of another run, as a run of the new settings needs them.

    Args:
        origin: the other run.
        settings: of the new run.
        like_origin: shapes of the other run's state.
        saved_states: how the new run's states are saved.
    """
    both = map(shapes_of_all, (like_origin, saved_states.whole))
    stored, wanted = (saved_leaves.kinds({"agent": one.agent, "buffer": one.buffer}) for one in both)
    if (found := first_difference(stored, wanted)) is not None:
        name, there, needed = found
        raise ValueError(
            f"a fork of {origin.path} cannot change {', '.join(origin.changed_settings(settings))} like this: its "
            f"state has {there} for {name}, and the new settings need {needed}."
        )
    packed, saved = origin.restore(_only(saved_states.pack(saved_states.like), "agent", "buffer"), partial=True)
    state, progress = saved_states.unpack(packed), Progress.of(saved)
    return state.agent, state.buffer, progress._replace(iteration=_iteration(origin, settings.plan, progress))


def _iteration(origin: RunFolder, plan: Plan, progress: Progress) -> int:
    """Return the number of iterations of a new plan that make as many steps as another run has made."""
    before = origin.settings().plan
    if plan.offline_updates != before.offline_updates:
        raise ValueError(
            f"a fork of {origin.path} cannot change offline_updates, {before.offline_updates}; --start-from can."
        )
    steps = progress.steps(before)
    check_total(origin, plan, steps)
    if progress.iteration <= plan.offline_updates:
        return progress.iteration
    iteration, rest = divmod(steps - plan.start_steps, plan.update_every)
    if rest or iteration < 0:
        raise ValueError(
            f"a fork of {origin.path} begins after {steps:,} steps, which start_steps={plan.start_steps} and "
            f"iterations of update_every={plan.update_every} do not add up to; leave both as they are."
        )
    return plan.offline_updates + iteration
