"""Where rows are kept: a ring of time, one column an environment."""

from jaxrl_buffers.storage.frames import Frames, FrameStore
from jaxrl_buffers.storage.ring import Reader, Ring

__all__ = ["FrameStore", "Frames", "Reader", "Ring"]
