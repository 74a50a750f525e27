"""Platforms that a buffer can be laid out for."""

from __future__ import annotations

import jax

PLATFORMS = ("cpu", "gpu", "tpu")


def resolve(platform: str | None) -> str:
    """Return the platform that is meant: by default the one that JAX uses, of which others than these count as GPUs."""
    chosen = jax.default_backend() if platform is None else platform
    return chosen if chosen in PLATFORMS else "gpu"
