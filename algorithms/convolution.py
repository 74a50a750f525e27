"""Convolutions of images that are fast inside compiled loops, too.

XLA's CPU backend calls its fast convolution only outside of loops; inside `lax.scan`, which all training is, it calls
one without blocks and threads. A product of all patches with the kernel has no such trouble. A gradient step inside a
loop on two cores (jaxlib 0.10.2), by convolution and by product:

    MinAtar, 10x10x4 -> 16, 3x3          batch 32:   1.8 and 0.2 ms       batch 256:   19 and 0.8 ms
    MinAtar, 10x10x10 -> 16, 3x3         batch 32:   4.6 and 0.25 ms      batch 256:   44 and 1.6 ms
    Nature network, 84x84x4              batch 32:   445 and 46 ms        batch 256:   6.5 and 0.75 s

A sum of products of shifted images, one for each place of the kernel, took two to ten times as long as the one product;
one product for each row of the kernel, and patches of whole strides, took about as long. So there is no choice by
shape. On other platforms convolutions are what they are. The detour can go once `lax.conv_general_dilated` takes about
as long inside `lax.scan` on CPU as outside.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def convolve(
    images: jax.Array,
    kernel: jax.Array,
    strides: Sequence[int],
    padding: Any,
    lhs_dilation: Sequence[int] = (1, 1),
    rhs_dilation: Sequence[int] = (1, 1),
    feature_group_count: int = 1,
    precision: Any = None,
    **options: Any,
) -> jax.Array:
    """Return `lax.conv_general_dilated` as `nn.Conv` calls it, to rounding; with dilations or groups always itself.

    Args:
        images: `[B, height, width, channels]`.
        kernel: `[height, width, channels, features]`.
        strides: from one patch to the next, along both axes.
        padding: `VALID`, `SAME`, or how much before and behind, along both axes.
        lhs_dilation, rhs_dilation, feature_group_count, precision, options: as in `lax.conv_general_dilated`.

    Example:
        >>> from flax import linen as nn
        >>> layer = nn.Conv(16, (3, 3), padding="VALID", conv_general_dilated=convolve)
        >>> layer.init_with_output(jax.random.key(0), jnp.zeros((5, 10, 10, 4)))[0].shape
        (5, 8, 8, 16)
    """
    convolution = functools.partial(
        lax.conv_general_dilated,
        window_strides=strides,
        padding=padding,
        lhs_dilation=lhs_dilation,
        rhs_dilation=rhs_dilation,
        feature_group_count=feature_group_count,
        precision=precision,
        **options,
    )
    if feature_group_count > 1 or max(*lhs_dilation, *rhs_dilation) > 1:
        return convolution(images, kernel)
    product = functools.partial(_product_of_patches, strides=strides, padding=padding, precision=precision)
    return lax.platform_dependent(images, kernel, cpu=product, default=convolution)


def _product_of_patches(
    images: jax.Array, kernel: jax.Array, strides: Sequence[int], padding: Any, precision: Any
) -> jax.Array:
    """Return all patches `[B, height, width, places, channels]`, multiplied by the kernel.

    Places and channels stay two axes: as one, the gradient of the kernel gets another form, which takes 1.5 times as
    long at MinAtar's sizes.
    """
    height, width, num_channels, num_features = kernel.shape
    if isinstance(padding, str):
        padding = lax.padtype_to_pads(images.shape[1:3], (height, width), strides, padding)
    images = jnp.pad(images, ((0, 0), *padding, (0, 0)))
    last = [size - window for size, window in zip(images.shape[1:3], (height, width), strict=True)]
    shifted = [
        images[:, row : row + last[0] + 1 : strides[0], column : column + last[1] + 1 : strides[1]]
        for row in range(height)
        for column in range(width)
    ]
    patches, kernel = jnp.stack(shifted, axis=-2), kernel.reshape(-1, num_channels, num_features)
    return lax.dot_general(patches, kernel, (((3, 4), (0, 1)), ((), ())), precision=precision)
