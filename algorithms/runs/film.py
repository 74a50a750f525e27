"""Films of policies: one episode as a GIF or an MP4, without a window."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from algorithms.environments import Described
from algorithms.runs import stage as stages
from algorithms.runs.stage import Stage
from algorithms.training.evaluation import time_limit
from algorithms.types import Agent
from jaxrl_buffers._random.hashing import fold_in, split
from jaxrl_buffers.types import PyTree

MAKERS = {".gif": "PIL", ".mp4": "imageio_ffmpeg"}  # the package that writes each kind of file
MOST_FPS = {".gif": 50, ".mp4": 240}  # viewers play a faster GIF slowly


class Filmed(NamedTuple):
    """The episode in a film."""

    length: int
    episode_return: float | None  # None if the film ends before the episode does


def record(
    path: str | os.PathLike[str],
    agent: Agent,
    state: PyTree,
    env: Described,
    key: jax.Array,
    deterministic: bool = True,
    max_steps: int | None = None,
) -> Filmed:
    """Write a film of one episode; consumes `key`. `evaluate` with this key and `num_episodes=1` plays it too.

    Raises:
        ValueError: if the file is of another kind, the environment cannot be drawn, or something is not installed.
    """
    path = Path(path)
    check(path)
    limit = int(time_limit(env, max_steps))
    key_reset, key_play = split(key)
    stage = stages.make(env, key_reset)
    aside = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    episode: list[Filmed] = []
    try:
        pictures = _play(stage, agent, state, key_play, deterministic, limit, episode)
        _write(aside, pictures, min(stage.fps, MOST_FPS[path.suffix]))
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
        stage.close()
    return episode[0]


def check(path: Path) -> None:
    """Refuse a file that could not be written."""
    if path.suffix not in MAKERS:
        raise ValueError(f"a film is a file that ends in {' or '.join(MAKERS)}; got {path}.")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{path} cannot be written: there is no folder {path.absolute().parent}.")
    if importlib.util.find_spec(MAKERS[path.suffix]) is None:
        raise ValueError(
            f"files {path.suffix} need {MAKERS[path.suffix]}, which is not installed: "
            "pip install 'jaxrl-buffers[video]'."
        )


def _play(
    stage: Stage, agent: Agent, state: PyTree, key: jax.Array, deterministic: bool, limit: int, episode: list[Filmed]
) -> Iterator[np.ndarray]:
    """Yield a picture before every step of an episode; append the result to `episode`."""
    act = jax.jit(functools.partial(agent.act, deterministic=deterministic))
    carry = agent.initial_carry(1)
    for number in range(limit):
        yield stage.draw()
        keys = split(fold_in(key, np.int32(number)))
        action, carry, _ = act(state, stage.obs, carry, keys[0])
        finished = stage.step(action, keys[1:])
        if finished.ended[0]:
            episode.append(Filmed(int(finished.episode_length[0]), float(finished.episode_return[0])))
            return
    episode.append(Filmed(limit, None))


def _write(path: Path, pictures: Iterator[np.ndarray], fps: int) -> None:
    """Write pictures one by one, so that a long film needs little memory."""
    if path.suffix == ".gif":
        from PIL import Image

        images = map(Image.fromarray, pictures)
        next(images).save(path, save_all=True, append_images=images, duration=round(1_000 / fps), loop=0)
        return
    import imageio_ffmpeg

    first = next(pictures)
    height, width = (side // 2 * 2 for side in first.shape[:2])  # players need sides of even length
    writer = imageio_ffmpeg.write_frames(
        str(path), (width, height), fps=fps, macro_block_size=2, ffmpeg_log_level="error"
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)  # by JAX: the fork starts another program
        writer.send(None)
    for picture in itertools.chain([first], pictures):
        writer.send(np.ascontiguousarray(picture[:height, :width]))
    writer.close()
