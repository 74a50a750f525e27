"""Replay buffers for JAX: immutable pytree states, pure `add`, `sample` and `update_priorities`.

A buffer is put together from a storage, a sampler and a view:

>>> import jaxrl_buffers as jb
>>> buffer = jb.ReplayBuffer(sampler=jb.Prioritized(alpha=0.6, beta=0.4), view=jb.NStep(n=3, gamma=0.99), length=1_000)

These are its layers. Each one is built on the layers below it. Names that begin with an underscore are internal.

    recipes                                    buffers by name: `uniform`, `prioritized`, `hindsight` ...
    sharded                                    one buffer over several devices
    mixture, iteration, rollouts, advantages   several buffers as one; epochs; on-policy data
    replay                                     `ReplayBuffer`: storage, sampler and view put together
    samplers, views                            which rows start a sample; how they become a batch
    starts                                     the legal starts, counted and numbered
    storage                                    the ring of rows, their episodes, their frames
    segment_tree                               sums of priorities, and draws in proportion to them
    types                                      the data between the layers; the protocols of the parts

Beside these layers are `parameters` (hyper-parameters by name), `host` (operations outside of `jit` that raise errors
on misuse; states shared by threads and processes) and `checked` (checks inside of `jit`). These are imported when they
are first used: `config` (components from YAML), `checkpoint` (states on disk) and `datasets` (data sets into states,
and back).
"""

import importlib
from typing import TYPE_CHECKING, Any

from jaxrl_buffers import _renamed as renamed
from jaxrl_buffers import host, samplers, segment_tree, starts, storage, views
from jaxrl_buffers._checked import checked
from jaxrl_buffers.advantages import discount_cumsum
from jaxrl_buffers.iteration import scan_batches, scan_epochs, scan_minibatches
from jaxrl_buffers.mixture import Mixture, MixtureHandle, MixtureState
from jaxrl_buffers.parameters import parameters, with_parameters
from jaxrl_buffers.recipes import (
    emphasize_recent,
    guarantee_recent,
    hindsight,
    n_step,
    prioritized,
    rollout,
    sequences,
    uniform,
)
from jaxrl_buffers.replay import ReplayBuffer, ReplayState
from jaxrl_buffers.rollouts import Rollout, RolloutBatch
from jaxrl_buffers.samplers import Combined, Episodic, LastN, Prioritized, Recent, Uniform
from jaxrl_buffers.sharded import Sharded, shard
from jaxrl_buffers.storage import Frames, Reader, Ring
from jaxrl_buffers.storage.episodes import Episode
from jaxrl_buffers.storage.returns import EpisodicReturns
from jaxrl_buffers.types import (
    Batch,
    Draw,
    Handle,
    PyTree,
    Sample,
    Sampler,
    Scalar,
    Transition,
    View,
    Window,
)
from jaxrl_buffers.views import Hindsight, NStep, Sequence

if TYPE_CHECKING:
    from jaxrl_buffers import checkpoint, config, datasets
    from jaxrl_buffers.config import from_config, from_yaml, to_config

__version__ = "1.0.0rc1"

__all__ = [
    "Batch",
    "Combined",
    "Draw",
    "Episode",
    "Episodic",
    "EpisodicReturns",
    "Frames",
    "Handle",
    "Hindsight",
    "LastN",
    "Mixture",
    "MixtureHandle",
    "MixtureState",
    "NStep",
    "Prioritized",
    "PyTree",
    "Reader",
    "Recent",
    "ReplayBuffer",
    "ReplayState",
    "Ring",
    "Rollout",
    "RolloutBatch",
    "Sample",
    "Sampler",
    "Scalar",
    "Sequence",
    "Sharded",
    "Transition",
    "Uniform",
    "View",
    "Window",
    "checked",
    "checkpoint",
    "config",
    "datasets",
    "discount_cumsum",
    "emphasize_recent",
    "from_config",
    "from_yaml",
    "guarantee_recent",
    "hindsight",
    "host",
    "n_step",
    "parameters",
    "prioritized",
    "rollout",
    "samplers",
    "scan_batches",
    "scan_epochs",
    "scan_minibatches",
    "segment_tree",
    "sequences",
    "shard",
    "starts",
    "storage",
    "to_config",
    "uniform",
    "views",
    "with_parameters",
]

# These modules need more than jax and numpy, so they are imported when they are first used.
_MODULES = ("checkpoint", "config", "datasets")
_FUNCTIONS = {"from_config": "config", "from_yaml": "config", "to_config": "config"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _FUNCTIONS:
        return getattr(importlib.import_module(f"{__name__}.{_FUNCTIONS[name]}"), name)
    if name in renamed.SAMPLERS:
        return getattr(samplers, renamed.current_name(name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
