"""The model of a whole buffer: what it may draw, with which weights, and what a drawn start must give."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest
from models.episodes import History, goal_candidates, relabeled
from models.recency import main_sampler, probabilities, weights
from models.ring import ReferencePriorities, ReferenceRing, Start, legal_starts, n_step, sequence

import jaxrl_buffers as jb


class ReferenceBuffer:
    """A ring of the rows of `helpers.transition`, and priorities if the main sampler draws by them."""

    def __init__(self, buffer: jb.ReplayBuffer) -> None:
        self.buffer, view = buffer, buffer.view
        self.ring = ReferenceRing(buffer.length, buffer.num_envs)
        lookback = view.lookback + (0 if buffer.frames is None else buffer.frames.stack - 1)
        self.limits = (view.lookahead, lookback, view.stride, getattr(view, "within_episode", False))
        self.priorities: ReferencePriorities | None = None
        if isinstance(sampler := main_sampler(buffer.sampler), jb.Prioritized):
            self.priorities = ReferencePriorities(
                self.ring, sampler.alpha, sampler.epsilon, sampler.initial, *self.limits
            )

    def starts(self) -> list[Start]:
        """Returns the legal starts."""
        return legal_starts(self.ring, *self.limits)

    def check_draw(self, handles: list[Start], drawn_weights: np.ndarray, progress: float) -> None:
        """Checks that only drawable starts have weights, and that these are right."""
        found, expected = self._drawable(handles, progress)
        for handle, weight in zip(handles, drawn_weights, strict=True):
            assert (handle in found) == (weight > 0)
        np.testing.assert_allclose(drawn_weights, [expected.get(handle, 0) for handle in handles], rtol=2e-4)

    def _drawable(self, handles: list[Start], progress: float) -> tuple[set[Start], dict[Start, float]]:
        """Returns the starts that can be drawn, and the weight of each, or at least of the drawn ones."""
        legal, sampler = self.starts(), self.buffer.sampler
        if isinstance(sampler, (jb.Recent, jb.Combined)):
            leaves = self.priorities.leaves if self.priorities is not None else {}
            found, least = probabilities(
                sampler, self.ring, leaves, legal, self.limits, progress, batch_size=len(handles)
            )
            return set(found), weights(sampler, found, least)
        if self.priorities is None or not legal:
            return set(legal), dict.fromkeys(legal, 1.0)
        return set(legal), self.priorities.weights(sampler.beta, sampler.weighting, handles)

    def check_batch(self, start: Start, batch: jb.Batch) -> None:
        """Checks what one start gave."""
        view = self.buffer.view
        if isinstance(view, jb.Hindsight):
            expected = self._with_hindsight(start, float(batch.obs["x"][0]))
        elif isinstance(view, jb.NStep):
            expected = n_step(self.ring, *start, view.n, view.gamma)
        else:
            expected = sequence(self.ring, *start, view.length, view.burn_in, view.gamma, view.n)
            np.testing.assert_array_equal(batch.mask, expected["mask"])
            if view.n > 1:
                batch, expected = _counted(batch, expected)
                np.testing.assert_array_equal(batch.num_steps, expected["num_steps"])
        if self.buffer.returns is not None:
            assert batch.extras.pop("episodic_return") == pytest.approx(self._episodic_return(*start), rel=1e-5)
        for name in ("obs", "action", "next_obs", "extras"):
            jax.tree.map(np.testing.assert_array_equal, getattr(batch, name), expected[name])
        np.testing.assert_allclose(batch.reward, expected["reward"], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(batch.discount, expected["discount"], rtol=1e-6)

    def _with_hindsight(self, start: Start, goal: float) -> dict:
        """Returns what a sample must be that was given this goal; the number of the goal's row tells that row."""
        view, record = self.buffer.view, self.ring.record(*start)
        if goal == record["obs"]["x"][0]:  # not relabeled: the goal of no later row
            return n_step(self.ring, *start, view.view.n, view.view.gamma)
        rows = [self.ring.record(*row) for row in goal_candidates(self.ring, *start, view.strategy)]
        (row,) = (row for row in rows if row["next_obs"]["x"][0] == goal)
        change = functools.partial(relabeled, goal=row["next_obs"]["x"], relabel=_relabel)
        return n_step(self.ring, *start, view.view.n, view.view.gamma, change)

    def _episodic_return(self, env: int, position: int) -> float:
        history = History(self.buffer.length)
        for number in range(position, self.ring.heads()[env]):
            record = self.ring.record(env, number)
            history.add(float(record["reward"]), bool(record["terminated"]), bool(record["truncated"]))
        settings = self.buffer.returns
        return history.discounted_return(0, settings.gamma, settings.default, bootstrap=False)


def _counted(batch: jb.Batch, expected: dict) -> tuple[jb.Batch, dict]:
    """Keeps only the targets that count: others, of the burn-in and after an end, may be anything."""
    of_target = ("reward", "discount", "next_obs", "num_steps")
    kept = {name: jax.tree.map(lambda leaf: leaf[batch.mask], getattr(batch, name)) for name in of_target}
    return batch._replace(**kept), expected | {
        name: jax.tree.map(lambda leaf: leaf[batch.mask], expected[name]) for name in of_target
    }


def _relabel(record: dict, goal: np.ndarray) -> dict:
    """Does what the registry's `relabel` does."""
    reached = bool(np.array_equal(record["next_obs"]["x"], goal))
    return record | {"obs": record["obs"] | {"x": goal}, "reward": 0.0 if reached else -1.0, "terminated": reached}
