"""Platforms that a buffer can be laid out for."""

from __future__ import annotations

import jax

PLATFORMS = ("cpu", "gpu", "tpu")


def resolve(platform: str | None) -> str:
    """Return the platform, by default that of JAX. A platform that is not in `PLATFORMS` counts as a GPU."""
    chosen = jax.default_backend() if platform is None else platform
    return chosen if chosen in PLATFORMS else "gpu"
