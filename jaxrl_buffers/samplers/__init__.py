"""Which rows start a sample."""

from jaxrl_buffers.samplers._base import Stateless, Wrapping
from jaxrl_buffers.samplers.episodic import Episodic
from jaxrl_buffers.samplers.mix import Mix, MixState
from jaxrl_buffers.samplers.newest import Newest
from jaxrl_buffers.samplers.prioritized import Prioritized, PrioritizedState
from jaxrl_buffers.samplers.recent import Recent, RecentState
from jaxrl_buffers.samplers.uniform import Uniform

__all__ = [
    "Episodic",
    "Mix",
    "MixState",
    "Newest",
    "Prioritized",
    "PrioritizedState",
    "Recent",
    "RecentState",
    "Stateless",
    "Uniform",
    "Wrapping",
]
