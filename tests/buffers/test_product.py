"""Every storage goes with every sampler, every sampler with every view, every view with every storage.

Random streams run through one compiled `scan`; the model then follows every single step.
"""

from __future__ import annotations

import functools
import itertools

import jax
import numpy as np
import pytest
from models.buffer import ReferenceBuffer
from support.helpers import EXAMPLE, random_transition, stack
from support.registry import relabel

import jaxrl_buffers as jb

LENGTH, NUM_ENVS, BATCH = 7, 2, 4
SAMPLERS = {
    "uniform": jb.Uniform("stratified"),
    "prioritized": jb.Prioritized(),
    "recent": jb.Recent(jb.Prioritized(), eta=0.99, c_min=3.0),
    "mix": jb.Combined(jb.Prioritized(), (jb.LastN(2.0), jb.Uniform()), (0.3, 0.2)),
    "episodic": jb.Episodic(),
}
VIEWS = {
    "n_step": jb.NStep(n=3, gamma=0.9),
    "sequence": jb.Sequence(length=3, burn_in=1, gamma=0.9),
    "within_episode": jb.Sequence(length=2, gamma=0.9, within_episode=True),
    "hindsight": jb.Hindsight(jb.NStep(n=3, gamma=0.9), achieved="next_obs.x", relabel=relabel),
}
STORAGES = {
    "lockstep": {},
    "cursors": {"lockstep": False},
    "frames": {"frames": jb.Frames(stack=2, axis=0, stacked="image", num_finals=LENGTH)},
}
REFUSED = ("episodic", "within_episode")  # some episodes would have no start
# All pairs of a sampler and a view; the storages take turns, so that each one meets each sampler and each view.
PRODUCTS = [
    ([*STORAGES][(first + second) % len(STORAGES)], sampler, view)
    for (first, sampler), (second, view) in itertools.product(enumerate(SAMPLERS), enumerate(VIEWS))
    if (sampler, view) != REFUSED
]


def continued(rows):
    """Let every row begin with the observation that the one before led to, and stacks hold the two newest frames."""
    for before, after in itertools.pairwise([None, *rows]):
        for env, row in enumerate(after[0]):
            last = None if before is None else before[0][env]
            obs = row.obs if last is None or last.terminated or last.truncated else last.next_obs
            image = np.concatenate([obs["image"][1:], row.next_obs["image"][1:]])
            after[0][env] = row._replace(obs=obs, next_obs=row.next_obs | {"image": image})
    return rows


def random_stream(rng, num_steps, lockstep, has_frames):
    """Return rows, which of them are added, new priorities and progress, each with a first axis of steps."""
    rows = [[[random_transition(rng, 10 * step + env) for env in range(NUM_ENVS)]] for step in range(num_steps)]
    mask = None if lockstep else rng.random((num_steps, NUM_ENVS)) < 0.7
    priorities = rng.gamma(1.0, size=(num_steps, BATCH)).astype(np.float32)
    progress = rng.choice([0.0, 0.1, 0.5], num_steps).astype(np.float32)
    return continued(rows) if has_frames else rows, (mask, priorities, progress)


def run(buffer, chunks, masks, priorities, progress, keys):
    """Take a stream `[S, ...]` through adds, samples and updates."""

    def step(state, inputs):
        chunk, mask, new, progress, key = inputs
        state = buffer.add(state, chunk, mask=mask)
        sample = buffer.sample(state, key, BATCH, progress)
        return buffer.update_priorities(state, sample.handle, new), sample

    return jax.lax.scan(step, buffer.init(EXAMPLE), (chunks, masks, priorities, progress, keys))[1]


def follow(buffer, rows, mask, priorities, progress, samples):
    """Take the model through the same steps, and compare everything that was drawn."""
    model = ReferenceBuffer(buffer)
    for step, row in enumerate(rows):
        model.ring.add([[one._asdict() for one in row[0]]], mask=None if mask is None else mask[step][None])
        if model.priorities is not None:
            model.priorities.after_add()
        sample = jax.tree.map(lambda leaf, step=step: leaf[step], samples)
        handles = list(zip(sample.handle.env.tolist(), sample.handle.position.tolist(), strict=True))
        model.check_draw(handles, sample.weights, float(progress[step]))
        for number in np.flatnonzero(sample.weights):
            model.check_batch(handles[number], jax.tree.map(lambda leaf, number=number: leaf[number], sample.batch))
        if model.priorities is not None:
            model.priorities.update(handles, priorities[step].tolist())


def stack_all(parts):
    return jax.tree.map(lambda *leaves: np.stack(leaves), *parts)


def one_by_one(program, *inputs):
    """Do what `vmap` does, in less time to compile."""
    return jax.lax.map(lambda one: program(*one), inputs)


def check(buffer, num_steps, num_streams, is_vmapped):
    storage = buffer.lockstep, buffer.frames is not None
    streams = [random_stream(np.random.default_rng(seed), num_steps, *storage) for seed in range(num_streams)]
    chunks = stack_all([stack_all([stack(row) for row in rows]) for rows, _ in streams])
    keys = jax.random.split(jax.random.key(0), (num_streams, num_steps))
    inputs = (chunks, *stack_all([other for _, other in streams]), keys)
    program = functools.partial(run, buffer)
    program = jax.vmap(program) if is_vmapped else functools.partial(one_by_one, program)
    samples = jax.tree.map(np.asarray, jax.jit(program)(*inputs))
    for number, (rows, other) in enumerate(streams):
        follow(buffer, rows, *other, jax.tree.map(lambda leaf, number=number: leaf[number], samples))


@pytest.mark.parametrize(("storage", "sampler", "view"), PRODUCTS)
def test_any_storage_sampler_and_view_go_together(storage, sampler, view):
    check(
        jb.ReplayBuffer(SAMPLERS[sampler], VIEWS[view], length=LENGTH, num_envs=NUM_ENVS, **STORAGES[storage]),
        num_steps=30,
        num_streams=2,
        is_vmapped=False,
    )


def test_priorities_recency_n_step_windows_and_hindsight_together():
    """PER + ERE + n-step + HER, with episodic returns, for 200 steps."""
    check(
        jb.ReplayBuffer(
            SAMPLERS["recent"],
            VIEWS["hindsight"],
            length=LENGTH,
            num_envs=NUM_ENVS,
            returns=jb.EpisodicReturns(gamma=0.9, default=-9.0),
        ),
        num_steps=200,
        num_streams=2,
        is_vmapped=True,
    )
