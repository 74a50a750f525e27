"""Runs many members side by side, such as the seeds of a run, given the function of one member.

On accelerators all members are in one program, with an axis of members. On a CPU every member runs the same program by
itself, and as many members run at a time as there are cores. This uses all cores for any number of members, and needs
no new program for another number. Every member gets the same bits as if it were alone.
"""

from __future__ import annotations

import collections
import concurrent.futures
import itertools
import math
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from algorithms.runs.on_devices import OnDevices
from algorithms.training import parallel
from algorithms.training.metrics import Sums
from jaxrl_buffers._checks import require_integer
from jaxrl_buffers._saved_leaves import SideBySide
from jaxrl_buffers.types import PyTree

MAX_TURNS = 8
Function = Callable[..., Any]


class Members(SideBySide):
    """The values of members that run by themselves, one entry each. The properties are those of training states."""

    @property
    def agent(self) -> Members:
        """The state of each agent."""
        return Members(tuple(state.agent for state in self.states))

    @property
    def buffer(self) -> Members:
        """The state of each buffer."""
        return Members(tuple(state.buffer for state in self.states))

    @property
    def sums(self) -> Sums:
        """The sums of all members: leaves `[S, ...]`."""
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *(state.sums for state in self.states))


class Way(Protocol):
    """A way to run members side by side."""

    def split(self, values: PyTree) -> Any:
        """Turn values with leaves `[S, ...]` into the form that the programs take."""
        ...

    def shapes(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return the shapes and dtypes of the result for all members, given the function of one member."""
        ...

    def compiled(
        self, function: Function, donate: Sequence[int] = (), num_shared: int = 0, gives_state: bool = False
    ) -> Any:
        """Return the compiled function of all members, given the function of one member.

        Args:
            function: takes first the arguments of each member, and then those that are the same for all.
            donate: the arguments whose memory may be used again.
            num_shared: how many arguments are the same for all.
            gives_state: whether the function returns a training state.
        """
        ...

    def repeated(self, advance: Callable[[int], Callable[..., Any]], count: int, own: PyTree, like: PyTree) -> Any:
        """Return a compiled function that advances the states of all members, in place.

        Args:
            advance: returns, for a number of repetitions, the function `(own, state) -> state` of one member.
            count: how many to make.
            own: the values of all members.
            like: shapes and dtypes of their states.
        """
        ...

    def gathered(self, values: PyTree) -> PyTree:
        """Return the result of a program as NumPy arrays `[S, ...]`."""
        ...

    def apart(self, states: PyTree, size: int) -> Iterable[Any]:
        """Split states into groups of `size` consecutive members; each group has the form that it would have alone."""
        ...

    def joined(self, groups: list[Any], size: int) -> Any:
        """Join the groups that `apart` made into the states of all members."""
        ...


def way_for(num_members: int, cores: int | None = None, devices: int = 1) -> Way:
    """Return the way to run so many members on the default platform.

    Args:
        num_members: `S`.
        cores: how many members run at a time on a CPU; None for as many as there are cores.
        devices: how many devices share each member.
    """
    if cores is not None:
        require_integer("run", "cores", cores, 1)
    is_cpu = jax.default_backend() == "cpu"
    num_groups = math.gcd(num_members, max(jax.device_count() // devices, 1))
    if devices > 1 or (num_groups > 1 and not (is_cpu and jax.process_count() == 1)):
        is_alone = num_members == 1
        mesh = parallel.make_mesh(devices, None if is_alone else num_groups)
        return OnDevices(mesh, Alone() if is_alone else InOneProgram())
    if num_members == 1:
        return Alone()
    return OnCores(min(cores or num_cores(), num_members)) if is_cpu else InOneProgram()


def num_cores() -> int:
    """Return how many cores this process may use; `taskset` and containers may limit them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def shapes_of_all(like: PyTree) -> PyTree:
    """Turn the shapes of members that run by themselves into those of one state with leaves `[S, ...]`."""
    if not isinstance(like, SideBySide):
        return like
    return jax.eval_shape(lambda *states: jax.tree.map(lambda *leaves: jnp.stack(leaves), *states), *like.states)


class Alone:
    """One member, without an axis of members."""

    def split(self, values: PyTree) -> Any:
        """Return the only entry."""
        return jax.tree.map(lambda leaf: leaf[0], values)

    def shapes(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return the shapes of what it gives."""
        return jax.eval_shape(function, *args)

    def compiled(
        self, function: Function, donate: Sequence[int] = (), num_shared: int = 0, gives_state: bool = False
    ) -> Any:
        """Return the function itself, compiled."""
        return jax.jit(function, donate_argnums=donate)

    def repeated(self, advance: Callable[[int], Callable[..., Any]], count: int, own: PyTree, like: PyTree) -> Any:
        """Compile all repetitions at once."""
        program = jax.jit(advance(count), donate_argnums=1).lower(own, like).compile()
        return lambda state: program(own, state)

    def gathered(self, values: PyTree) -> PyTree:
        """Add the axis of members."""
        return jax.tree.map(lambda value: np.asarray(value)[None], values)

    def apart(self, states: PyTree, size: int) -> Iterable[Any]:
        """Return one group with the only member."""
        return [states]

    def joined(self, groups: list[Any], size: int) -> Any:
        """Return the only group."""
        return groups[0]


class InOneProgram:
    """All members along an axis of one program."""

    def split(self, values: PyTree) -> Any:
        """Return values as they are."""
        return values

    def shapes(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return the shapes of what it gives, with an axis of members."""
        return jax.eval_shape(jax.vmap(function), *args)

    def compiled(
        self, function: Function, donate: Sequence[int] = (), num_shared: int = 0, gives_state: bool = False
    ) -> Any:
        """Map the function over the members."""

        def of_all(*args: Any) -> Any:
            axes = (0,) * (len(args) - num_shared) + (None,) * num_shared
            return jax.vmap(function, in_axes=axes)(*args)

        return jax.jit(of_all, donate_argnums=donate)

    def repeated(self, advance: Callable[[int], Callable[..., Any]], count: int, own: PyTree, like: PyTree) -> Any:
        """Compile all repetitions at once."""
        program = jax.jit(jax.vmap(advance(count)), donate_argnums=1).lower(own, like).compile()
        return lambda state: program(own, state)

    def gathered(self, values: PyTree) -> PyTree:
        """Return the result as NumPy arrays, which already have the axis of members."""
        return jax.tree.map(np.asarray, values)

    def apart(self, states: PyTree, size: int) -> Iterable[Any]:
        """Cut the axis of members; a group of one has none."""
        num_members = jax.tree.leaves(states)[0].shape[0]

        def group(begin: int) -> Any:
            place = slice(begin, begin + size) if size > 1 else begin
            return jax.tree.map(lambda leaf: leaf[place], states)

        return map(group, range(0, num_members, size)) if num_members > size else [states]

    def joined(self, groups: list[Any], size: int) -> Any:
        """Put the groups one after the other along the axis of members."""
        join = jnp.concatenate if size > 1 else jnp.stack
        return jax.tree.map(lambda *leaves: join(leaves), *groups) if len(groups) > 1 else groups[0]


class OnCores:
    """Every member by itself, several at a time: threads run the same program.

    Args:
        num_threads: how many at a time, not more than there are members.
    """

    def __init__(self, num_threads: int):
        self._num_threads = num_threads
        self._pool = concurrent.futures.ThreadPoolExecutor(num_threads, "member")

    def split(self, values: PyTree) -> Members:
        """Return the entries apart."""
        leaves, structure = jax.tree.flatten(values)
        return Members(tuple(jax.tree.unflatten(structure, entries) for entries in zip(*leaves, strict=True)))

    def shapes(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return the shapes of what it gives, once for every member."""
        of_one = jax.eval_shape(function, *(arg.states[0] for arg in args))
        return Members((of_one,) * len(args[0].states))

    def compiled(
        self, function: Function, donate: Sequence[int] = (), num_shared: int = 0, gives_state: bool = False
    ) -> Any:
        """Compile the function for the first member, and call it for each."""
        jitted = jax.jit(function, donate_argnums=donate)
        programs: list[Any] = []

        def of_all(*args: Any) -> Members:
            own, shared = args[: len(args) - num_shared], args[len(args) - num_shared :]
            members = [(*parts, *shared) for parts in zip(*(arg.states for arg in own), strict=True)]
            if not programs:  # compiled here once, not in every thread
                programs.append(jitted.lower(*members[0]).compile())
            return Members(tuple(self._pool.map(lambda one: jax.block_until_ready(programs[0](*one)), members)))

        return of_all

    def repeated(self, advance: Callable[[int], Callable[..., Any]], count: int, own: PyTree, like: PyTree) -> Any:
        """Compile a part of the repetitions: members take turns, so that no core waits for the others."""
        num_members = len(like.states)
        turns = num_turns(num_members, self._num_threads, count)
        program = jax.jit(advance(count // turns), donate_argnums=1).lower(own.states[0], like.states[0]).compile()

        def of_all(members: Members) -> Members:
            states, left = list(members.states), [turns] * num_members
            waiting = collections.deque(range(num_members))

            def work(_: int) -> None:
                while waiting:
                    try:
                        number = waiting.popleft()
                    except IndexError:  # another thread was faster
                        return
                    states[number] = jax.block_until_ready(program(own.states[number], states[number]))
                    left[number] -= 1
                    waiting.extend([number] if left[number] else [])

            list(self._pool.map(work, range(self._num_threads)))  # raises what a thread raised
            return Members(tuple(states))

        return of_all

    def gathered(self, values: PyTree) -> PyTree:
        """Return the results of all members, stacked."""
        return jax.tree.map(lambda *entries: np.stack([np.asarray(entry) for entry in entries]), *values.states)

    def apart(self, states: PyTree, size: int) -> Iterable[Any]:
        """Return groups; a group of one is the state itself."""
        groups = [states.states[begin : begin + size] for begin in range(0, len(states.states), size)]
        return [Members(group) if size > 1 else group[0] for group in groups]

    def joined(self, groups: list[Any], size: int) -> Any:
        """Return the members of all groups."""
        states = [group.states if isinstance(group, Members) else (group,) for group in groups]
        return Members(tuple(itertools.chain.from_iterable(states)))


def num_turns(num_members: int, num_threads: int, count: int) -> int:
    """Return into how many parts to cut `count` repetitions so that members which take turns keep all threads busy.

    Example:
        >>> num_turns(4, 2, count=100), num_turns(5, 2, count=100), num_turns(5, 4, count=100)
        (1, 2, 4)
    """
    possible = [turns for turns in range(1, MAX_TURNS + 1) if count % turns == 0]
    return min(possible, key=lambda turns: -(-num_members * turns // num_threads) / turns)
