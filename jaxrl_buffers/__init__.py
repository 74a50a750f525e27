"""Replay buffers for JAX: immutable pytree states, pure `add`, `sample` and `update_priorities`.

A buffer is a product, storage x sampler x view:

>>> import jaxrl_buffers as jb
>>> buffer = jb.ReplayBuffer(sampler=jb.Prioritized(alpha=0.6, beta=0.4), view=jb.NStep(n=3, gamma=0.99), length=1_000)
"""

from jaxrl_buffers import host, segment_tree
from jaxrl_buffers.episodes import Episode
from jaxrl_buffers.iteration import scan_batches, scan_epochs
from jaxrl_buffers.parameters import parameters, with_parameters
from jaxrl_buffers.recipes import hindsight, n_step, prioritized, sequences, uniform
from jaxrl_buffers.replay import ReplayBuffer, ReplayState
from jaxrl_buffers.returns import EpisodicReturns
from jaxrl_buffers.samplers import Episodic, Prioritized, Uniform
from jaxrl_buffers.types import Batch, Draw, Handle, Sample, Sampler, Transition, View, Window
from jaxrl_buffers.views import Hindsight, NStep, Sequence

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "Draw",
    "Episode",
    "Episodic",
    "EpisodicReturns",
    "Handle",
    "Hindsight",
    "NStep",
    "Prioritized",
    "ReplayBuffer",
    "ReplayState",
    "Sample",
    "Sampler",
    "Sequence",
    "Transition",
    "Uniform",
    "View",
    "Window",
    "hindsight",
    "host",
    "n_step",
    "parameters",
    "prioritized",
    "scan_batches",
    "scan_epochs",
    "segment_tree",
    "sequences",
    "uniform",
    "with_parameters",
]
