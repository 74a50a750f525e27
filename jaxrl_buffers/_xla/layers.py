"""Layers of networks: narrow heads, stacked networks, convolutions, recurrent loops."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxrl_buffers._xla.values import GPUS
from jaxrl_buffers.types import PyTree

FEW_COLUMNS = 4  # a kernel of up to this many columns is narrow
Padding = str | Sequence[tuple[int, int]]


def narrow_product(
    x: jax.Array, kernel: jax.Array, dimension_numbers: lax.DotDimensionNumbers, **options: Any
) -> jax.Array:
    """Return the product of inputs with the kernel of a dense layer. On CPU a narrow kernel is multiplied by columns.

    The gradient of a narrow kernel is a product of two tall matrices. XLA's CPU backend has fast code for the product
    of a matrix and a vector, but none for this product.

    Seen on: jaxlib 0.10.2, CPU.
    Gains: the gradient of a kernel of two columns takes a seventh of the time. On a TPU v5e the workaround would make a
        gradient step of a network with such a head slower: 19k cycles instead of 15k. So TPUs use the plain product.
    Pinned by: `test_narrow_heads_are_computed_by_columns_on_cpu_alone`.
    Can go when: the gradient of one product takes no longer on CPU.

    Args:
        x: `[..., F]`.
        kernel: `[F, M]`.
        dimension_numbers: as `nn.Dense` passes them: the last axis of `x` and the first of the kernel are contracted.
        options: as in `lax.dot_general`.

    Example:
        >>> from flax import linen as nn
        >>> layer = nn.Dense(2, dot_general=narrow_product)
        >>> layer.init_with_output(jax.random.key(0), jnp.zeros((5, 7)))[0].shape
        (5, 2)
    """
    product = functools.partial(lax.dot_general, dimension_numbers=dimension_numbers, **options)
    if kernel.shape[-1] > FEW_COLUMNS:
        return product(x, kernel)

    def by_columns(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return jnp.stack([product(x, column) for column in kernel.T], axis=-1)

    return lax.platform_dependent(x, kernel, cpu=by_columns, default=product)


def map_stack(function: Callable[[PyTree, PyTree], PyTree], stack: PyTree, inputs: PyTree) -> PyTree:
    """Return `vmap(function, in_axes=(0, None))(stack, inputs)`. On CPU and GPU each entry gets its own inputs.

    XLA merges the first layers of all entries into one product if they have the same inputs. It then spends more time
    on moving the parts of that product to where the second layers need them.

    Seen on: jaxlib 0.10.2, CPU and GPU.
    Gains: a gradient step of two critics of 64x64 with a batch of 256 takes 167 us on two CPU cores, not 187, with 11
        copies, not 21. On an H100 such a step has 21 kernels, not 24. On a TPU v5e the workaround would make it slower:
        37k cycles instead of 31k. So TPUs use the plain `vmap`.
    Pinned by: `test_stacked_networks_have_inputs_of_their_own_on_cpu_and_gpu_alone`.
    Can go when: these figures are the same without it.

    Args:
        function: maps one entry of the stack and the inputs to any pytree.
        stack: leaves `[C, ...]`, such as the parameters of several networks.
        inputs: the same for all entries.

    Returns:
        Leaves `[C, ...]`.
    """
    count = jax.tree.leaves(stack)[0].shape[0]

    def with_own_inputs(stack: PyTree, inputs: PyTree) -> PyTree:
        own = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[None], (count, *leaf.shape)), inputs)
        return jax.vmap(function)(stack, own)

    plain = jax.vmap(function, in_axes=(0, None))
    special = dict.fromkeys(("cpu", *GPUS), with_own_inputs)
    return lax.platform_dependent(stack, inputs, default=plain, **special)


def scan_carries(
    step: Callable[[PyTree, tuple[jax.Array, ...], PyTree], PyTree],
    carry: jax.Array,
    values: jax.Array,
    num_parts: int,
    rows: PyTree,
) -> tuple[jax.Array, jax.Array]:
    """Scan over rows; return the last carry, and the carries `[L, ...]` after each row.

        carry = step(carry, parts of the row's values, row)

    XLA's CPU backend computes some intermediate values twice if the loop splits `values` into parts. In some programs
    it also does so if each step returns the carry that it has just computed. So on CPU the values are split before the
    loop, and each step returns the carry that it starts from. The last carry is appended after the loop.

    Seen on: jaxlib 0.10.2, CPU.
    Gains: the forward pass of a GRU of 64 over 32 sequences of 20 rows takes 0.3 ms on two CPU cores, not 0.7. On a TPU
        v5e the workaround would make its gradient slower: 63k cycles instead of 42k. So TPUs use the plain scan.
    Pinned by: `test_gates_are_cut_apart_before_the_loop_on_cpu_alone`.
    Can go when: the forward pass takes no longer without it.

    Args:
        step: returns the next carry.
        carry: the first carry.
        values: `[L, num_parts * H]`, such as the part of a recurrent cell's gates that depends on its inputs.
        num_parts: into how many parts `[H]` the values of a row are split.
        rows: leaves `[L, ...]`.
    """
    cut = functools.partial(jnp.split, indices_or_sections=num_parts, axis=-1)

    def cut_before(carry: jax.Array, values: jax.Array, rows: PyTree) -> tuple[jax.Array, jax.Array]:
        def body(carry: jax.Array, row: PyTree) -> tuple[jax.Array, jax.Array]:
            return step(carry, *row), carry

        last, before = lax.scan(body, carry, (tuple(cut(values)), rows))
        return last, jnp.concatenate([before[1:], last[None]])

    def cut_inside(carry: jax.Array, values: jax.Array, rows: PyTree) -> tuple[jax.Array, jax.Array]:
        def body(carry: jax.Array, row: PyTree) -> tuple[jax.Array, jax.Array]:
            after = step(carry, tuple(cut(row[0])), row[1])
            return after, after

        return lax.scan(body, carry, (values, rows))

    return lax.platform_dependent(carry, values, rows, cpu=cut_before, default=cut_inside)


def convolve(
    images: jax.Array,
    kernel: jax.Array,
    strides: Sequence[int],
    padding: Padding,
    lhs_dilation: Sequence[int] = (1, 1),
    rhs_dilation: Sequence[int] = (1, 1),
    feature_group_count: int = 1,
    **options: Any,
) -> jax.Array:
    """Return `lax.conv_general_dilated` as `nn.Conv` calls it. On CPU it is a product of all patches with the kernel.

    XLA's CPU backend uses its fast convolution only outside of loops. Inside `lax.scan`, where all training happens, it
    uses a slow one. A product is fast in both, and differs from a convolution only by rounding. Convolutions with
    dilations or groups are not changed.

    Seen on: jaxlib 0.10.2, CPU.
    Gains: the figures are in `_product_of_patches`.
    Pinned by: `test_loops_have_products_on_cpu_and_convolutions_elsewhere`.
    Can go when: `lax.conv_general_dilated` takes about as long inside `lax.scan` on CPU as outside.

    Args:
        images: `[B, height, width, channels]`.
        kernel: `[height, width, channels, features]`.
        strides: the distance from one patch to the next, along both axes.
        padding: `VALID`, `SAME`, or `(before, after)` along both axes.
        lhs_dilation, rhs_dilation, feature_group_count, options: as in `lax.conv_general_dilated`.

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
        **options,
    )
    if feature_group_count > 1 or max(*lhs_dilation, *rhs_dilation) > 1:
        return convolution(images, kernel)
    options = {name: options[name] for name in ("precision", "preferred_element_type") if name in options}
    product = functools.partial(_product_of_patches, strides=strides, padding=padding, **options)
    return lax.platform_dependent(images, kernel, cpu=product, default=convolution)


def _product_of_patches(
    images: jax.Array, kernel: jax.Array, strides: Sequence[int], padding: Padding, **options: Any
) -> jax.Array:
    """Return the product of all patches `[B, height, width, places, channels]` with the kernel.

    A gradient step inside a loop on two CPU cores, by convolution and by product:

        MinAtar, 10x10x4 -> 16, 3x3          batch 32:   1.8 and 0.2 ms       batch 256:   19 and 0.8 ms
        MinAtar, 10x10x10 -> 16, 3x3         batch 32:   4.6 and 0.25 ms      batch 256:   44 and 1.6 ms
        Nature network, 84x84x4              batch 32:   445 and 46 ms        batch 256:   6.5 and 0.75 s

    Other forms were not faster at any of these shapes: one product for each place of the kernel took two to ten times
    as long; one product for each row of the kernel, and patches of whole strides, took about as long. Places and
    channels stay two axes. If they were merged, the gradient of the kernel would take 1.5 times as long at MinAtar's
    sizes.
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
    return lax.dot_general(patches, kernel, (((3, 4), (0, 1)), ((), ())), **options)


def one_by_one(function: Callable[[jax.Array], PyTree]) -> Callable[[jax.Array], PyTree]:
    """Return the same function. On CPU its batches, as under `vmap`, are computed one after the other, in a loop.

    It is for functions that factor matrices, such as `jnp.linalg.qr`. A program with several batched factorizations may
    wait for ever in its first call, while all threads are idle. It was not seen with factorizations of single matrices.

    Seen on: jaxlib 0.10.2, a CPU of two cores.
    Gains: new agents of SAC with a GRU of 64 units never began in 6 processes of 6, and begin in 40 of 40.
    Pinned by: `test_batches_of_factorizations_are_loops_on_cpu_alone`.
    Can go when: SAC with a GRU of 64 units begins without it, in 30 new processes of 30 on a busy machine.

    Args:
        function: of one array, such as a key.

    Example:
        >>> initialize = one_by_one(lambda key: jax.random.orthogonal(key, 4))
        >>> jax.vmap(initialize)(jax.random.split(jax.random.key(0), 3)).shape
        (3, 4, 4)
    """
    single = jax.custom_batching.custom_vmap(function)

    @single.def_vmap
    def batched(size: int, is_batched: PyTree, values: jax.Array) -> tuple[PyTree, PyTree]:
        del size, is_batched  # the only argument is batched
        results = lax.platform_dependent(
            values, cpu=lambda values: lax.map(single, values), default=lambda values: jax.vmap(function)(values)
        )
        return results, jax.tree.map(lambda _: True, results)

    return single
