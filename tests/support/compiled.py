"""What compiled programs do with whole arrays, read from their text."""

from __future__ import annotations

import math
import re


def compiled_as_usual(lowered):
    """Compile with the emitters that users have: they decide what is fused, and with it what is copied."""
    return lowered.compile(compiler_options={"xla_cpu_use_fusion_emitters": True})


# What may touch an array as long as the ring: pass it on, read or write a few places of it, or wrap such operations.
PLUMBING = {"parameter", "get-tuple-element", "tuple", "bitcast", "while", "call", "fusion", "opt-barrier"}
PARTIAL_WRITES = {"dynamic-update-slice", "scatter"}
PARTIAL_READS = {"gather", "dynamic-slice", "slice"}
INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = (\(?.*?\)?) ([\w-]+)\((.*)$")


def longest(shape):
    """Return the most elements of any array in a printed type."""
    sizes = [math.prod(int(axis) for axis in axes.split(",") if axis) for axes in re.findall(r"\[([\d,]*)\]", shape)]
    return max(sizes, default=0)


def whole_array_operations(compiled, length):
    """Return the instructions, also inside fusions, that read or write all of an array of `length` elements or more."""
    found = []
    for computation in compiled.as_text().split("\n\n"):
        sizes = {}
        for line in computation.splitlines():
            if not (match := INSTRUCTION.match(line)):
                continue
            name, shape, operation, operands = match.groups()
            sizes[name] = longest(shape)
            reads = max((sizes.get(operand, 0) for operand in re.findall(r"%([\w.-]+)", operands)), default=0)
            writes_all = sizes[name] >= length and operation not in PLUMBING | PARTIAL_WRITES
            reads_all = reads >= length and operation not in PLUMBING | PARTIAL_WRITES | PARTIAL_READS
            if writes_all or reads_all:
                found.append(line.strip()[:120])
    return found
