"""What each extra of the package is for, as a short program and what it prints."""

from __future__ import annotations

POLICY = """
import jax
from algorithms import DDQN, Policy, Torso, environments

env = environments.make("CartPole-v1")
agent = DDQN(env.action_space, Torso((8,)))
policy = Policy(agent, agent.init(jax.random.key(0), env.obs, env.action_space.example), env)
"""
PROGRAMS = {
    "atari": (
        """
from algorithms import environments

print(environments.make("gymnasium:ALE/Pong-v5", frame_stack=4).obs.shape)
""",
        "(84, 84, 4)",
    ),
    "brax": (
        """
from algorithms import environments

print(environments.make("brax:inverted_pendulum").obs.shape)
""",
        "(4,)",
    ),
    "data": (
        """
import h5py
import numpy as np
from pathlib import Path
import jaxrl_buffers as jb

buffer, steps = jb.uniform(8), np.arange(8)
with h5py.File("data.hdf5", "w") as file:
    file["observations"], file["actions"] = np.zeros((8, 3), np.float32), np.zeros((8, 1), np.float32)
    file["rewards"], file["terminals"] = np.ones(8, np.float32), steps % 4 == 3
state = jb.datasets.from_file(buffer, "data.hdf5")
folder = Path("steps-v0").absolute()
jb.datasets.to_minari(buffer, state, folder, algorithm_name="none")
print(buffer.size(jb.datasets.from_minari(buffer, folder)))
""",
        "8",
    ),
    "export": (POLICY + "policy.export('policy.jaxexport')\nprint('written')", "written"),
    "gymnasium": (
        """
from algorithms import environments

print(environments.make("gymnasium:HalfCheetah-v5").obs.shape)
""",
        "(17,)",
    ),
    "logging": (
        """
import wandb
from algorithms import Plan
from algorithms.runs import logs
from algorithms.runs.settings import Settings

logs.require(["tensorboard"])
with logs.opened(["tensorboard"], ".", Settings("ddqn", "CartPole-v1", Plan(2_000)), []):
    print("open")
""",
        "open",
    ),
    "video": (POLICY + "print(*(policy.film(f'film.{kind}', max_steps=3).length for kind in ('gif', 'mp4')))", "3 3"),
}
