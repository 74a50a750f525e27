"""Recurrent cores, and networks that are given histories."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from algorithms import Torso
from algorithms.networks.memories import History, RecurrentCore

GRU = Torso((8,), memory="gru", memory_size=6)
LSTM = Torso((8,), memory="lstm", memory_size=6)
LENGTH = 5


def history(key, length=LENGTH, carry=None):
    return History(jax.random.normal(key, (length, 4)), carry, jnp.zeros(length, bool))


def in_flax(kind, ours):
    """Return the parameters of a core as those of a cell of Flax."""
    gates = list("rzn") if kind == "gru" else list("ifgo")
    parts = {
        name: jnp.split(leaf, len(gates), axis=-1)
        for name, leaf in (
            ("kernel", ours["Dense_0"]["kernel"]),
            ("bias", ours["Dense_0"]["bias"]),
            ("recurrent", ours["recurrent_kernel"]),
            ("recurrent_bias", ours["recurrent_bias"]),
        )
    }
    theirs = {}
    for index, gate in enumerate(gates):
        if kind == "gru":
            bias = parts["bias"][index] + (parts["recurrent_bias"][index] if gate in "rz" else 0)
            theirs[f"i{gate}"] = {"kernel": parts["kernel"][index], "bias": bias}
            theirs[f"h{gate}"] = {"kernel": parts["recurrent"][index]}
        else:
            theirs[f"i{gate}"] = {"kernel": parts["kernel"][index]}
            bias = parts["bias"][index] + parts["recurrent_bias"][index]
            bias = bias + (1 if gate == "f" else 0)  # our forget gates begin open
            theirs[f"h{gate}"] = {"kernel": parts["recurrent"][index], "bias": bias}
    if kind == "gru":
        theirs["hn"]["bias"] = parts["recurrent_bias"][2]
    return theirs


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_cores_are_those_of_flax(key, kind):
    key_init, key_inputs, key_params = jax.random.split(key, 3)
    inputs = jax.random.normal(key_inputs, (7, 4))
    core = RecurrentCore(kind, 3)
    params = core.init(key_init, inputs, None, jnp.zeros(7, bool))
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(key_params, len(leaves))
    params = structure.unflatten([jax.random.normal(k, leaf.shape) for k, leaf in zip(keys, leaves, strict=True)])
    last, outputs = core.apply(params, inputs, None, jnp.zeros(7, bool))

    theirs = in_flax(kind, params["params"])
    cell = nn.GRUCell(3) if kind == "gru" else nn.LSTMCell(3)
    carry = cell.initialize_carry(key, (4,))
    expected = []
    for row in inputs:
        carry, output = cell.apply({"params": theirs}, carry, row)
        expected.append(output)
    np.testing.assert_allclose(outputs, jnp.stack(expected), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(last, carry if kind == "gru" else jnp.stack(carry), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("torso", [GRU, LSTM])
def test_a_history_is_its_rows_one_after_the_other(key, torso):
    rows = history(key)
    params = torso.init(key, rows)
    whole = torso.apply(params, rows)
    carry, parts = None, []
    encoder = {"params": params["params"]["encoder"]}
    for index in range(LENGTH):
        part = History(rows.obs[index : index + 1], carry, rows.is_first[:1])
        parts.append(torso.apply(params, part)[0])
        carry = torso.encoder.apply(encoder, part)[1]
    np.testing.assert_allclose(whole, jnp.stack(parts), rtol=1e-5, atol=1e-6)
    assert jnp.any(whole[1:] != torso.apply(params, rows._replace(obs=rows.obs.at[0].add(1.0)))[1:])  # it remembers


def test_nothing_is_remembered_behind_the_first_row_of_an_episode(key):
    rows = history(key)._replace(is_first=jnp.arange(LENGTH) == 2)
    params = GRU.init(key, rows)
    fresh = GRU.apply(params, History(rows.obs[2:], None, jnp.zeros(LENGTH - 2, bool)))
    np.testing.assert_allclose(GRU.apply(params, rows)[2:], fresh, rtol=1e-5, atol=1e-6)


def test_successors_are_seen_with_the_memory_of_their_rows(key):
    rows = history(key)
    params = GRU.init(key, rows)
    following = jnp.concatenate([rows.obs[1:], jnp.ones((1, 4))])
    successors = GRU.apply(params, rows._replace(following=following))
    np.testing.assert_allclose(successors[:-1], GRU.apply(params, rows)[1:], rtol=1e-5, atol=1e-6)
    # A final observation that is not the next row's changes its own answer only.
    other = GRU.apply(params, rows._replace(following=following.at[1].add(1.0)))
    changed = jnp.any(other != successors, axis=1)
    np.testing.assert_array_equal(changed, jnp.arange(LENGTH) == 1)


def test_a_network_without_memory_takes_histories_row_by_row(key):
    rows, torso = history(key), Torso((8,))
    params = torso.init(key, rows.obs[0])
    expected = jax.vmap(torso.apply, in_axes=(None, 0))(params, rows.obs)
    np.testing.assert_allclose(torso.apply(params, rows), expected, rtol=1e-6)
    np.testing.assert_allclose(torso.apply(params, rows._replace(following=rows.obs)), expected, rtol=1e-6)


def test_values_behind_several_steps_are_those_of_the_last_row(key):
    rows = history(key)
    params = GRU.init(key, rows)
    following = rows._replace(following=rows.obs + 1)
    last = jnp.array([2, 3, 4, 4, 4])
    np.testing.assert_allclose(
        GRU.apply(params, rows._replace(following=rows.obs[last] + 1, last=last)),
        GRU.apply(params, following)[last],
        rtol=1e-6,
    )
