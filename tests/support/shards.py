"""Rows of many environments, which devices share unequally."""

from __future__ import annotations

import numpy as np
from jax.sharding import PartitionSpec as P
from support.mesh import AXIS

import jaxrl_buffers as jb

D, N, T, K = 4, 8, 6, 9  # devices, environments of all of them, rows of the ring, rows that are added
COLUMNS = P(None, AXIS)


def rows(seed: int, num_rows: int = K) -> jb.Transition:
    """Return a chunk `[K, N]` whose observations are random numbers, with episodes of random lengths."""
    rng = np.random.default_rng(seed)
    shape = (num_rows, N)
    obs = rng.normal(size=shape).astype(np.float32)
    return jb.Transition(
        obs=obs,
        action=np.zeros(shape, np.int32),
        reward=rng.normal(size=shape).astype(np.float32),
        terminated=rng.random(shape) < 0.2,
        truncated=rng.random(shape) < 0.1,
        next_obs=obs,
    )


def priorities(seed: int) -> np.ndarray:
    """Return priorities `[K, N]` that differ by orders of magnitude from one device to the next."""
    values = np.random.default_rng(seed).exponential(size=(K, N))
    return (values * np.repeat(10.0 ** np.array([-2, 0, 3, 1]), N // D)).astype(np.float32)


def masks(seed: int, lockstep: bool) -> np.ndarray | None:
    """Return which rows are written `[K, N]`: on some devices few, on one of them none."""
    share = np.repeat([0.9, 0.15, 0.5, 0.0], N // D)
    return None if lockstep else np.random.default_rng(seed).random((K, N)) < share
