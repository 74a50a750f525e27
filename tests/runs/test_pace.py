"""A slow program is run in small parts, so that progress is shown and Ctrl-C is obeyed within seconds."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import jaxrl_buffers as jb
from algorithms import DDQN, Discrete, Normalized, Plan, Recurrent, Torso
from algorithms.runs import command_line, pace
from algorithms.runs.build import complete
from algorithms.runs.programs import compile_programs
from algorithms.runs.progress import Progress


def first_chunk(command: str) -> tuple[int, int]:
    """Return the size of the first chunk of a run, and what it would be for a program that is fast."""
    settings = complete(command_line.parse(command.split()).settings)
    programs = compile_programs(settings)
    return Progress().chunk(settings.plan, programs.most_iterations), Progress().chunk(settings.plan)


SLOW = "sac MaskedPendulum-v1 --memory gru --num-seeds 5"


def test_a_memory_is_trained_in_small_parts():
    """Each of its updates goes through 20 steps of 128 sequences: 500 iterations at once took minutes."""
    chunk, usual = first_chunk(SLOW)
    assert usual == 500
    assert 2 <= chunk <= 20


def test_a_data_set_beside_the_run_changes_nothing(monkeypatch):
    """A batch of a mixture has as many samples as one of a single buffer, and they are as long."""
    monkeypatch.setattr(pace.jax, "default_backend", lambda: "cpu")
    agent = Normalized(Recurrent(DDQN(Discrete(2), Torso((8,), memory="gru", memory_size=4))))
    example = jax.ShapeDtypeStruct((3,), jnp.float32)
    states = jax.eval_shape(lambda: agent.init(jax.random.key(0), example, Discrete(2).example))
    buffer = jb.sequences(100, sequence_length=10)
    plan = Plan(total_steps=100, start_steps=50)
    alone = pace.most_iterations(agent, buffer, states, plan)
    assert pace.most_iterations(agent, jb.Mixture((buffer, buffer)), states, plan) == alone
    assert pace.most_iterations(agent, jb.uniform(100), states, plan) == pytest.approx(10 * alone, rel=1e-3)


@pytest.mark.parametrize("command", ["sac Pendulum-v1", "ddqn CartPole-v1 --num-seeds 5", "ppo CartPole-v1"])
def test_quick_programs_are_not_interrupted(command):
    chunk, usual = first_chunk(command)
    assert chunk == usual


def test_more_seeds_and_larger_networks_have_smaller_parts():
    few = first_chunk("sac Pendulum-v1 --hidden-sizes 512 512")[0]
    assert first_chunk("sac Pendulum-v1 --hidden-sizes 512 512 --num-seeds 8")[0] < few
    assert first_chunk("sac Pendulum-v1 --hidden-sizes 1024 1024")[0] < few


def test_parts_divide_the_steps_between_evaluations_if_they_can():
    plan = complete(command_line.parse(SLOW.split()).settings).plan
    assert [Progress().chunk(plan, most) for most in (499, 300, 9, 7, 1)] == [250, 250, 8, 5, 1]
    awkward = plan.__class__(1_000 + 5 * 997, num_envs=5, test_every=5 * 997, start_steps=1_000, update_every=5)
    assert [Progress().chunk(awkward, most) for most in (None, 100)] == [997, 100]


def test_accelerators_run_as_much_as_ever(monkeypatch):
    monkeypatch.setattr(pace.jax, "default_backend", lambda: "gpu")
    assert pace.most_iterations(None, None, None, None) is None
