"""Noise for exploring with a deterministic policy, of variance one, in the units of normalized actions.

Correlated noise pushes in one direction long enough to get somewhere, where independent noise averages out. Its memory
is part of the agent's carry: one process for every environment and component of the action, forgotten where the
training loop sees an episode end. A process begins at its stationary distribution, not at zero, so its variance is one
from the first step of an episode to the last.

Ornstein-Uhlenbeck and pink noise are both made of first-order autoregressive processes of variance one,

    x_t = d x_{t-1} + sqrt(1 - d^2) epsilon_t,   epsilon_t ~ N(0, 1),   x_0 ~ N(0, 1)

Differences from PyTorchRL: the noise is drawn for every environment and component, not once for all of them; its
driver is normal, not uniform on [0, 1), so it pushes in no preferred direction; `theta=0.15` is the original's, whose
`sigma=0.2` is a scale of 0.38 here.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_buffers._checks import require_choice, require_number
from jaxrl_buffers._random.hashing import unrolled
from jaxrl_buffers.component import Component
from jaxrl_buffers.types import PyTree, Scalar


class Noise(Protocol):
    """A process of variance one for each of `N` environments and `A` components of an action."""

    def initial_carry(self, num_envs: int, size: int) -> PyTree:
        """Return the memory of processes that have not begun, leaves `[N, ...]`; `()` if there is none."""
        ...

    def draw(self, carry: PyTree, key: jax.Array, num_envs: int, size: int) -> tuple[jax.Array, PyTree]:
        """Return the next values `float32[N, A]` and memory; consumes `key`."""
        ...


class NoiseState(NamedTuple):
    """What autoregressive processes remember."""

    value: jax.Array  # float32[N, A, M]
    has_begun: jax.Array  # bool[N]


class Gaussian(Component):
    """Independent normal noise.

    Example:
        >>> noise, _ = Gaussian().draw((), jax.random.key(0), num_envs=4, size=2)
        >>> noise.shape
        (4, 2)
    """

    def initial_carry(self, num_envs: int, size: int) -> PyTree:
        """Nothing is remembered."""
        return ()

    def draw(self, carry: PyTree, key: jax.Array, num_envs: int, size: int) -> tuple[jax.Array, PyTree]:
        """Return noise `float32[N, A]`; consumes `key`."""
        return jax.random.normal(unrolled(key), (num_envs, size), jnp.float32), carry


class OrnsteinUhlenbeck(Component):
    """One autoregressive process with `d = 1 - theta`; Uhlenbeck and Ornstein (1930).

    Args:
        theta: the share of its value that the process loses in one step, between 0 and 1; it remembers about
            `1 / theta` steps.

    Example:
        >>> process = OrnsteinUhlenbeck(theta=0.1)
        >>> carry = process.initial_carry(num_envs=4, size=2)
        >>> noise, carry = process.draw(carry, jax.random.key(0), num_envs=4, size=2)
        >>> noise.shape
        (4, 2)
    """

    theta: Scalar = 0.15

    def __post_init__(self):
        require_number(self, "theta", self.theta, 0, 1)

    def initial_carry(self, num_envs: int, size: int) -> NoiseState:
        """Return the memory of processes that have not begun."""
        return _not_begun(num_envs, size, 1)

    def draw(self, carry: NoiseState, key: jax.Array, num_envs: int, size: int) -> tuple[jax.Array, NoiseState]:
        """Return noise `float32[N, A]` and the next memory; consumes `key`."""
        carry = _advance(carry, key, 1 - jnp.asarray(self.theta, jnp.float32).reshape(1))
        return carry.value[..., 0], carry


# Time constants two octaves apart. The weights, shares of the variance, are a least-squares fit of the sum of the
# processes' spectra to 1/f: within 0.6 dB of it from 1/2000 to 1/2 cycle a step, and flat below.
PINK_DECAYS = np.exp(-(0.25 ** np.arange(6)))
PINK_WEIGHTS = np.array([0.2193, 0.1249, 0.1659, 0.1419, 0.1662, 0.1818])


class Pink(Component):
    """Noise with the power spectrum 1/f, between white noise and a random walk.

    Eberhard et al. (2023), https://openreview.net/forum?id=hQ9V5QN27eS, recommend it wherever nothing is known about
    the task. They draw whole episodes by a Fourier transform; here six autoregressive processes with time constants
    of 1, 4, ..., 1024 steps are summed up, which needs no episode length and runs inside `scan`.

    Example:
        >>> process = Pink()
        >>> carry = process.initial_carry(num_envs=4, size=2)
        >>> noise, carry = process.draw(carry, jax.random.key(0), num_envs=4, size=2)
        >>> noise.shape
        (4, 2)
    """

    def initial_carry(self, num_envs: int, size: int) -> NoiseState:
        """Return the memory of processes that have not begun."""
        return _not_begun(num_envs, size, len(PINK_DECAYS))

    def draw(self, carry: NoiseState, key: jax.Array, num_envs: int, size: int) -> tuple[jax.Array, NoiseState]:
        """Return noise `float32[N, A]` and the next memory; consumes `key`."""
        carry = _advance(carry, key, jnp.asarray(PINK_DECAYS, jnp.float32))
        return carry.value @ jnp.asarray(np.sqrt(PINK_WEIGHTS), jnp.float32), carry


NOISES = ("gaussian", "ornstein_uhlenbeck", "pink")


def make(name: str, theta: Scalar) -> Noise:
    """Return a noise by its name in `NOISES`; `theta` is that of `ornstein_uhlenbeck`.

    Example:
        >>> make("ornstein_uhlenbeck", theta=0.1)
        OrnsteinUhlenbeck(theta=0.1)
    """
    return {"gaussian": Gaussian, "ornstein_uhlenbeck": lambda: OrnsteinUhlenbeck(theta), "pink": Pink}[name]()


def check(agent: Any, noise: str, theta: Scalar) -> None:
    """Refuse what `make` could not build for an agent."""
    require_choice(type(agent).__name__, "noise", noise, NOISES)
    require_number(agent, "noise_theta", theta, 0, 1)


def disturb(noise: Noise, scale: Scalar, action: jax.Array, carry: PyTree, key: jax.Array) -> tuple[jax.Array, PyTree]:
    """Add noise to actions `float32[N, A]` and clip them to `[-1, 1]`; return the next memory, too; consumes `key`."""
    drawn, carry = noise.draw(carry, key, *action.shape)
    return jnp.clip(action + jnp.asarray(scale, jnp.float32) * drawn, -1, 1), carry


def _not_begun(num_envs: int, size: int, num_processes: int) -> NoiseState:
    return NoiseState(jnp.zeros((num_envs, size, num_processes), jnp.float32), jnp.zeros(num_envs, bool))


def _advance(memory: NoiseState, key: jax.Array, decay: jax.Array) -> NoiseState:
    """Take one step of every process; `decay` is `float32[M]`."""
    normal = jax.random.normal(unrolled(key), memory.value.shape, jnp.float32)
    decay = jnp.where(memory.has_begun[:, None, None], decay[None, None], 0)
    return NoiseState(decay * memory.value + jnp.sqrt(1 - decay**2) * normal, jnp.ones_like(memory.has_begun))
