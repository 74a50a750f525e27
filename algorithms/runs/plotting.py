"""Pictures of learning curves and of the contents of a buffer; needs matplotlib."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_buffers import ReplayBuffer
from jaxrl_buffers import _statistics as statistics
from jaxrl_buffers.replay import ReplayState
from jaxrl_buffers.storage import ring

# Colors that people with any kind of color vision can tell apart (Okabe and Ito); black and yellow are left out.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")


def mean_and_band(values: np.ndarray, confidence: float = 0.95, num_resamples: int = 2_000) -> tuple[np.ndarray, ...]:
    """Return the mean over seeds of `[X, S]`, and the bounds of its bootstrap confidence interval, each `[X]`."""
    choice = np.random.default_rng(0).integers(values.shape[1], size=(num_resamples, values.shape[1]))
    means = values[:, choice].mean(axis=2)
    outside = (1 - confidence) / 2
    return values.mean(axis=1), *np.quantile(means, [outside, 1 - outside], axis=1)


def draw_curve(metrics: Sequence[Mapping[str, Any]], title: str, path: str | os.PathLike[str]) -> None:
    """Draw the learning curve of a run as a PNG: the mean return over seeds with its 95 % confidence band.

    Returns that are not finite, which metrics hold as null, leave gaps.
    """
    has_updates = any("updates" in line for line in metrics)  # some of them before the first step
    steps = np.array([line["updates" if has_updates else "steps"] for line in metrics])
    returns = np.array([np.mean(np.array(line["returns"], np.float64), axis=1) for line in metrics])
    mean, low, high = mean_and_band(returns)
    num_seeds = returns.shape[1]
    figure, axes = _picture()
    if num_seeds > 1:
        axes.plot(steps, returns, color="tab:blue", alpha=0.25, linewidth=0.8)
        band = axes.fill_between(steps, low, high, color="tab:blue", alpha=0.25, linewidth=0)
        band.set_label("95 % confidence of the mean")
    label = f"mean of {num_seeds} seeds" if num_seeds > 1 else "one seed"
    axes.plot(steps, mean, color="tab:blue", marker=".", label=label)
    axes.set(title=title, xlabel="updates" if has_updates else "environment steps")
    axes.set(ylabel="return of deterministic episodes")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=150)


def draw_curves(
    curves: Sequence[tuple[str, np.ndarray, np.ndarray]], axis: str, title: str, path: str | os.PathLike[str]
) -> None:
    """Draw the learning curves of several runs into one picture: mean and 95 % confidence band over seeds.

    Args:
        curves: for each run its name, the steps `[X]` of its evaluations, and the returns `[X, S]` of its seeds.
        axis: the name of the horizontal axis.
        title: above the picture.
        path: of the picture; its extension decides the format.
    """
    figure, axes = _picture()
    for index, (label, steps, returns) in enumerate(curves):
        mean, low, high = mean_and_band(returns)
        color, style = COLORS[index % len(COLORS)], ("-", "--", ":")[index // len(COLORS) % 3]
        axes.fill_between(steps, low, high, color=color, alpha=0.18, linewidth=0)
        axes.plot(steps, mean, style, color=color, marker=".", label=label)
    axes.set(title=title, xlabel=axis, ylabel="return, mean and 95 % band over seeds")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)


class BufferLook(NamedTuple):
    """Priorities and ages in the buffers of all seeds together."""

    priorities: np.ndarray  # float32, of all legal starts
    ages: np.ndarray  # int32, of all legal starts
    drawn_ages: np.ndarray  # int32, of a large sample


def look_at_buffer(buffer: ReplayBuffer, states: ReplayState, key: jax.Array, num_drawn: int = 65_536) -> BufferLook:
    """Return priorities and ages in states `[S, ...]`; consumes `key`.

    Args:
        buffer: of every state.
        states: one for each seed.
        key: a PRNG key.
        num_drawn: samples to draw from each state, spread over a round of updates.
    """
    num_rounds = 16

    @jax.jit
    @jax.vmap
    def look(state: ReplayState, key: jax.Array) -> tuple[statistics.Starts, jax.Array, jax.Array]:
        def draw(key: jax.Array, progress: jax.Array) -> tuple[jax.Array, jax.Array]:
            sample = buffer.sample(state, key, -(-num_drawn // num_rounds), progress)
            return ring.age_of_position(state.storage, sample.handle.position, sample.handle.env), sample.weights > 0

        progress = jnp.arange(num_rounds, dtype=jnp.float32) / num_rounds
        starts = statistics.measure(buffer, state)
        return starts, *jax.vmap(draw)(jax.random.split(key, num_rounds), progress)

    num_seeds = jax.tree.leaves(states)[0].shape[0]
    starts, age, exists = jax.tree.map(np.asarray, look(states, jax.random.split(key, num_seeds)))
    return BufferLook(starts.mass[starts.is_legal], starts.age[starts.is_legal], age[exists])


def draw_priorities(look: BufferLook, title: str, path: str | os.PathLike[str]) -> None:
    """Draw a histogram of the priorities of all starts, as a PNG."""
    figure, axes = _picture()
    axes.hist(look.priorities, bins=60, color="tab:blue")
    axes.set(title=title, xlabel="mass with which a start is drawn, such as (priority + epsilon)^alpha")
    axes.set(ylabel="starts", yscale="log")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)


def draw_ages(look: BufferLook, title: str, path: str | os.PathLike[str]) -> None:
    """Draw the ages of samples and, for comparison, the ages of all starts, as a PNG."""
    figure, axes = _picture()
    num_ages = int(look.ages.max()) + 1
    bins = [*range(0, num_ages, -(-num_ages // 60)), num_ages]  # whole ages, so that uniform ages give a level line
    axes.hist(look.drawn_ages, bins, density=True, color="tab:blue", label="what is drawn")
    axes.hist(look.ages, bins, density=True, color="black", histtype="step", label="all starts")
    axes.set(title=title, xlabel="age in rows, 0 the newest", ylabel="density")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)


def _picture() -> tuple[Any, Any]:
    """Return a figure that needs no display, and its axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.3), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()
