"""The training program of every agent compiles for TPU and GPU, and does not copy the ring.

Every agent is compiled for both kinds: for TPU training as a whole, for GPU only the loop of iterations.
"""

from __future__ import annotations

import jax
import pytest
from accelerators import programs
from compiled_programs import report
from compilers import compile_for

import jaxrl_buffers as jb
from algorithms import DDPG, DDQN, MPO, PPO, SAC, TD3, Plan, Recurrent, Torso, environments, train
from algorithms.training import loop

SMALL = Torso((16,))
REMEMBERING = Torso((16,), memory="gru", memory_size=16)
IMAGES = Torso((16,), channels=(4,))
NUM_ENVS, NUM_ROWS = 16, 8
LENGTH = programs.LARGE // NUM_ENVS
TASKS = {
    "ddqn": ("CartPole-v1", lambda space: DDQN(space, SMALL)),
    "ddpg": ("Pendulum-v1", lambda space: DDPG(space, SMALL)),
    "td3": ("Pendulum-v1", lambda space: TD3(space, SMALL)),
    "sac": ("Pendulum-v1", lambda space: SAC(space, SMALL)),
    "sac_discrete": ("CartPole-v1", lambda space: SAC(space, SMALL)),
    "mpo": ("Pendulum-v1", lambda space: MPO(space, SMALL)),
    "mpo_discrete": ("CartPole-v1", lambda space: MPO(space, SMALL)),
    "recurrent": ("MaskedCartPole-v1", lambda space: Recurrent(DDQN(space, REMEMBERING))),
    "images": ("Breakout-MinAtar", lambda space: DDQN(space, IMAGES)),
}


def compile_training(kind, agent, buffer, env, plan):
    """Compile training as a whole for TPU, and for GPU its longest part alone, as runs in folders do."""
    buffer = buffer if isinstance(buffer, jb.Rollout) else programs.for_platform(buffer, kind)
    if kind == "tpu":
        return compile_for(kind, lambda key: train(key, agent, buffer, env, plan), programs.key_shapes())
    state = jax.eval_shape(lambda key: loop.init(key, agent, buffer, env, plan), programs.key_shapes())
    return compile_for(kind, lambda state: loop.run(state, agent, buffer, env, plan, 2), state, donate_argnums=0)


@pytest.mark.parametrize("name", TASKS)
def test_off_policy_training(kind, name):
    environment, make_agent = TASKS[name]
    env = environments.make(environment)
    view = jb.Sequence(4, burn_in=1) if name == "recurrent" else jb.NStep(n=3)
    buffer = jb.ReplayBuffer(jb.Prioritized(), view, length=LENGTH, num_envs=NUM_ENVS)
    plan = Plan(
        20 * NUM_ENVS,
        num_envs=NUM_ENVS,
        start_steps=16 * NUM_ENVS,
        update_every=2 * NUM_ENVS,
        num_updates=2,
        mini_batch_size=programs.BATCH,
        test_every=0,
        num_test_episodes=2,
    )
    compiled = compile_training(kind, make_agent(env.action_space), buffer, env, plan)
    programs.assert_in_place(compiled)


@pytest.mark.parametrize("environment", ["CartPole-v1", "Pendulum-v1"])
def test_on_policy_training(kind, environment):
    env = environments.make(environment)
    steps = NUM_ROWS * NUM_ENVS
    plan = Plan(2 * steps, NUM_ENVS, start_steps=0, update_every=steps, num_updates=8, mini_batch_size=32, test_every=0)
    compiled = compile_training(kind, PPO(env.action_space, SMALL), jb.rollout(NUM_ROWS, NUM_ENVS), env, plan)
    # An iteration works on a whole rollout, so arrays of its size are made anew. The largest are those of the network's
    # layer, for the observations of all rows and of their successors.
    read = report(compiled, 2 * steps * SMALL.hidden_sizes[0] + 1)
    assert read.copies == []
    assert read.temp_bytes <= 2**22
