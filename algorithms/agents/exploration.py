"""Noise for exploring with continuous actions, and epsilon-greedy exploration with discrete ones.

Noise has variance one. Deterministic policies add it to their actions, by `disturb`. Stochastic policies make their
draws of it, as `mean + deviation * noise`. So every single draw has the distribution of the policy, whatever the noise
is. Eberhard et al. (2023) did this with SAC and MPO, see `Pink`. Hollenstein et al. (2023) did it with PPO,
https://arxiv.org/abs/2312.11091.

Independent noise averages out over a few steps. Correlated noise pushes in one direction for many steps, and so leads
to more distant states. Correlated noise needs a memory, which is part of the agent's carry. There is one process for
each environment and each component of its action. The training loop resets the memory where an episode ends. A process
begins with a draw from its stationary distribution, so its variance is one in every step of an episode.

Ornstein-Uhlenbeck and pink noise are both made of first-order autoregressive processes of variance one:

    x_t = d x_{t-1} + sqrt(1 - d^2) epsilon_t,   epsilon_t ~ N(0, 1),   x_0 ~ N(0, 1)

`epsilon_greedy` does with discrete actions what correlated noise does with continuous ones, if a random action may
persist. It is the temporally extended exploration of Dabney et al. (2021), https://arxiv.org/abs/2006.01782.
They draw a length for every random action, by default from a heavy-tailed distribution. Here a random action persists
into the next step with a fixed probability, so lengths are geometric, `1 / (1 - persistence)` steps on average.

Differences from PyTorchRL:

* The noise is drawn for every environment and every component. PyTorchRL draws it once for all of them.
* The noise is made from normal random numbers, whose mean is 0. PyTorchRL takes uniform ones from [0, 1).
* `theta=0.15` is the default of PyTorchRL. `sigma=0.2` of PyTorchRL corresponds to a scale of 0.38 here.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from algorithms.environments.spaces import Discrete
from jaxrl_buffers._checks import require_choice, require_number
from jaxrl_buffers._random.hashing import unrolled
from jaxrl_buffers.component import Component
from jaxrl_buffers.types import PyTree, Scalar


class Noise(Protocol):
    """A process of variance one for each of `N` environments and `A` components of an action."""

    def initial_carry(self, num_envs: int, size: int) -> PyTree:
        """Return the memory at the start of an episode: leaves `[N, ...]`, or `()` if the noise has no memory."""
        ...

    def draw(self, carry: PyTree, key: jax.Array, num_envs: int, size: int) -> tuple[jax.Array, PyTree]:
        """Return the next noise `float32[N, A]`, and the memory after it; consumes `key`."""
        ...


class NoiseState(NamedTuple):
    """The memory of `M` autoregressive processes for each of `N` environments and `A` components."""

    value: jax.Array  # float32[N, A, M]
    has_begun: jax.Array  # bool[N], whether there was a first value in this episode


class Gaussian(Component):
    """Independent normal noise.

    Example:
        >>> noise, _ = Gaussian().draw((), jax.random.key(0), num_envs=4, size=2)
        >>> noise.shape
        (4, 2)
    """

    def initial_carry(self, num_envs: int, size: int) -> PyTree:
        """Return `()`, because independent noise has no memory."""
        return ()

    def draw(self, carry: PyTree, key: jax.Array, num_envs: int, size: int) -> tuple[jax.Array, PyTree]:
        """Return noise `float32[N, A]`; consumes `key`."""
        return jax.random.normal(unrolled(key), (num_envs, size), jnp.float32), carry


class OrnsteinUhlenbeck(Component):
    """One autoregressive process with `d = 1 - theta`; Uhlenbeck and Ornstein (1930).

    Args:
        theta: the share of its value that the process loses in one step, from 0 to 1. Values are correlated over about
            `1 / theta` steps.

    Example:
        >>> process = OrnsteinUhlenbeck(theta=0.1)
        >>> carry = process.initial_carry(num_envs=4, size=2)
        >>> noise, carry = process.draw(carry, jax.random.key(0), num_envs=4, size=2)
        >>> noise.shape
        (4, 2)
    """

    theta: Scalar = 0.15

    def __post_init__(self) -> None:
        require_number(self, "theta", self.theta, 0, 1)

    def initial_carry(self, num_envs: int, size: int) -> NoiseState:
        """Return the memory of processes before their first values."""
        return _not_begun(num_envs, size, 1)

    def draw(self, carry: NoiseState, key: jax.Array, num_envs: int, size: int) -> tuple[jax.Array, NoiseState]:
        """Return noise `float32[N, A]` and the next memory; consumes `key`."""
        carry = _advance(carry, key, 1 - jnp.asarray(self.theta, jnp.float32).reshape(1))
        return carry.value[..., 0], carry


# The six processes have time constants of 1, 4, ..., 1024 steps. The weights are their shares in the variance. They are
# fitted by least squares, such that the sum of the spectra is close to 1/f. It is within 0.6 dB of 1/f from 1/2000 to
# 1/2 cycles a step. At lower frequencies it is flat.
PINK_DECAYS = np.exp(-(0.25 ** np.arange(6)))
PINK_WEIGHTS = np.array([0.2193, 0.1249, 0.1659, 0.1419, 0.1662, 0.1818])


class Pink(Component):
    """Noise with the power spectrum 1/f, between white noise and a random walk.

    Eberhard et al. (2023), https://openreview.net/forum?id=hQ9V5QN27eS, recommend pink noise as the default.
    They draw the noise of a whole episode at once, by a Fourier transform. Here the noise is the sum of six
    autoregressive processes, so the length of an episode need not be known.

    Example:
        >>> process = Pink()
        >>> carry = process.initial_carry(num_envs=4, size=2)
        >>> noise, carry = process.draw(carry, jax.random.key(0), num_envs=4, size=2)
        >>> noise.shape
        (4, 2)
    """

    def initial_carry(self, num_envs: int, size: int) -> NoiseState:
        """Return the memory of processes before their first values."""
        return _not_begun(num_envs, size, len(PINK_DECAYS))

    def draw(self, carry: NoiseState, key: jax.Array, num_envs: int, size: int) -> tuple[jax.Array, NoiseState]:
        """Return noise `float32[N, A]` and the next memory; consumes `key`."""
        carry = _advance(carry, key, jnp.asarray(PINK_DECAYS, jnp.float32))
        return carry.value @ jnp.asarray(np.sqrt(PINK_WEIGHTS), jnp.float32), carry


NOISES = ("gaussian", "ornstein_uhlenbeck", "pink")


def make(name: str, theta: Scalar) -> Noise:
    """Return the noise with a name, one of `NOISES`. Only `ornstein_uhlenbeck` uses `theta`.

    Example:
        >>> make("ornstein_uhlenbeck", theta=0.1)
        OrnsteinUhlenbeck(theta=0.1)
    """
    return {"gaussian": Gaussian, "ornstein_uhlenbeck": lambda: OrnsteinUhlenbeck(theta), "pink": Pink}[name]()


def check(agent: object, noise: str, theta: Scalar) -> None:
    """Refuse an agent's field `noise` if `make` does not know it, and a bad value of its field `noise_theta`."""
    require_choice(type(agent).__name__, "noise", noise, NOISES)
    require_number(agent, "noise_theta", theta, 0, 1)


def disturb(noise: Noise, scale: Scalar, action: jax.Array, carry: PyTree, key: jax.Array) -> tuple[jax.Array, PyTree]:
    """Return `clip(action + scale * noise, -1, 1)`, `float32[N, A]`, and the next memory; consumes `key`."""
    drawn, carry = noise.draw(carry, key, *action.shape)
    return jnp.clip(action + jnp.asarray(scale, jnp.float32) * drawn, -1, 1), carry


class RandomActions(NamedTuple):
    """The last actions of `N` environments that explore with a persistence."""

    action: jax.Array  # int32[N]
    is_random: jax.Array  # bool[N], whether it was random, and so may persist


def no_random_actions(num_envs: int) -> RandomActions:
    """Return the memory of `epsilon_greedy` at the start of an episode: no action persists."""
    return RandomActions(jnp.zeros(num_envs, jnp.int32), jnp.zeros(num_envs, bool))


def epsilon_greedy(
    space: Discrete,
    greedy: jax.Array,
    epsilon: jax.Array,
    key: jax.Array,
    persistence: Scalar = 0.0,
    before: RandomActions | None = None,
) -> tuple[jax.Array, RandomActions | None]:
    """Replace actions by random ones; consumes `key`.

    Args:
        space: the actions.
        greedy: the actions `int32[N]` to replace.
        epsilon: the probability of a random action, unless the last one persists.
        key: key for random numbers.
        persistence: the probability that a random action persists into the next step. With 0, results are those
            without a memory.
        before: the last actions; None if no action ever persists.

    Returns:
        The actions `int32[N]`, and the memory after them, which is None if it was.
    """
    explore, choice = jax.random.uniform(unrolled(key), (2, *greedy.shape), jnp.float32)
    if before is None:
        return jnp.where(explore < epsilon, space.of_uniform(choice), greedy), None
    stay = jnp.where(before.is_random, jnp.asarray(persistence, jnp.float32), 0)
    persists = explore < stay
    is_random = explore - stay < epsilon * (1 - stay)  # above `stay`, `explore` is uniform again
    action = jnp.where(persists, before.action, jnp.where(is_random, space.of_uniform(choice), greedy))
    return action, RandomActions(action, is_random)


def _not_begun(num_envs: int, size: int, num_processes: int) -> NoiseState:
    """Return the memory of `M` processes for each environment and component, before their first value."""
    return NoiseState(jnp.zeros((num_envs, size, num_processes), jnp.float32), jnp.zeros(num_envs, bool))


def _advance(memory: NoiseState, key: jax.Array, decay: jax.Array) -> NoiseState:
    """Make one step of every process; `decay` is `float32[M]`, the factor `d` of each process."""
    normal = jax.random.normal(unrolled(key), memory.value.shape, jnp.float32)
    decay = jnp.where(memory.has_begun[:, None, None], decay[None, None], 0)
    return NoiseState(decay * memory.value + jnp.sqrt(1 - decay**2) * normal, jnp.ones_like(memory.has_begun))
