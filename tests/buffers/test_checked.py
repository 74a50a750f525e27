"""Misuse is found where checks are asked for, and programs carry no effects where they are not."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify
from support.helpers import EXAMPLE, number_buffer, scalars
from support.registry import ALL

import jaxrl_buffers as jb
from jaxrl_buffers._checked import check
from jaxrl_buffers.storage.episodes import EpisodeIndex

LENGTH, NUM_ENVS, BATCH = 6, 2, 3
KEY = jax.random.key(0)
CHUNK = jax.tree.map(lambda leaf: np.zeros((2, NUM_ENVS, *leaf.shape), leaf.dtype), EXAMPLE)
PRIORITIES = np.ones((2, NUM_ENVS), np.float32)
ENV_IDS = np.array([1], np.int32)


def one_column(tree):
    return jax.tree.map(lambda leaf: leaf[:, :1], tree)


def operations(buffer, state, handle):
    """Return every operation of a buffer by its name, as a program and its arguments."""
    found = {
        "init": (lambda: buffer.init(EXAMPLE),),
        "add": (buffer.add, state, CHUNK),
        "add with priorities": (lambda s, p: buffer.add(s, CHUNK, priorities=p), state, PRIORITIES),
        "sample": (lambda s, k: buffer.sample(s, k, BATCH, 0.5), state, KEY),
        "update_priorities": (buffer.update_priorities, state, handle, np.ones(BATCH)),
        "update_priorities of sequences": (
            buffer.update_priorities,
            state,
            handle,
            np.ones((BATCH, 4)),
            np.ones((BATCH, 4), bool),
        ),
        "report_return": (buffer.report_return, state, 1.0),
        "mark_break": (buffer.mark_break, state),
        "mark_break of environments": (lambda s, e: buffer.mark_break(s, env_ids=e), state, ENV_IDS),
        "read": (buffer.read, state, handle, KEY, 0.5),
    }
    found |= {
        name: (getattr(buffer, name), state) for name in ("reprioritize", "stats", "num_valid", "can_sample", "size")
    }
    found |= {"age": (buffer.age, state, handle)}
    if isinstance(buffer, jb.Mixture):
        return found | {"clear": (lambda s: buffer.clear(s, 0), state)}
    return found | operations_of_one(buffer, state, handle)


def operations_of_one(buffer, state, handle):
    """Return the operations that mixtures do not have."""
    found = {}
    if not buffer.lockstep:
        found |= {
            "add to environments": (
                lambda s, e: buffer.add(s, one_column(CHUNK), env_ids=e, priorities=PRIORITIES[:, :1]),
                state,
                ENV_IDS,
            ),
            "add with mask": (lambda s, m: buffer.add(s, CHUNK, mask=m), state, np.ones((2, NUM_ENVS), bool)),
            "clear environments": (buffer.clear, state, ENV_IDS),
            "dequeue environments": (lambda s, e: buffer.dequeue(s, 2, e), state, ENV_IDS),
        }
    if isinstance(state.storage.episodes, EpisodeIndex):
        found["episode"] = (buffer.episode, state, handle)
    return found | {
        "clear": (buffer.clear, state),
        "drop_oldest": (lambda s: buffer.drop_oldest(s, 2), state),
        "dequeue": (lambda s: buffer.dequeue(s, 2), state),
        "get_field": (lambda s, h: buffer.get_field(s, "obs.image", h), state, handle),
        "slice": (lambda s: buffer.slice(s, 1, 2), state),
        "gather_all": (buffer.gather_all, state),
        "scan_epochs": (
            lambda s, k: jb.scan_epochs(lambda c, s, sample: (c, s, sample.weights), 0, buffer, s, k, batch_size=BATCH),
            state,
            KEY,
        ),
    }


@pytest.mark.parametrize("name", ALL)
def test_no_operation_has_effects(name):
    buffer = ALL[name](LENGTH, NUM_ENVS)
    state = jax.eval_shape(buffer.init, EXAMPLE)
    handle = jax.eval_shape(lambda s: buffer.sample(s, KEY, BATCH), state).handle
    for operation, (program, *arguments) in operations(buffer, state, handle).items():
        assert not jax.make_jaxpr(program)(*arguments).effects, operation


def test_no_operation_of_a_rollout_has_effects():
    buffer = jb.rollout(LENGTH, NUM_ENVS)
    value = np.zeros((2, NUM_ENVS), np.float32)
    chunk = CHUNK._replace(extras={"value": value})
    state = buffer.init(EXAMPLE._replace(extras={"value": np.float32(0)}))
    for program, *arguments in (
        (buffer.advantages, chunk, value),
        (buffer.add, state, chunk, value),
        (buffer.finish_path, state, value[0]),
        (buffer.batch, state),
        (lambda s, k: buffer.sample(s, k, BATCH), state, KEY),
        (buffer.clear, state),
    ):
        assert not jax.make_jaxpr(program)(*arguments).effects


def misuses():
    """Return programs by what their misuse is called: jitted, with arguments that are misuse and such that are not."""
    buffer, empty = number_buffer(4, 2, sampler=jb.Prioritized(), lockstep=False)
    state = buffer.add(empty, scalars([0, 1], 2))
    handle = jb.Handle(jnp.array([0, 1]), jnp.array([1, 0]))
    stale = jb.Handle(jnp.array([0, 0]), jnp.array([-1, 3]))
    add = jax.jit(lambda s, ids: buffer.add(s, scalars([0], 2), env_ids=ids))
    clear = jax.jit(buffer.clear)
    update = jax.jit(buffer.update_priorities)
    transitions = jb.uniform(4)
    rows = transitions.init(EXAMPLE)
    one = jb.Handle(jnp.array([0]), jnp.array([0]))
    chunk = jax.tree.map(lambda leaf: leaf[:1, :1], CHUNK)
    fine, twice, unknown = jnp.array([1, 0]), jnp.array([1, 1]), jnp.array([2, 0])
    return {
        "found no start to draw": (jax.jit(lambda s: buffer.sample(s, KEY, 2)), (empty,), (state,)),
        "priorities that are negative or not finite": (
            update,
            (state, handle, jnp.array([1.0, jnp.nan])),
            (state, stale, jnp.array([jnp.nan, 1.0])),
        ),
        "negative or not": (update, (state, handle, jnp.array([-1.0, 1.0])), (state, handle, jnp.array([0.0, 1.0]))),
        "names an environment twice": (add, (state, twice), (state, fine)),
        "between 0 and 1": (add, (state, unknown), (state, fine)),
        "must lie between": (clear, (state, unknown), (state, fine)),
        "rows that are not stored": (
            jax.jit(lambda s, h: transitions.get_field(s, "action", h)),
            (rows, one),
            (transitions.add(rows, chunk), one),
        ),
    }


def test_misuse_is_found_inside_and_nowhere_else():
    for message, (program, bad, good) in misuses().items():
        check_misuse(message, program, bad, good)


def check_misuse(message, program, bad, good):
    """Found also by what was compiled before without checks; and what is compiled with them is not used outside."""
    outside = program(*bad)
    with jb.checked():
        assert message in checkify.checkify(program)(*bad)[0].get()
        assert checkify.checkify(program)(*good)[0].get() is None
        with pytest.raises(ValueError, match=r"not functionalized"):
            program(*bad)
    assert checkify.checkify(program)(*bad)[0].get() is None
    jax.tree.map(np.testing.assert_array_equal, program(*bad), outside)
    assert not jax.make_jaxpr(program)(*bad).effects


def test_nothing_is_computed_for_checks_that_nobody_asked_for():
    computed = []

    def condition():
        computed.append(True)
        return jnp.array(True)

    check(condition, "never")
    assert not computed
    with jb.checked():
        check(condition, "never")
    assert computed
