"""Convolutions as products of patches, against those of flax; networks of images from settings."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from algorithms import NATURE, Torso
from jaxrl_buffers._xla import convolve


def layers(kernel_size, **options):
    """Return a layer by `convolve` and one of flax."""
    return [nn.Conv(6, kernel_size, **options, conv_general_dilated=function) for function in (convolve, None)]


@pytest.mark.parametrize(
    ("kernel_size", "strides", "padding"),
    [
        ((3, 3), (1, 1), "VALID"),
        ((4, 2), (2, 3), "VALID"),
        ((7, 9), (1, 1), "VALID"),  # as large as the image
        ((1, 1), (3, 2), "VALID"),
        ((3, 4), (2, 1), "SAME"),
        ((2, 3), (1, 2), ((1, 0), (2, 1))),
    ],
)
def test_values_and_gradients_are_those_of_flax(key, kernel_size, strides, padding):
    images = jax.random.normal(key, (5, 7, 9, 4))
    ours, other = layers(kernel_size, strides=strides, padding=padding)
    params = other.init(key, images)
    jax.tree.map(np.testing.assert_array_equal, params, ours.init(key, images))  # the same names, shapes and numbers

    def loss(layer, params, images):
        out = jax.vmap(layer.apply, in_axes=(None, 0))(params, images)  # one image at a time, as networks do
        return jnp.sum(jnp.cos(out)), out

    one, two = (
        jax.jit(jax.value_and_grad(lambda *args, layer=layer: loss(layer, *args), argnums=(0, 1), has_aux=True))
        for layer in (ours, other)
    )
    jax.tree.map(
        lambda got, expected: np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4),
        one(params, images),
        two(params, images),
    )


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_numbers_of_half_the_size_stay_so(key, dtype):
    images = jax.random.normal(key, (5, 7, 9, 4), dtype)
    ours, other = layers((3, 2), strides=(2, 1), padding="SAME", dtype=dtype, param_dtype=dtype)
    params = other.init(key, images)

    def loss(params, images, layer):
        return jnp.sum(jnp.cos(layer.apply(params, images)).astype(jnp.float32))

    one, two = (jax.jit(jax.grad(lambda *args, of=of: loss(*args, of), argnums=(0, 1))) for of in (ours, other))
    got, expected = one(params, images), two(params, images)
    assert all(leaf.dtype == dtype for leaf in jax.tree.leaves((got, expected, ours.apply(params, images))))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a.astype(np.float32), b.astype(np.float32), rtol=0.1, atol=0.3),
        (got, ours.apply(params, images)),
        (expected, other.apply(params, images)),
    )


def test_dilated_and_grouped_convolutions_are_left_alone(key):
    images = jax.random.normal(key, (2, 9, 9, 4))
    padding = {"padding": ((0, 0), (1, 1))}
    for options in ({"kernel_dilation": 2}, {"input_dilation": 2} | padding, {"feature_group_count": 2} | padding):
        ours, other = layers((3, 3), **options)
        params = other.init(key, images)
        np.testing.assert_array_equal(ours.apply(params, images), other.apply(params, images))


def loop(torso, seeds=None):
    """Return gradient steps in a loop, with their arguments, as training makes them."""
    images = jnp.ones((2, 8, 8, 3), jnp.uint8)

    def run(params, images):
        def step(params, _):
            grads = jax.grad(lambda params: jnp.sum(jax.vmap(torso.apply, in_axes=(None, 0))(params, images)))(params)
            return jax.tree.map(jnp.subtract, params, grads), None

        return jax.lax.scan(step, params, None, length=2)[0]

    params = torso.init(jax.random.key(0), images[0])
    if seeds is not None:
        params = jax.tree.map(lambda leaf: jnp.stack([leaf] * seeds), params)
        run = jax.vmap(run, in_axes=(0, None))
    return jax.jit(run).trace(params, images)


@pytest.mark.parametrize("seeds", [None, 2])
def test_loops_have_products_on_cpu_and_convolutions_elsewhere(seeds):
    trace = loop(Torso((), channels=(4, 4), kernel_sizes=(3, 2)), seeds)
    for platform in ("tpu", "cuda"):
        text = trace.lower(lowering_platforms=(platform,)).as_text()
        assert "stablehlo.convolution" in text
        assert "dot_general" not in text
    compiled = trace.lower(lowering_platforms=("cpu",)).compile().as_text()
    assert " dot(" in compiled
    assert " convolution(" not in compiled
    assert " conditional(" not in compiled  # only what is used was compiled


def test_kernels_and_strides_are_one_for_each_convolution_or_one_for_all(key):
    image = jnp.zeros((84, 84, 4), jnp.uint8)
    shapes = jax.eval_shape(NATURE.init, key, image)["params"]
    assert [shapes["encoder"][f"Conv_{i}"]["kernel"].shape for i in range(3)] == [
        (8, 8, 4, 32),
        (4, 4, 32, 64),
        (3, 3, 64, 64),
    ]
    assert shapes["Dense_0"]["kernel"].shape == (7 * 7 * 64, 512)
    image = jnp.zeros((11, 12, 2))
    one, two = (
        Torso((), (4, 5), kernel_sizes=sizes, strides=strides) for sizes, strides in [((3,), (2,)), ((3, 3), (2, 2))]
    )
    assert jax.eval_shape(one.init, key, image) == jax.eval_shape(two.init, key, image)
    assert jax.eval_shape(lambda: one.init_with_output(key, image)[0]).shape == (2 * 2 * 5,)


def test_sizes_that_do_not_fit_are_refused(key):
    for name in ("kernel_sizes", "strides"):
        with pytest.raises(ValueError, match=rf"{name}=\(3, 3\)\): there are 3 convolutions, .*one number for each"):
            Torso(channels=(4, 4, 4), **{name: (3, 3)})
        with pytest.raises(ValueError, match=rf"{name}=0\).*at least 1"):
            Torso(**{name: (0,)})
    obs = {"eyes": {"left": jnp.zeros((5, 9, 1))}}
    with pytest.raises(
        ValueError, match=r"observation eyes.left is an image of 5x9, of which 2x4 reach convolution 2.*3x3"
    ):
        jax.eval_shape(Torso(channels=(4, 4), strides=(2,)).init, key, obs)
