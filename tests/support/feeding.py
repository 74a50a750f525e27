"""Processes that feed an intake; as a module of its own, so that they load NumPy and nothing else."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
from jax._src import xla_bridge

from jaxrl_buffers.feeder import Feeder, Stopped


def chunk(first, num_rows, num_envs):
    """Return rows whose numbers count up from `first`, the same in every environment."""
    number = np.arange(first, first + num_rows)[:, None] + np.zeros(num_envs, int)[None]
    never = np.zeros(number.shape, bool)
    obs = {"x": np.stack([number, -number], axis=-1).astype(np.float32), "y": (number % 256).astype(np.uint8)}
    return {
        "obs": obs,
        "action": number.astype(np.int32),
        "reward": number.astype(np.float32),
        "terminated": never,
        "truncated": never,
        "next_obs": obs,
        "extras": (),
    }


def feed(name, num_chunks, num_rows, num_envs, acknowledged, first=0):
    """Hand over chunks of consecutive numbers, and note down how many rows were acknowledged."""
    with Feeder(name) as feeder:
        for number in range(num_chunks):
            feeder.add(chunk(first + number * num_rows, num_rows, num_envs), timeout=60)
            acknowledged.value = first + (number + 1) * num_rows


def feed_without_devices(*args):
    """Hand over chunks as `feed` does, and see that this started no device of JAX."""
    feed(*args)
    assert not xla_bridge.backends_are_initialized()


def feed_until_stopped(name, num_rows, num_envs, acknowledged, outcome):
    """Hand over chunks until something is raised; tell what it was."""
    outcome.value = b"started"
    try:
        feed(name, 10**9, num_rows, num_envs, acknowledged)
    except (Stopped, TimeoutError) as error:
        outcome.value = type(error).__name__.encode()


def die_while_writing(name, num_rows, num_envs, acknowledged):
    """Hand over three chunks, then be killed in the middle of the fourth."""
    feed(name, 3, num_rows, num_envs, acknowledged)
    feeder = Feeder(name)

    def write_half(number, leaves):
        half = [leaf[: max(len(leaf) // 2, 1)] for leaf in leaves]
        write(number, half)
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)

    write, feeder._lane.write = feeder._lane.write, write_half
    feeder.add(chunk(10**6, num_rows, num_envs))
