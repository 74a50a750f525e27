"""Action spaces: static, hashable descriptions of the actions of an environment."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_buffers._random.hashing import unrolled


class Discrete(NamedTuple):
    """The actions `0 ... num_actions - 1`, one `int32` each.

    Example:
        >>> Discrete(3).sample(jax.random.key(0), num_envs=2).shape
        (2,)
    """

    num_actions: int

    def sample(self, key: jax.Array, num_envs: int) -> jax.Array:
        """Draw actions `int32[N]` uniformly; consumes `key`."""
        return self.of_uniform(jax.random.uniform(unrolled(key), (num_envs,), jnp.float32))

    def of_uniform(self, uniform: jax.Array) -> jax.Array:
        """Turn uniform numbers in `[0, 1)` into actions. This compiles faster than `jax.random.randint`."""
        return jnp.minimum((uniform * self.num_actions).astype(jnp.int32), self.num_actions - 1)

    @property
    def example(self) -> jax.ShapeDtypeStruct:
        """Shape and dtype of one action."""
        return jax.ShapeDtypeStruct((), jnp.int32)

    def __str__(self) -> str:
        return f"{self.num_actions} discrete actions"


class Box(NamedTuple):
    """Vectors between two bounds, which may differ from component to component.

    Agents work with actions in `[-1, 1]`. `scale` maps these to the bounds, and `normalize` maps them back.

    Example:
        >>> space = Box(low=(-2.0, 0.0), high=(2.0, 1.0))
        >>> print(space.scale(jnp.array([0.0, -1.0])), space.normalize(jnp.array([2.0, 0.5])))
        [0. 0.] [1. 0.]
    """

    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def size(self) -> int:
        """The number of components of an action."""
        return len(self.low)

    @property
    def example(self) -> jax.ShapeDtypeStruct:
        """Shape and dtype of one action."""
        return jax.ShapeDtypeStruct((self.size,), jnp.float32)

    def sample(self, key: jax.Array, num_envs: int) -> jax.Array:
        """Draw actions `float32[N, A]` uniformly; consumes `key`."""
        return self.scale(jax.random.uniform(unrolled(key), (num_envs, self.size), jnp.float32, -1, 1))

    def scale(self, action: jax.Array) -> jax.Array:
        """Map `[..., A]` from `[-1, 1]` to the bounds."""
        middle, radius = self._middle_and_radius(action.ndim)
        return middle + radius * action

    def normalize(self, action: jax.Array) -> jax.Array:
        """Map `[..., A]` from the bounds to `[-1, 1]`."""
        middle, radius = self._middle_and_radius(action.ndim)
        return (action - middle) / radius

    def _middle_and_radius(self, ndim: int) -> tuple[jax.Array, jax.Array]:
        low, high = (jnp.asarray(bound, jnp.float32).reshape(*[1] * (ndim - 1), -1) for bound in (self.low, self.high))
        return (low + high) / 2, (high - low) / 2

    def __str__(self) -> str:
        return f"{self.size} continuous action{'s' if self.size > 1 else ''}"


Space = Discrete | Box
