"""Arrays of checkpoints of format version 1, which Orbax wrote and which have no hashes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrl_buffers._saved_arrays import Damage, Region

FORMAT_VERSION = 1


class OrbaxArrays:
    """Reads all arrays of a step at once, and forgets each one when it is returned, to save memory.

    Args:
        step: the folder of the step.
        records: the records of its leaves.
    """

    def __init__(self, step: Path, records: Mapping[str, Any]):
        import orbax.checkpoint as ocp  # imported here: it takes long, and is seldom needed

        names = [record["array"] for record in records.values() if "array" in record]
        arguments = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in names}
        self._arrays: dict[str, np.ndarray] = {}
        try:
            if names:
                with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
                    arrays = ocp.args.PyTreeRestore(restore_args=arguments)
                    self._arrays = checkpointer.restore(step / "arrays", args=arrays)
        except (OSError, ValueError, KeyError) as error:
            raise Damage(str(error)) from error

    def read(self, record: Any, shape: tuple[int, ...], regions: Sequence[Region]) -> list[Any]:
        """Return regions of the array that a record describes. Each record can be read once."""
        whole = self._arrays.pop(record).reshape(shape)
        return [_cut(whole, region) for region in regions]


def _cut(whole: np.ndarray, region: Region) -> Any:
    place = [slice(at, at + size) for at, size in zip(region.start, region.shape, strict=True)]
    part = whole[(*place, ...)]
    return part if region.as_numpy else jnp.array(part, device=region.device)
