"""Collecting rows: environments together with the memory of the agent that acts in them, and threads for this work."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol

import jax
import numpy as np

from algorithms.environments import Finished
from algorithms.environments.described import with_info
from algorithms.environments.stepping import Stepper
from algorithms.runs._rows import Rows
from jaxrl_buffers import Transition
from jaxrl_buffers.types import PyTree


class Act(Protocol):
    """The function that chooses actions."""

    def __call__(
        self, obs: PyTree, carry: PyTree, is_fresh: np.ndarray, number: np.int32, /
    ) -> tuple[PyTree, PyTree, PyTree]:
        """Return actions, the new carry and extras.

        Args:
            obs: observations `[N, ...]`.
            carry: what acting remembers.
            is_fresh: `bool[N]`, True where an episode begins.
            number: the number of the step.
        """
        ...


class Collector:
    """Environments, what acting in them remembers, and the rows that were collected but not yet taken.

    Args:
        steps: the environments.
        carry: what acting remembers at the start of an episode.
    """

    def __init__(self, steps: Stepper, carry: PyTree):
        self.steps, self._first_carry, self._rows = steps, carry, Rows(steps.num_envs)
        self._forget()

    def reset(self, seed: int | list[int]) -> None:
        """Begin new episodes."""
        self.steps.reset(seed)
        self._forget()

    def collect(self, act: Act, num_rows: int) -> tuple[Transition, Finished]:
        """Step until every environment has `K = num_rows` rows, and return them with the episodes that finished."""
        number = 0
        while len(self._rows) < num_rows:
            action, self._carry, extras = act(self.steps.obs, self._carry, self._is_fresh, np.int32(number))
            action, extras = jax.tree.map(np.asarray, (action, extras))
            transition, finished, is_row = self.steps.step(action)
            self._is_fresh = np.asarray(finished.ended) | ~is_row
            extras = with_info(extras, transition.extras)
            self._rows.add((transition._replace(extras=extras), finished), is_row)
            number += 1
        return self._rows.take(num_rows)

    def _forget(self) -> None:
        self._carry, self._is_fresh = self._first_carry, np.ones(self.steps.num_envs, bool)
        self._rows.clear()


class Worker:
    """A thread that does one task after the other. It gets tasks faster than a thread of `concurrent.futures`.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str):
        self._tasks: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def begin(self, task: Callable[[], Any]) -> None:
        """Begin a task. Call `result` once for every task before `close`, or its result is lost."""
        self._tasks.put(task)

    def result(self) -> Any:
        """Wait for the oldest task, then return its result or raise its error."""
        value, error = self._results.get()
        if error is not None:
            error.add_note(f"This came from the thread {self._thread.name!r}.")
            raise error
        return value

    def close(self) -> None:
        """End the thread when its present task is done."""
        self._tasks.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                answer = task(), None
            except BaseException as error:  # any error must reach the thread that waits for the result
                answer = None, error
            self._results.put(answer)
