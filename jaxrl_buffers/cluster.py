"""Several processes that train one run together, and how they find each other.

`jax.distributed` connects them. Each gets its own devices, and all of them run the same program. Process 0 writes the
folder of the run. If a process dies, the others end within `HEARTBEAT` seconds and a little more. Starting processes,
and starting them again, is left to launchers such as `srun` and `mpirun`.
"""

from __future__ import annotations

import os
import sys
from typing import NamedTuple, NoReturn

import jax

from jaxrl_buffers import _processes as processes
from jaxrl_buffers import _rendezvous as rendezvous
from jaxrl_buffers._checks import one_line, require_integer

HEARTBEAT = 10  # seconds after which a silent process counts as dead
PATIENCE = 60  # seconds in which all processes must have been started
LEAVING = 3  # seconds in which all processes must have come to their end


class Cluster(NamedTuple):
    """Where the processes of a run meet. Without an address, JAX asks the launcher."""

    coordinator: str | None = None  # HOST:PORT of process 0
    num_processes: int | None = None
    process_id: int | None = None

    def check(self) -> None:
        """Refuse an incomplete or impossible description."""
        missing = [f"--{name.replace('_', '-')}" for name, value in self._asdict().items() if value is None]
        if len(missing) == len(self):
            return
        if missing:
            raise ValueError(f"{missing[0]}: is missing; --coordinator, --num-processes and --process-id go together.")
        _address(self.coordinator or "")
        require_integer("run", "num_processes", self.num_processes, 1)
        require_integer("run", "process_id", self.process_id, 0, (self.num_processes or 1) - 1)


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
    coordinator, num_processes, process_id = cluster
    if coordinator is not None and num_processes is not None and process_id is not None:
        rendezvous.meet(*_address(coordinator), num_processes, process_id, patience)
    # Runs agree on signals between chunks. JAX's own service would take SIGTERM away.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            *cluster,
            initialization_timeout=int(patience),
            heartbeat_timeout_seconds=HEARTBEAT,
            shutdown_timeout_seconds=HEARTBEAT,
        )
    except (RuntimeError, ValueError, OSError) as error:
        raise ValueError(f"the processes of the run did not find each other: {one_line(error)}") from None


def leave(code: int) -> NoReturn:
    """End this process with an exit code, when the others end too or do not answer for `LEAVING` seconds."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if processes.meet("leave", LEAVING):
        jax.distributed.shutdown()
        sys.exit(code)
    os._exit(code)  # otherwise JAX would wait for the others, and then abort


def _address(coordinator: str) -> tuple[str, int]:
    """Return host and port."""
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ValueError(f"--coordinator: got {coordinator!r}, expected HOST:PORT of process 0, such as 10.0.0.1:4321.")
    return host.strip("[]"), int(port)


def require_same(what: dict[str, object]) -> None:
    """Refuse to go on if processes differ in something that all must have in common.

    Args:
        what: values that JSON can express, by name.
    """
    group = processes.job()
    values = processes.gather(group, what)
    for process, other in enumerate(values):
        names = [name for name in {**values[0], **other} if values[0].get(name) != other.get(name)]
        if names:
            both = " and ".join(repr(one.get(names[0])) for one in (values[0], other))
            raise ValueError(
                f"process {process} differs from process 0 in {', '.join(names)} ({names[0]}: {both}); start all "
                "processes with the same command and the same versions."
            )
