"""Old names of arguments still work, with a warning that gives the new one."""

from __future__ import annotations

import functools
from typing import Any

import jax
import pytest
from support.agents import BOX, SMALL

import jaxrl_buffers as jb
from algorithms import DDQN, MPO, SAC, Discrete
from algorithms.training.off_policy import train_step


def program_of_step(**options: Any) -> str:
    """Return the program of an update, as text."""
    agent, buffer = DDQN(Discrete(2), SMALL), jb.uniform(8)
    step = jb.Transition(jax.numpy.zeros(3), jax.numpy.int32(0), 0.0, False, False, jax.numpy.zeros(3))
    key = jax.random.key(0)
    states = jax.eval_shape(lambda: (agent.init(key, step.obs, step.action), buffer.init(step)))
    update = functools.partial(train_step, agent, buffer, batch_size=2, **options)
    return str(jax.make_jaxpr(update)(*states, key_sample=key, key_gradients=key))


@pytest.mark.parametrize(
    ("function", "owner", "old", "new", "value"),
    [
        (program_of_step, "train_step()", "skips_nonfinite", "skip_nonfinite", True),
        (functools.partial(SAC, BOX, SMALL), "SAC", "learns_alpha", "learn_alpha", False),
        (functools.partial(MPO, BOX, SMALL), "MPO", "is_penalized", "penalized", False),
    ],
)
def test_an_old_name_does_what_the_new_one_does(function, owner, old, new, value):
    with pytest.warns(DeprecationWarning, match="is now called") as warned:
        found = function(**{old: value})
    assert [str(one.message).split(";")[0] for one in warned] == [f"`{old}` of {owner} is now called `{new}`"]
    assert found == function(**{new: value})
    assert found != function()
