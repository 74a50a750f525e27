"""Rows as 32-bit words: all leaves of a row, of any shape and dtype, packed into one vector and back, bit for bit.

Leaves are grouped by the width of their elements, and each group is concatenated into `E` elements:

    8 bytes   two words an element: all low words, then all high words
    4 bytes   one word an element
    2 bytes   two elements a word
    1 byte    four elements a word

Narrow elements are packed in planes: byte `i` of word `w` is element `i * num_words + w`. So packing takes only a few
shifts of whole vectors, and no reshape within a word. In this example eight bytes are packed into two words, lowest
byte first:

    elements   a b c d e f g h
    words      a c e g,  b d f h

Why planes: a program that packs 128 rows, writes them and gathers 256 was compiled, but not run, by jaxlib 0.10.2 and
libtpu 0.0.51. With planes it has 15k cycles on a TPU and 8 kernels on a GPU. With `lax.bitcast_convert_type` between
widths it had 20k cycles and 11 kernels.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

DType = Any  # a NumPy dtype, or the dtype of typed PRNG keys
WIDTHS: tuple[int, ...] = (8, 4, 2, 1)  # bytes of an element, in the order of the groups in a row


class Element(NamedTuple):
    """One leaf of a row."""

    shape: tuple[int, ...]
    dtype: DType


class Form(NamedTuple):
    """What a vector of words holds. It is hashable, so it can be a static argument."""

    elements: tuple[Element, ...]
    num_words: int  # the width; words after the last leaf are zero


def form_of(elements: Sequence[Element], rounded: Callable[[int], int] | None = None) -> Form:
    """Return the form of rows with given leaves. `rounded` may give them more words than they need."""
    counts = _counts(elements)
    num_words = sum(-(-counts[width] * width // 4) for width in WIDTHS)
    return Form(tuple(elements), num_words if rounded is None else rounded(num_words))


def pack(form: Form, leaves: Sequence[jax.Array], num_axes: int) -> jax.Array:
    """Return rows as words `uint32[..., W]`; the leaves have `num_axes` batch axes in front."""
    lead = leaves[0].shape[:num_axes]
    by_width: dict[int, list[jax.Array]] = {width: [] for width in WIDTHS}
    for leaf, element in zip(leaves, form.elements, strict=True):
        by_width[_width(element)].append(_bits(leaf, element).reshape(*lead, -1))
    parts = [part for width, bits in by_width.items() if bits for part in _join(bits, width)]
    missing = form.num_words - sum(part.shape[-1] for part in parts)
    return jnp.concatenate([*parts, jnp.zeros((*lead, missing), jnp.uint32)], axis=-1)


def unpack(form: Form, words: jax.Array) -> list[jax.Array]:
    """Return the leaves `[..., *shape]` of rows `uint32[..., W]`."""
    lead, counts = words.shape[:-1], _counts(form.elements)
    bits: dict[int, jax.Array] = {}
    offset = 0
    for width in (width for width in WIDTHS if counts[width]):
        num_words = -(-counts[width] * width // 4)
        bits[width] = _cut(words[..., offset : offset + num_words], width)
        offset += num_words
    leaves, places = [], dict.fromkeys(WIDTHS, 0)
    for element in form.elements:
        width, count = _width(element), _count(element)
        part = bits[width][..., places[width] : places[width] + count]
        leaves.append(_value(part.reshape(*lead, *_bit_shape(element)), element))
        places[width] += count
    return leaves


def _is_key(dtype: DType) -> bool:
    return jnp.issubdtype(dtype, jax.dtypes.prng_key)


def _is_complex(dtype: DType) -> bool:
    return jnp.issubdtype(dtype, jnp.complexfloating)


def _key_shape(dtype: DType) -> tuple[int, ...]:
    return jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct((), dtype)).shape


def _width(element: Element) -> int:
    """Return the bytes of each stored number. A complex number is stored as two numbers, a key as its words."""
    if _is_key(element.dtype):
        return 4
    return element.dtype.itemsize // 2 if _is_complex(element.dtype) else element.dtype.itemsize


def _bit_shape(element: Element) -> tuple[int, ...]:
    """Return the shape of the stored numbers. For complex numbers and keys it has one axis more than the leaf."""
    if _is_key(element.dtype):
        return (*element.shape, *_key_shape(element.dtype))
    return (2, *element.shape) if _is_complex(element.dtype) else element.shape


def _count(element: Element) -> int:
    return math.prod(_bit_shape(element))


def _counts(elements: Sequence[Element]) -> dict[int, int]:
    """Return how many numbers of each width a row has."""
    counts = dict.fromkeys(WIDTHS, 0)
    for element in elements:
        counts[_width(element)] += _count(element)
    return counts


def _bits(leaf: jax.Array, element: Element) -> jax.Array:
    """Return the bits of a leaf as unsigned integers of the same width."""
    if _is_key(element.dtype):
        return jax.random.key_data(leaf)
    if _is_complex(element.dtype):
        axis = leaf.ndim - len(element.shape)
        leaf = jnp.stack([leaf.real, leaf.imag], axis=axis)
    if leaf.dtype == jnp.bool_:
        return leaf.astype(jnp.uint8)
    if _is_small_integer(leaf.dtype):
        return lax.bitcast_convert_type(leaf.astype(jnp.int8), jnp.uint8)
    return lax.bitcast_convert_type(leaf, f"uint{8 * leaf.dtype.itemsize}")


def _value(bits: jax.Array, element: Element) -> jax.Array:
    """Return the leaf that has these bits: the inverse of `_bits`."""
    if _is_key(element.dtype):
        return jax.random.wrap_key_data(bits, impl=jax.random.key_impl(jnp.zeros((), element.dtype)))
    if element.dtype == jnp.bool_:
        return bits.astype(jnp.bool_)
    if _is_small_integer(element.dtype):
        return lax.bitcast_convert_type(bits, jnp.int8).astype(element.dtype)
    if not _is_complex(element.dtype):
        return lax.bitcast_convert_type(bits, element.dtype)
    axis = bits.ndim - len(element.shape) - 1
    parts = lax.bitcast_convert_type(bits, jnp.finfo(element.dtype).dtype)
    return lax.complex(*(lax.index_in_dim(parts, part, axis, keepdims=False) for part in (0, 1)))


def _is_small_integer(dtype: DType) -> bool:
    """Return whether a dtype is an integer of fewer than eight bits; JAX stores each of them in a byte."""
    return jnp.issubdtype(dtype, jnp.integer) and jnp.iinfo(dtype).bits < 8


def _join(parts: list[jax.Array], width: int) -> list[jax.Array]:
    """Concatenate unsigned integers `[..., E]` of one width, and return them as words."""
    if width == 4:
        return parts
    bits = jnp.concatenate(parts, axis=-1)
    if width == 8:
        halves = lax.bitcast_convert_type(bits, jnp.uint32)
        return [halves[..., 0], halves[..., 1]]
    num_words = -(-bits.shape[-1] * width // 4)
    planes = [bits[..., begin : begin + num_words] for begin in range(0, bits.shape[-1], num_words)]
    missing = num_words * len(planes) - bits.shape[-1]
    planes[-1] = jnp.pad(planes[-1], [*[(0, 0)] * (bits.ndim - 1), (0, missing)])
    shifted = [plane.astype(jnp.uint32) << 8 * width * number for number, plane in enumerate(planes)]
    return [functools.reduce(jnp.bitwise_or, shifted)]


def _cut(words: jax.Array, width: int) -> jax.Array:
    """Return words as unsigned integers of one width `[..., E]`, with zeros after the last one that was joined."""
    if width == 4:
        return words
    if width == 8:
        half = words.shape[-1] // 2
        return lax.bitcast_convert_type(jnp.stack([words[..., :half], words[..., half:]], axis=-1), jnp.uint64)
    kind, num_planes = jnp.dtype(f"uint{8 * width}"), 4 // width
    planes = [(words >> 8 * width * plane).astype(kind) for plane in range(num_planes)]
    return jnp.concatenate(planes, axis=-1)
