"""Names of environments that a user may have meant."""

from __future__ import annotations

import difflib

import gymnasium

from algorithms.environments._gymnax import gymnax


def meant_by(name: str) -> list[str]:
    """Return names like one that does not exist, also those of other libraries."""
    if name in gymnasium.registry or name.startswith("ALE/"):
        return [f"gymnasium:{name}"]
    near = difflib.get_close_matches(name, gymnax.registered_envs, n=3, cutoff=0.4)
    others = difflib.get_close_matches(name, gymnasium.registry, n=1, cutoff=0.7)
    return near + [f"gymnasium:{other}" for other in others] or [
        "one of gymnax.registered_envs",
        "gymnasium:NAME",
        "brax:NAME",
        "my_module:function",
    ]
