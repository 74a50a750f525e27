"""Several processes that train one run together, and how they find each other.

`jax.distributed` connects them. Each gets its own devices, and all of them run the same program. Process 0 writes the
folder of the run. If a process dies, the others end within `HEARTBEAT` seconds and a little more. Starting processes,
and starting them again, is left to launchers such as `srun` and `mpirun`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import warnings
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

import jax
from jax._src import clusters  # JAX has no public name for how it asks launchers

from jaxrl_buffers import _processes as processes
from jaxrl_buffers import _rendezvous as rendezvous
from jaxrl_buffers._checks import nearest_multiples, one_line, require_integer, shown

HEARTBEAT = 10  # seconds after which a silent process counts as dead
PATIENCE = 60  # seconds in which all processes must have been started
LEAVING = 3  # seconds in which all processes must have come to their end


class Cluster(NamedTuple):
    """Where the processes of a run meet. Without an address, JAX asks the launcher."""

    coordinator: str | None = None  # HOST:PORT of process 0
    num_processes: int | None = None
    process_id: int | None = None

    @classmethod
    def of_arguments(cls, arguments: Sequence[str]) -> Cluster | None:
        """Return what the command line of a script asks for; None if it asks for a single process.

        Example:
            >>> Cluster.of_arguments(["--coordinator", "10.0.0.1:4321", "--num-processes=4", "--process-id", "3"])
            Cluster(coordinator='10.0.0.1:4321', num_processes=4, process_id=3)
        """
        given = {name: value_of(arguments, _flag(name)) for name in cls._fields}
        if "--distributed" in arguments:
            for name, value in given.items():
                if value is not None:
                    raise ValueError(
                        f"{_flag(name)}: --distributed asks the launcher for it; leave out one of the two."
                    )
            return cls()
        if not any(value is not None for value in given.values()):
            return None
        cluster = cls(given["coordinator"], *(_number(name, given[name]) for name in cls._fields[1:]))
        cluster.check()
        return cluster

    def check(self) -> None:
        """Refuse an incomplete or impossible description."""
        missing = [_flag(name) for name, value in self._asdict().items() if value is None]
        if len(missing) == len(self):
            return
        if missing:
            raise ValueError(f"{missing[0]}: is missing; --coordinator, --num-processes and --process-id go together.")
        _address(self.coordinator or "")
        require_integer("Cluster", "num_processes", self.num_processes, 1)
        require_integer("Cluster", "process_id", self.process_id, 0, (self.num_processes or 1) - 1)


def connect(cluster: Cluster, patience: float = PATIENCE) -> None:
    """Make this process one of several. This must come before anything that uses devices.

    Importing `algorithms` uses devices already, because it imports gymnax.

    Args:
        cluster: where the processes meet.
        patience: seconds to wait for the others.

    Raises:
        ValueError: if they do not find each other.
    """
    cluster.check()
    cluster, local_devices = _as_launched(patience) if cluster.coordinator is None else (cluster, None)
    coordinator, num_processes, process_id = cluster
    rendezvous.meet(*_address(coordinator or ""), num_processes or 1, process_id or 0, patience)
    # Runs agree on signals between chunks. JAX's own service would take SIGTERM away.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            *cluster,
            local_device_ids=local_devices,
            initialization_timeout=int(patience),
            heartbeat_timeout_seconds=HEARTBEAT,
            shutdown_timeout_seconds=HEARTBEAT,
        )
    except (RuntimeError, ValueError, OSError) as error:
        raise ValueError(f"the processes of the run did not find each other: {one_line(error)}") from None


def _as_launched(patience: float) -> tuple[Cluster, Sequence[int] | None]:
    """Return where the processes meet, as the launcher says it, and which devices of the machine are for this process.

    JAX could ask the launcher itself. But it would abort a process that does not find the others.
    """
    own = os.environ.get("JAX_COORDINATOR_ADDRESS")
    try:
        with warnings.catch_warnings(action="ignore"):  # of a missing package, many lines long
            found = clusters.ClusterEnv.auto_detect_unset_distributed_params(own, None, None, None, None, int(patience))
    except (RuntimeError, ValueError, OSError, KeyError) as error:
        raise ValueError(f"--distributed: the launcher is not understood: {one_line(error)}") from None
    coordinator, num_processes, process_id, local_devices = found
    if coordinator is None or num_processes is None or process_id is None:
        raise ValueError(
            "--distributed: this process was not started by a launcher; looked for SLURM (srun), Open MPI 4 (mpirun), "
            "a TPU pod, and Kubernetes with its Python package. Use one, or give --coordinator, --num-processes and "
            "--process-id."
        )
    return Cluster(coordinator, num_processes, process_id), local_devices


def connect_from_arguments(arguments: Sequence[str]) -> None:
    """Make this process one of several, if the command line of a script asks for it; see `connect`.

    The command line may also give a number of `--devices` for all processes together. Then the CPU of this process
    counts as its share of them.
    """
    cluster = Cluster.of_arguments(arguments)
    if cluster is None:
        return
    connect(cluster)
    number, count = _number("devices", value_of(arguments, "--devices")), processes.job().count
    if number is not None and number % count:
        near = nearest_multiples(number, count)
        raise ValueError(f"--devices: got {number}, expected a multiple of the {count} processes; {near} would do.")
    if number is not None:
        jax.config.update("jax_num_cpu_devices", number // count)


def connect_or_exit(program: str, arguments: Sequence[str]) -> None:
    """Call `connect_from_arguments`. If it fails, print the program and the reason, and end with exit code 2."""
    try:
        connect_from_arguments(arguments)
    except ValueError as error:
        print(f"{program}: {one_line(error)}", file=sys.stderr)
        sys.exit(2)


def leave(code: int) -> NoReturn:
    """End this process with an exit code, when the others end too or do not answer for `LEAVING` seconds."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or nobody reads it
            stream.flush()
    if processes.meet("leave", LEAVING):
        jax.distributed.shutdown()
        sys.exit(code)
    os._exit(code)  # otherwise JAX would wait for the others, and then abort


def value_of(arguments: Sequence[str], flag: str) -> str | None:
    """Return the word that follows a flag on a command line; if the flag is given several times, the last such word."""
    found = None
    for argument, following in itertools.zip_longest(arguments, arguments[1:], fillvalue=""):
        if argument == flag:
            found = following
        elif argument.startswith(f"{flag}="):
            found = argument.removeprefix(f"{flag}=")
    return found


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _number(name: str, word: str | None) -> int | None:
    if word is None or word.isdecimal():
        return word if word is None else int(word)
    raise ValueError(f"{_flag(name)}: got {shown(word)}, expected a whole number.")


def _address(coordinator: str) -> tuple[str, int]:
    """Return host and port."""
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ValueError(f"--coordinator: got {coordinator!r}, expected HOST:PORT of process 0, such as 10.0.0.1:4321.")
    return host.strip("[]"), int(port)
