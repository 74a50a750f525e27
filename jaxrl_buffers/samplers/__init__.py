"""Samplers: they decide at which rows samples start."""

from typing import Any

from jaxrl_buffers import _renamed as renamed
from jaxrl_buffers.samplers._base import Stateless, Wrapping
from jaxrl_buffers.samplers.combined import Combined, CombinedState
from jaxrl_buffers.samplers.episodic import Episodic
from jaxrl_buffers.samplers.last_n import LastN
from jaxrl_buffers.samplers.prioritized import Prioritized, PrioritizedState
from jaxrl_buffers.samplers.recent import Recent, RecentState
from jaxrl_buffers.samplers.uniform import Uniform

__all__ = [
    "Combined",
    "CombinedState",
    "Episodic",
    "LastN",
    "Prioritized",
    "PrioritizedState",
    "Recent",
    "RecentState",
    "Stateless",
    "Uniform",
    "Wrapping",
]


def __getattr__(name: str) -> Any:
    if name in renamed.SAMPLERS:
        return globals()[renamed.current_name(name)]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
