"""Which rows start a sample."""

from jaxrl_buffers.samplers.episodic import Episodic
from jaxrl_buffers.samplers.prioritized import Prioritized, PrioritizedState
from jaxrl_buffers.samplers.uniform import Uniform

__all__ = ["Episodic", "Prioritized", "PrioritizedState", "Uniform"]
