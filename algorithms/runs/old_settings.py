"""Settings under the names that they had before 1.0, for the folders of older runs.

In files and on the command line, the old names work until version 2. Only `current` knows them.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

RENAMED = {"anneals": "anneal", "normalizes": "normalize", "lock_step": "collect_then_learn"}
# Old values of `buffer`, with the samplers that replace them. The old `sampler` held options without a name.
SAMPLERS: dict[str, dict[str, Any]] = {
    "uniform": {"name": "uniform"},
    "prioritized": {"name": "prioritized"},
    "recent": {"name": "recent"},
    "recent_prioritized": {"name": "recent", "base": {"name": "prioritized"}},
}


def current(values: Mapping[str, Any], is_by_hand: bool = False) -> dict[str, Any]:
    """Return settings, as in a file, with their present names.

    Args:
        values: the settings, with names of any version.
        is_by_hand: whether a person wrote the settings; then old names give a warning.

    Example:
        >>> current({"buffer": "recent_prioritized", "sampler": {"eta": 0.99}, "anneals": True})
        {'sampler': {'name': 'recent', 'base': {'name': 'prioritized'}, 'eta': 0.99}, 'anneal': True}
    """
    buffer = values.get("buffer")
    renamed = {RENAMED.get(name, name): value for name, value in values.items()}
    lines = [f"`{name}` is now called `{RENAMED[name]}`" for name in values if name in RENAMED]
    if buffer == "rollout":
        renamed = _moved(renamed)
        lines.append("`buffer: rollout` is no longer needed, and its options are in `rollout` instead of `sampler`")
    elif isinstance(buffer, str):
        sampler = renamed.get("sampler") or {}
        # An unknown name stays, so that a later check refuses it and suggests the nearest known name.
        own = SAMPLERS.get(buffer, {"name": buffer})
        renamed = {name: value for name, value in renamed.items() if name not in ("buffer", "sampler")}
        renamed = {"sampler": {**own, **sampler} if isinstance(sampler, Mapping) else sampler, **renamed}
        base = " --sampler.base prioritized" if "base" in own else ""
        lines.append(f"`buffer {buffer}` is now `sampler`: --sampler {own['name']}{base}")
    for line in lines if is_by_hand else ():
        warnings.warn(f"{line}; the old name will be removed in version 2.", FutureWarning, stacklevel=3)
    return renamed


def _moved(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an on-policy algorithm with the options of its rollout where they are now."""
    others = {name: value for name, value in values.items() if name not in ("buffer", "sampler")}
    return {**others, "rollout": values["sampler"]} if values.get("sampler") else others
