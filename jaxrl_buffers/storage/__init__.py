"""Where rows are kept: a ring of time, one column an environment, and what lies beside it.

ring.py       the ring: positions, rows and slots, as arithmetic on two cursors
rows.py       how rows lie in memory: leaves apart, or packed into words
reader.py     how views read rows
storage.py    a ring together with its layers, which are:
frames.py     observations kept once
episodes.py   where episodes begin and end
returns.py    the returns of their steps
"""

from jaxrl_buffers.storage.frames import Frames
from jaxrl_buffers.storage.reader import Reader, Steps
from jaxrl_buffers.storage.returns import EpisodicReturns
from jaxrl_buffers.storage.ring import Ring
from jaxrl_buffers.storage.storage import Layer, Storage

__all__ = ["EpisodicReturns", "Frames", "Layer", "Reader", "Ring", "Steps", "Storage"]
