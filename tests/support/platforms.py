"""Programs as they are given to the compilers of several platforms, none of which need be there."""

from __future__ import annotations

import re

import jax

PLUMBING = ("stablehlo.constant", "stablehlo.case", "stablehlo.return", "func.func")  # a case of the one branch chosen


def operations(platform, function, *args):
    """Return the operations of a program as it is given to the compiler of a platform, without constants."""
    text = jax.jit(function).trace(*args).lower(lowering_platforms=(platform,)).as_text()
    return [name for name in re.findall(r"(?:stablehlo|func)\.\w+(?: @\w+)?", text) if name not in PLUMBING]


def assert_plain_elsewhere(function, plain, *args):
    """Check that a function is special on CPU, and the same program as a plain one on other platforms."""
    for platform in ("tpu", "cuda"):
        assert operations(platform, function, *args) == operations(platform, plain, *args)
    assert operations("cpu", function, *args) != operations("cpu", plain, *args)
