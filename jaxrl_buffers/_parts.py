"""What the parts of a buffer say of themselves."""

from __future__ import annotations

import dataclasses
from typing import Any


def any_says(flag: str, *parts: Any) -> bool:
    """Tell whether the flag is set in a view or sampler, or in one inside it; in one that has no such flag it is not.

    Example:
        >>> import jaxrl_buffers as jb
        >>> any_says("balanced", jb.Recent(jb.Uniform(balanced=True)))
        True
    """
    for part in parts:
        inner = part if isinstance(part, tuple) else vars(part).values() if dataclasses.is_dataclass(part) else ()
        if getattr(part, flag, False) or any_says(flag, *inner):
            return True
    return False
