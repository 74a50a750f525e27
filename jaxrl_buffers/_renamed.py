"""Old names of classes. They still work, with a `DeprecationWarning`."""

from __future__ import annotations

import warnings

SAMPLERS = {"Mix": "Combined", "MixState": "CombinedState", "Newest": "LastN"}


def current_name(name: str, stacklevel: int = 3) -> str:
    """Return the present name of a class, and warn if `name` is an old one.

    Args:
        name: any name.
        stacklevel: as in `warnings.warn`; by default the warning points to the caller of the caller.
    """
    if name not in SAMPLERS:
        return name
    message = f"`{name}` is now called `{SAMPLERS[name]}`; the old name will be removed in version 2."
    warnings.warn(message, DeprecationWarning, stacklevel=stacklevel)
    return SAMPLERS[name]
