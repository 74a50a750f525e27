"""Workarounds for compilers in layers of networks: each changes results by rounding at most."""

from __future__ import annotations

import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from support.platforms import assert_plain_elsewhere, operations

from jaxrl_buffers import _xla


def with_gradients(function):
    """Return a program of values and of all gradients, as training has it."""

    def program(*args):
        weighted = lambda *args: (jnp.sum(jnp.cos(function(*args)).astype(jnp.float32)), function(*args))  # noqa: E731
        return jax.value_and_grad(weighted, argnums=tuple(range(len(args))), has_aux=True)(*args)

    return program


def assert_close(function, plain, *args, **tolerance):
    ours, expected = (jax.jit(with_gradients(one))(*args) for one in (function, plain))
    chex.assert_trees_all_equal_dtypes(ours, expected)
    chex.assert_trees_all_close(ours, expected, **tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float32, 1e-5), (jnp.bfloat16, 0.1)])
@pytest.mark.parametrize("width", [1, 2, 4, 5])
def test_narrow_heads_are_as_any_other(key, width, dtype, tolerance):
    x, kernel = jax.random.normal(key, (6, 7), dtype), jax.random.normal(key, (7, width), dtype)
    narrow, plain = (nn.Dense(width, use_bias=False, dtype=dtype, dot_general=f) for f in (_xla.narrow_product, None))

    def applied(layer):
        return jax.vmap(lambda x, kernel: layer.apply({"params": {"kernel": kernel}}, x), in_axes=(0, None))

    assert_close(applied(narrow), applied(plain), x, kernel, rtol=tolerance, atol=tolerance)


def test_narrow_heads_are_computed_by_columns_on_cpu_alone():
    numbers = (((1,), (0,)), ((), ()))
    narrow, plain = (lambda x, k, f=f: f(x, k, numbers) for f in (_xla.narrow_product, jax.lax.dot_general))
    args = jnp.zeros((6, 7)), jnp.zeros((7, 3))
    assert_plain_elsewhere(narrow, plain, *args)
    assert operations("cpu", narrow, *args).count("stablehlo.dot_general") == 3
    wide = jnp.zeros((6, 7)), jnp.zeros((7, 5))
    assert operations("cpu", narrow, *wide) == operations("cpu", plain, *wide)


def two_layers(params, inputs):
    """A network, for stacks of networks."""
    return jnp.tanh(inputs["x"] @ params[0]) @ params[1] + inputs["bias"][:, None]


def stack_of_networks(key):
    params = jax.random.normal(key, (3, 4, 8)), jax.random.normal(key, (3, 8, 2))
    return params, {"x": jax.random.normal(key, (5, 4)), "bias": jnp.arange(5.0)}


def test_stacked_networks_are_as_each_alone(key):
    plain = jax.vmap(two_layers, in_axes=(0, None))
    mapped = lambda stack, inputs: _xla.map_stack(two_layers, stack, inputs)  # noqa: E731
    assert_close(mapped, plain, *stack_of_networks(key), rtol=1e-5, atol=1e-6)


def test_stacked_networks_have_inputs_of_their_own_on_cpu_and_gpu_alone(key):
    plain = jax.vmap(two_layers, in_axes=(0, None))
    mapped = lambda stack, inputs: _xla.map_stack(two_layers, stack, inputs)  # noqa: E731
    args = stack_of_networks(key)
    assert operations("tpu", mapped, *args) == operations("tpu", plain, *args)
    for platform in ("cpu", "cuda"):
        text = jax.jit(mapped).trace(*args).lower(lowering_platforms=(platform,)).as_text()
        assert re.search(r"dot_general .*batching_dims = \[0\] x \[0\].*\(tensor<3x5x4xf32>, tensor<3x4x8xf32>\)", text)


def cell(carry, parts, row):
    """A small recurrent cell, for loops."""
    reset, new = parts
    return jnp.where(row, 0.0, jax.nn.sigmoid(reset) * carry) + jnp.tanh(new + carry)


def carries_of(carry, values, rows):
    return jnp.concatenate([part.reshape(-1, 3) for part in _xla.scan_carries(cell, carry, values, 2, rows)])


def plain_carries(carry, values, rows):
    def step(carry, row):
        after = cell(carry, jnp.split(row[0], 2), row[1])
        return after, after

    last, carries = jax.lax.scan(step, carry, (values, rows))
    return jnp.concatenate([last[None], carries])


def test_carries_are_those_of_a_plain_loop(key):
    carry, values = jax.random.normal(key, (3,)), jax.random.normal(key, (7, 6))
    rows = jnp.arange(7) == 4
    ours, plain = (lambda carry, values, f=f: f(carry, values, rows) for f in (carries_of, plain_carries))
    assert_close(ours, plain, carry, values, rtol=1e-5, atol=1e-6)
    many = jnp.stack([carry, -carry]), jnp.stack([values, values + 1])
    assert_close(jax.vmap(ours), jax.vmap(plain), *many, rtol=1e-5, atol=1e-6)


def test_gates_are_cut_apart_before_the_loop_on_cpu_alone():
    args = jnp.zeros(3), jnp.zeros((7, 6)), jnp.zeros(7, bool)
    for platform, is_whole in (("cpu", False), ("tpu", True), ("cuda", True)):
        text = jax.jit(carries_of).trace(*args).lower(lowering_platforms=(platform,)).as_text()
        (loop,) = re.findall(r"= stablehlo.while.*", text)
        assert ("tensor<7x6xf32>" in loop) is is_whole


def test_batches_of_factorizations_are_loops_on_cpu_alone(key):
    def initialize(key):
        return jax.random.orthogonal(key, 4)

    keys = jax.random.split(key, (2, 3))
    both = [jax.vmap(jax.vmap(function)) for function in (_xla.one_by_one(initialize), initialize)]
    np.testing.assert_array_equal(*(jax.jit(function)(keys) for function in both))
    cosines = jax.vmap(_xla.one_by_one(jnp.cos))
    is_loop = {name: "stablehlo.while" in operations(name, cosines, jnp.ones(3)) for name in ("cpu", "tpu", "cuda")}
    assert is_loop == {"cpu": True, "tpu": False, "cuda": False}
