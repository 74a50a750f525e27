"""Every agent once, with a batch to learn from: contract tests run over this list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from algorithms import DDPG, DDQN, MPO, PPO, SAC, TD3, Box, Discrete, Torso
from algorithms.types import Agent
from jaxrl_buffers import Batch, Handle, Sample
from jaxrl_buffers.rollouts import RolloutBatch

SMALL = Torso((8,))
BOX = Box((-2.0, 0.0), (2.0, 1.0))
AGENTS: dict[str, Callable[..., Agent]] = {
    "ddqn": lambda **options: DDQN(Discrete(3), SMALL, **options),
    "ddqn_dueling": lambda **options: DDQN(Discrete(3), SMALL, dueling=True, persistence=0.5, **options),
    "sac": lambda **options: SAC(BOX, SMALL, **options),
    "sac_discrete": lambda **options: SAC(Discrete(3), SMALL, annealing_updates=100, **options),
    "ddpg": lambda **options: DDPG(BOX, SMALL, noise="ornstein_uhlenbeck", **options),
    "td3": lambda **options: TD3(BOX, SMALL, noise="pink", **options),
    "mpo": lambda **options: MPO(BOX, SMALL, num_samples=5, **options),
    "mpo_discrete": lambda **options: MPO(Discrete(3), SMALL, **options),
    "ppo": lambda **options: PPO(BOX, SMALL, **options),
    "ppo_discrete": lambda **options: PPO(Discrete(3), SMALL, **options),
}
OFF_POLICY = [name for name in AGENTS if not name.startswith("ppo")]
OBS = {"x": jax.ShapeDtypeStruct((4,), jnp.float32), "image": jax.ShapeDtypeStruct((5, 5, 1), jnp.uint8)}


def observations(key: jax.Array, num: int) -> Any:
    """Draw observations, a pytree with a vector and an image."""
    key_vector, key_image = jax.random.split(key)
    image = jax.random.randint(key_image, (num, 5, 5, 1), 0, 256).astype(jnp.uint8)
    return {"x": jax.random.normal(key_vector, (num, 4)), "image": image}


def sample(agent: Agent, key: jax.Array, num: int = 6) -> Sample:
    """Draw a batch that could have come out of a buffer."""
    keys = jax.random.split(key, 4)
    batch = Batch(
        obs=observations(keys[0], num),
        action=agent.action_space.sample(keys[1], num),
        reward=jax.random.normal(keys[2], (num,)),
        discount=jnp.where(jnp.arange(num) % 3 == 0, jnp.float32(0), 0.9),  # not of a weak type, as from a buffer
        next_obs=observations(keys[3], num),
        mask=jnp.ones(num, bool),
    )
    handle = Handle(jnp.zeros(num, jnp.int32), jnp.arange(num, dtype=jnp.int32))
    return Sample(_as_rollout(batch) if isinstance(agent, PPO) else batch, handle, jnp.ones(num))


def without_images(drawn: Sample) -> Sample:
    """Return the sample with vectors as observations, whose networks compile sooner."""
    names = [name for name in ("obs", "next_obs") if name in drawn.batch._fields]
    return drawn._replace(batch=drawn.batch._replace(**{name: getattr(drawn.batch, name)["x"] for name in names}))


def leaves(tree: Any) -> list[Any]:
    """Return leaves as NumPy's arrays: JAX would compile each comparison for each shape."""
    return jax.tree.leaves(jax.device_get(tree))


def num_drawn(one: Any, two: Any) -> int:
    """Return how many kernels the parameters of two agents have, after checking that all of them differ."""
    pairs = zip(jax.tree.leaves_with_path(jax.device_get(one)), leaves(two), strict=True)
    kernels = [(a, b) for (path, a), b in pairs if "kernel" in jax.tree_util.keystr(path)]
    assert all((a != b).any() for a, b in kernels)
    return len(kernels)


def _as_rollout(batch: Batch) -> RolloutBatch:
    extras = {"action": batch.action, "log_prob": -1 - batch.discount, "reward": batch.reward}
    return RolloutBatch(batch.obs, batch.action, batch.reward, batch.reward, batch.mask, extras)
