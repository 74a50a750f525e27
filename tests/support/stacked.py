"""Environments with stacked observations, and what a buffer with frames must give back."""

from __future__ import annotations

import numpy as np

import jaxrl_buffers as jb

LENGTH, NUM_ENVS, STACK = 9, 2, 3


def stacked(frames, axis, padding):
    """Return the newest frames of an episode as a stack."""
    frames = frames[-STACK:]
    first = frames[0] if padding == "edge" else np.zeros_like(frames[0])
    return np.stack([first] * (STACK - len(frames)) + frames, axis)


class Environment:
    """Random frames of episodes that end either way, told apart by a number beside them."""

    def __init__(self, seed, axis, padding, ends=0.2):
        self.rng, self.axis, self.padding, self.ends, self.number = np.random.default_rng(seed), axis, padding, ends, 0
        self.reset()

    def reset(self):
        self.frames = [self.new_frame()]

    def new_frame(self):
        self.number += 1
        return self.rng.integers(0, 256, (2, 3), np.uint8)

    def observation(self):
        image = stacked(self.frames, self.axis, self.padding)
        return {"image": image, "number": np.float32([self.number, -self.number])}

    def step(self):
        obs = self.observation()
        self.frames.append(self.new_frame())
        terminated, truncated = (self.rng.random(2) < self.ends).tolist()
        row = jb.Transition(
            obs,
            np.int32(self.number),
            np.float32(self.rng.normal()),
            np.bool_(terminated),
            np.bool_(truncated),
            self.observation(),
        )
        if terminated or truncated:
            self.reset()
        return row


def pair(view, lockstep, **options):
    """Return a buffer with frames and one that keeps rows whole."""
    settings = {"view": view, "length": LENGTH, "num_envs": NUM_ENVS, "lockstep": lockstep}
    frames = jb.Frames(STACK, stacked="image", **options)
    return jb.ReplayBuffer(jb.Prioritized(), frames=frames, **settings), jb.ReplayBuffer(jb.Prioritized(), **settings)


class History:
    """Which rows ended an episode, and whose final observation is lost."""

    def __init__(self, num_finals):
        self.num_finals, self.ended = num_finals, [[] for _ in range(NUM_ENVS)]

    def is_lost(self, env, position):
        return self.ended[env][position] and sum(self.ended[env][position + 1 :]) >= self.num_finals
