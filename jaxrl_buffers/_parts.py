"""What the parts of a buffer say of themselves."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax


def any_says(flag: str, *parts: Any) -> bool:
    """Tell whether the flag is set in a view or sampler, or in one inside it; in one that has no such flag it is not.

    Example:
        >>> import jaxrl_buffers as jb
        >>> any_says("balanced", jb.Recent(jb.Uniform(balanced=True)))
        True
    """
    for part in parts:
        inner = part if isinstance(part, tuple) else vars(part).values() if _is_component(part) else ()
        if getattr(part, flag, False) or any_says(flag, *inner):
            return True
    return False


def _is_component(part: Any) -> bool:
    """Tell whether something has parts: what stands for a number while JAX traces has none."""
    return dataclasses.is_dataclass(part) and not jax.tree_util.all_leaves([part])
