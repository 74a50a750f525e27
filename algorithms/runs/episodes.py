"""How good a trained policy is, over any number of episodes."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from algorithms.environments import Described, Environment
from algorithms.environments.gymnasium import HostEnvironment
from algorithms.runs.host_evaluation import evaluate_on_host
from algorithms.training.evaluation import evaluate
from algorithms.types import Agent
from jaxrl_buffers._checks import require_integer
from jaxrl_buffers._random.hashing import fold_in
from jaxrl_buffers.types import PyTree

MOST_AT_ONCE = 1_024  # environments side by side in the compiled program
CONFIDENCE = 0.95

_evaluate = jax.jit(evaluate, static_argnames=("num_episodes", "deterministic", "max_steps"))


class Episodes(NamedTuple):
    """Complete episodes of one policy, NumPy arrays `[E]`."""

    returns: np.ndarray  # float32
    lengths: np.ndarray  # int32; 0 for episodes that were given up
    successes: np.ndarray | None = None  # bool; where the goal was reached, in environments with goals

    def summary(self) -> dict[str, Any]:
        """Return means, their 95 % confidence intervals and ranges, over the episodes that were played to the end.

        Example:
            >>> episodes = Episodes(np.array([1.0, 3.0]), np.array([10, 20]))
            >>> summary = episodes.summary()
            >>> summary["mean_return"], summary["mean_length"], summary["max_return"]
            (2.0, 15.0, 3.0)
        """
        is_complete = self.lengths > 0
        returns = self.returns[is_complete].astype(np.float64)
        summary: dict[str, Any] = {"episodes": len(returns), "given_up": int(np.sum(~is_complete))}
        if not len(returns):
            return summary
        summary |= {
            "mean_return": float(np.mean(returns)),
            "confidence": _confidence(returns),
            "min_return": float(np.min(returns)),
            "max_return": float(np.max(returns)),
            "deviation": float(np.std(returns)),
            "mean_length": float(np.mean(self.lengths[is_complete])),
        }
        if self.successes is not None:
            reached = self.successes[is_complete]
            summary |= {"success": float(np.mean(reached)), "success_confidence": _confidence_of_share(reached)}
        return summary


def play(
    agent: Agent,
    state: PyTree,
    env: Described,
    num_episodes: int,
    key: jax.Array,
    deterministic: bool = True,
    max_steps: int | None = None,
) -> Episodes:
    """Play complete episodes; consumes `key`.

    Args:
        agent: the algorithm.
        state: its state.
        env: the environment.
        num_episodes: `E`.
        key: a PRNG key.
        deterministic: act without exploration.
        max_steps: the step at which an episode is given up, for environments without a time limit.
    """
    require_integer("evaluate", "num_episodes", num_episodes, 1)
    if max_steps is not None:
        require_integer("evaluate", "max_steps", max_steps, 1)
    if isinstance(env, HostEnvironment):
        returns, lengths = evaluate_on_host(agent, state, env, key, num_episodes, deterministic, max_steps)
    else:
        assert isinstance(env, Environment)
        # All rounds have one size, so that they share one program. Extra episodes of the last round are left out.
        num_rounds = -(-num_episodes // MOST_AT_ONCE)
        sizes = {"num_episodes": -(-num_episodes // num_rounds), "max_steps": max_steps}
        keys = [key, *(fold_in(key, number) for number in range(1, num_rounds))]
        rounds = [_evaluate(agent, state, env, each, deterministic=deterministic, **sizes) for each in keys]
        returns, lengths = (np.concatenate(parts)[:num_episodes] for parts in zip(*rounds, strict=True))
    return Episodes(returns, lengths, None if env.goal is None else env.goal.is_reached(returns, lengths))


def _confidence(values: np.ndarray) -> list[float] | None:
    """Return the confidence bounds of a mean by Student's t; None for a single value."""
    from scipy import stats  # takes long to import

    if len(values) < 2:
        return None
    mean, error = np.mean(values), stats.sem(values)
    low, high = stats.t.interval(CONFIDENCE, len(values) - 1, mean, error) if error > 0 else (mean, mean)
    return [float(low), float(high)]


def _confidence_of_share(flags: np.ndarray) -> list[float]:
    """Return the confidence bounds of a share by Wilson's interval, which has a width even if all flags are equal."""
    from scipy import stats

    found = stats.binomtest(int(np.sum(flags)), len(flags)).proportion_ci(CONFIDENCE, "wilson")
    return [float(found.low), float(found.high)]
