"""Views: they turn drawn rows into batches."""

from jaxrl_buffers.views.hindsight import Hindsight
from jaxrl_buffers.views.n_step import NStep
from jaxrl_buffers.views.sequence import Sequence

__all__ = ["Hindsight", "NStep", "Sequence"]
