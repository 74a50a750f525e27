"""Read a program that was compiled for an accelerator: what its loops copy, and what one step of them costs.

    report(compiled, at_least=100_000)

The report covers the program's loops, whose work is done in every step, or with `whole=True` the whole program. A loop
includes everything that its body calls. A loop inside another loop counts once, however often it runs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

import jax


class Report(NamedTuple):
    """What one step of a program's loops does, or the whole program, as its compiler says."""

    # Large arrays that are made anew, as `operation shape`: copied, padded, converted, transposed and so on, but not
    # written in place.
    copies: list[str]
    # Large arrays that a TPU brings into its on-chip memory beside other work, or back. The compiler does so where it
    # has room and expects to gain by it, so these come and go.
    moves: list[str]
    # Operations that the device starts separately. Each takes some microseconds on a GPU, whatever it does.
    kernels: int
    # On TPUs, the compiler's estimate; a v5e makes some 1.5e9 a second. None is given for gathers, scatters and plain
    # writes of slices, and about 1.8k for any small fusion.
    cycles: int | None
    # Memory of the whole program, besides its arguments and results.
    temp_bytes: int
    argument_bytes: int


class Instruction(NamedTuple):
    """One line of a compiled program."""

    name: str
    shapes: list[str]  # of all arrays that come out, such as `f32[8,128]{1,0:T(8,128)S(1)}`
    operation: str
    operands: list[str]
    number: int  # of a parameter, or of the part that is taken out of a tuple
    called: list[str]  # the computations that it runs
    cycles: int
    is_root: bool


class Collective(NamedTuple):
    """An operation in which devices exchange data."""

    operation: str  # such as all-reduce
    shapes: list[str]  # of what every device has afterwards
    num_bytes: int  # of these


Computation = dict[str, Instruction]
Computations = dict[str, Computation]

# Operations that cost nothing by themselves.
FREE = {"parameter", "get-tuple-element", "tuple", "bitcast", "constant", "after-all", "iota"}
JOINED = 'custom_call_target="ConcatBitcast"'  # parts that were prefetched one after the other, side by side
# Operations that only pass arrays on, or run other computations, which are read separately.
CONTROL = {"while", "conditional", "call", "async-start", "async-update", "async-done", "opt-barrier"}
# Operations that write into their first operand. If this is still needed, compilers add a separate copy instruction.
WRITES = {"dynamic-update-slice", "scatter"}
COLLECTIVES = {"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast"}
PASSED_ON = ""  # an array as it came in
HEAD = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
LINE = re.compile(r"^\s*(ROOT )?%?([\w.\-]+) = (\(?.*?) ([a-z][\w\-]*)\((.*)$")
ARRAY = re.compile(r"\w+\[[\d,]*\](?:\{[^{}]*\})?")
NUMBER = re.compile(r"^(\d+)\)|, index=(\d+)")
CALLED = re.compile(r"\b(?:calls|to_apply|body|true_computation|false_computation)=%?([\w.\-]+)")
BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
ON_CHIP = "S(1)"


def report(compiled: jax.stages.Compiled, at_least: int, whole: bool = False) -> Report:
    """Return what the loops do, or with `whole` the whole program; arrays of `at_least` elements count as large."""
    computations = parse(compiled.as_text() or "")
    names = whole_program(computations) if whole else loops(computations)
    lines = [line for name in names for line in computations[name].values()]
    made = [(line, shape) for line in lines for shape in made_anew(computations, line, at_least)]
    memory = compiled.memory_analysis()
    return Report(
        copies=[shape for line, shape in made if not is_move(line)],
        moves=[shape for line, shape in made if is_move(line)],
        kernels=sum(map(is_kernel, lines)),
        cycles=sum(line.cycles for line in lines) or None,
        temp_bytes=memory.temp_size_in_bytes,
        argument_bytes=memory.argument_size_in_bytes,
    )


def collectives(compiled: jax.stages.Compiled) -> list[Collective]:
    """Return the operations of the loops in which devices exchange data."""
    computations = parse(compiled.as_text() or "")
    lines = [line for name in loops(computations) for line in computations[name].values()]
    found = [(line, line.operation.removesuffix("-start")) for line in lines]
    return [
        Collective(operation, line.shapes, sum(map(num_bytes, line.shapes)))
        for line, operation in found
        if operation in COLLECTIVES
    ]


def num_bytes(shape: str) -> int:
    """Return the size of an array in bytes."""
    bits = re.sub(r"^\D+", "", shape[: shape.index("[")]) or "8"  # pred has none
    return elements(shape) * max(int(bits) // 8, 1)


def parse(text: str) -> Computations:
    """Return the instructions of every computation by their names; the whole program is the last computation."""
    computations: Computations = {}
    computation: Computation = {}
    for line in re.sub(r"/\*.*?\*/", "", text).splitlines():
        if head := HEAD.match(line):
            computation = computations[head[1]] = {}
        elif match := LINE.match(line):
            computation[match[2]] = _instruction(*match.groups())
    return computations


def _instruction(root: str | None, name: str, shape: str, operation: str, rest: str) -> Instruction:
    branches = [one.strip().lstrip("%") for group in BRANCHES.findall(rest) for one in group.split(",")]
    number, cycles = NUMBER.search(rest), CYCLES.search(rest)
    return Instruction(
        name,
        shapes=ARRAY.findall(shape),
        operation="bitcast" if JOINED in rest else operation,
        operands=re.findall(r"%([\w.\-]+)", rest.split(")", 1)[0]),
        number=int(number[1] or number[2]) if number else 0,
        called=[*CALLED.findall(rest), *branches],
        cycles=int(cycles[1]) if cycles else 0,
        is_root=root is not None,
    )


def loops(computations: Computations) -> list[str]:
    """Return the computations that run once in every step of some loop."""
    lines = [line for computation in computations.values() for line in computation.values()]
    return _reached(computations, [name for line in lines if line.operation == "while" for name in line.called])


def whole_program(computations: Computations) -> list[str]:
    """Return the computations that run by themselves: not those inside of fusions and reductions."""
    return _reached(computations, list(computations)[-1:])


def _reached(computations: Computations, names: list[str]) -> list[str]:
    found: dict[str, None] = {}
    names = list(names)
    while names:
        name = names.pop()
        if name not in found:
            found[name] = None
            names += [one for line in computations[name].values() if line.operation in CONTROL for one in line.called]
    return list(found)


def is_kernel(line: Instruction) -> bool:
    """Return whether an instruction does work itself."""
    return line.operation not in FREE | CONTROL and not line.operation.endswith("-done")


def elements(shape: str) -> int:
    """Return the number of elements of an array."""
    return math.prod(int(size) for size in shape[shape.index("[") + 1 : shape.index("]")].split(",") if size)


def is_move(line: Instruction) -> bool:
    """Return whether an instruction moves data into or out of a TPU's on-chip memory while other work goes on."""
    return line.operation.endswith("-start") and any(ON_CHIP in shape for shape in line.shapes)


def made_anew(computations: Computations, line: Instruction, at_least: int) -> Iterator[str]:
    """Yield the large arrays that an instruction makes anew, as `operation shape`."""
    for number, shape in enumerate(line.shapes if is_kernel(line) else ()):
        if elements(shape) >= at_least and not _is_aside(line, number):
            maker = line.operation
            if maker == "fusion":
                maker = _maker(computations, line.called[0], number)[0] or "copy"
            if maker not in WRITES:
                yield f"{maker} {re.sub(r'{.*', '', shape)}"


def _is_aside(line: Instruction, number: int) -> bool:
    """Return whether an output is no result: data that is fetched beside other work, or work space of libraries."""
    if line.operation.endswith("-start"):
        return number != (0 if line.operation == "copy-start" else 1)
    return line.operation == "custom-call" and line.shapes[number].startswith("s8[")


def _maker(computations: Computations, name: str, number: int) -> tuple[str, int]:
    """Follow an output of a fusion back to the operation that makes it, or to a parameter.

    Returns:
        The operation and the number of the parameter. The operation is a write only if it writes into a parameter.
    """
    computation = computations[name]

    def follow(line: Instruction, number: int) -> tuple[str, int]:
        if line.operation == "parameter":
            return PASSED_ON, line.number
        inputs = [computation[operand] for operand in line.operands]
        if line.operation == "tuple":
            return follow(inputs[number], 0)
        if line.operation == "get-tuple-element":
            return follow(inputs[0], line.number)
        if line.operation == "bitcast":
            return follow(inputs[0], 0)
        if line.operation in WRITES:
            return then(line.operation, inputs[number])
        if line.operation == "fusion":
            maker, parameter = _maker(computations, line.called[0], number)
            return then(maker, inputs[parameter]) if maker in {PASSED_ON, *WRITES} else (maker, 0)
        return line.operation, 0

    def then(operation: str, source: Instruction) -> tuple[str, int]:
        """Continue with the array that was written into or passed on."""
        maker, parameter = follow(source, 0)
        return (operation, parameter) if maker in {PASSED_ON, *WRITES} else (maker, 0)

    return follow(next(line for line in computation.values() if line.is_root), number)
