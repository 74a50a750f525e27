"""Where rows are stored: a ring over time with a column for each environment, and layers beside it.

ring.py       the ring: positions, ages, rows and slots, as arithmetic on a head and a size
rows.py       how rows are laid out in memory: each leaf in its own array, or packed into words
reader.py     how views read rows
storage.py    a ring together with its layers, which are:
frames.py     stacked observations; each frame is stored once
episodes.py   where episodes begin and end
returns.py    the return of each step of an episode
"""

from jaxrl_buffers.storage.frames import Frames
from jaxrl_buffers.storage.reader import Reader, Steps
from jaxrl_buffers.storage.returns import EpisodicReturns
from jaxrl_buffers.storage.ring import Ring
from jaxrl_buffers.storage.storage import Layer, Storage

__all__ = ["EpisodicReturns", "Frames", "Layer", "Reader", "Ring", "Steps", "Storage"]
