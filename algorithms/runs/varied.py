"""One component for several that differ only in hyper-parameters; the values are filled in later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike


class Varied:
    """One component for several that differ in leaves only.

    Leaves that are equal in all components stay plain numbers, which the compiler sees as constants.

    Args:
        components: of the same structure.

    Example:
        >>> import jaxrl_buffers as jb
        >>> varied = Varied([jb.n_step(100, n=3, gamma=gamma) for gamma in (0.9, 0.99)])
        >>> varied.values
        [array([0.9 , 0.99])]
        >>> varied.at([0.5]).view
        NStep(n=3, gamma=0.5)
    """

    def __init__(self, components: Sequence[Any]):
        self.first: Any = components[0]
        flat = [jax.tree.flatten(component) for component in components]
        self._leaves, self._structure = flat[0]
        if any(structure != self._structure for _, structure in flat):
            raise ValueError("the components differ in more than hyper-parameters; run them one by one.")
        of_leaves = list(zip(*(leaves for leaves, _ in flat), strict=True))
        self._places = [place for place, leaves in enumerate(of_leaves) if any(map(_differs, leaves, leaves[1:]))]
        self.values: list[np.ndarray] = [
            np.stack([np.asarray(leaf) for leaf in of_leaves[place]]) for place in self._places
        ]

    def at(self, values: Sequence[Any]) -> Any:
        """Return the component with these values for the leaves in which the components differ."""
        leaves = list(self._leaves)
        for place, value in zip(self._places, values, strict=True):
            leaves[place] = value
        return jax.tree.unflatten(self._structure, leaves)


def _differs(one: ArrayLike, other: ArrayLike) -> bool:
    return not np.array_equal(np.asarray(one), np.asarray(other))
