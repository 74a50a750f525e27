"""Games of Atari: gray frames, each kept once."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import jaxrl_buffers as jb
from algorithms import DDQN, NATURE, Plan, environments, torso_for
from algorithms.runs.host_loop import HostLoop

NEEDED = "ale-py and opencv are not installed: pip install 'jaxrl-buffers[atari]'"
pytest.importorskip("ale_py", reason=NEEDED)
pytest.importorskip("cv2", reason=NEEDED)

PLAN = Plan(total_steps=96, num_envs=2, start_steps=64, update_every=16, num_updates=1, mini_batch_size=8)


@pytest.fixture(scope="module")
def pong():
    return environments.make("gymnasium:ALE/Pong-v5", frame_skip=4, frame_stack=4)


def test_frames_are_gray_and_stacked(pong):
    assert (pong.obs.shape, pong.obs.dtype, pong.action_space.num_actions) == ((84, 84, 4), np.uint8, 6)
    assert pong.max_episode_length == 108_000
    steps = pong.start(1, seed=0)
    before = steps.obs
    after = steps.step(np.array([2])).transition.next_obs
    np.testing.assert_array_equal(after[..., :3], before[..., 1:])
    steps.close()


def test_a_frame_that_is_not_stacked_is_an_image():
    env = environments.make("gymnasium:ALE/Pong-v5")
    assert (env.obs.shape, torso_for(env.obs)) == ((84, 84, 1), NATURE)


def test_options_reach_the_game():
    assert environments.make("gymnasium:ALE/Pong-v5", full_action_space=True).action_space.num_actions == 18


def test_an_agent_learns_from_frames_that_are_kept_once(pong, key):
    buffer = jb.ReplayBuffer(length=400, num_envs=2, frames=jb.Frames(stack=4))
    agent = DDQN(pong.action_space, torso=NATURE)
    with HostLoop(agent, buffer, pong, PLAN) as loop:
        state = loop.run(loop.init(key), PLAN.num_iterations)
    assert np.isfinite(np.asarray(state.sums.totals)).all()
    sample = buffer.sample(state.buffer, key, 8)
    assert sample.batch.obs.shape == sample.batch.next_obs.shape == (8, 84, 84, 4)
    np.testing.assert_array_equal(sample.batch.obs[..., 1:], sample.batch.next_obs[..., :3])
    num_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(state.buffer))
    of_frames = 84 * 84 * (1 + 1 / 8)
    assert num_bytes / (400 * 2) == pytest.approx(of_frames, rel=0.02)  # and not 8 frames a transition
