"""A first meeting of all processes at the coordinator's port, before JAX uses it.

JAX aborts a process that waits in vain for the others. Here every process gets an error that says who is missing or
different. Each process sends one line of JSON to process 0. When all have come, process 0 answers each with one line.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import socket
import time
from typing import Any

from jaxrl_buffers._checks import one_line

PACKAGES = ("jaxrl-buffers", "jax", "jaxlib", "flax", "optax", "numpy", "gymnax")
PAUSE = 0.1  # seconds between two attempts
READING = 5  # seconds in which a process that has connected must have sent its line
MAX_BYTES = 2**16  # of a line


def meet(host: str, port: int, num_processes: int, process_id: int, patience: float) -> None:
    """Wait until all processes are there.

    Args:
        host: of process 0.
        port: of process 0, free after this.
        num_processes: all of them.
        process_id: which one this is.
        patience: seconds to wait for the others.

    Raises:
        ValueError: if they do not come, or if they do not belong together.
    """
    until = time.monotonic() + patience
    own = {"num_processes": num_processes, "versions": _versions()}
    if process_id == 0:
        _receive(port, own, until, patience)
    else:
        _report(host, port, own | {"process_id": process_id}, until, patience)


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {"Python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def _receive(port: int, own: dict[str, Any], until: float, patience: float) -> None:
    """Let all other processes connect, and answer them."""
    waiting = set(range(1, own["num_processes"]))
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(_listening(port))
        others, problem = [], None
        while waiting and problem is None:
            server.settimeout(max(until - time.monotonic(), PAUSE))
            try:
                other = stack.enter_context(server.accept()[0])
            except TimeoutError:
                names = ", ".join(map(str, sorted(waiting)))
                problem = f"process {names} did not come to process 0 within {patience:g} seconds; start all of them."
                break
            with contextlib.suppress(ValueError, OSError):  # some other program, which does not send a line of JSON
                line = _read(other, READING)
                others.append(other)
                problem = _problem(own, line, waiting)
                waiting.discard(line["process_id"])
        for other in others:
            with contextlib.suppress(OSError):
                _write(other, {"problem": problem})
                _read_end(other)
    if problem is not None:
        raise ValueError(problem)


def _problem(own: dict[str, Any], other: dict[str, Any], waiting: set[int]) -> str | None:
    """Return why a process does not belong to this one, if it does not."""
    number, count = other["process_id"], other["num_processes"]
    if count != own["num_processes"]:
        return f"process {number} was started with --num-processes {count}, and process 0 with {own['num_processes']}."
    for name in own["versions"]:
        if (here := own["versions"][name]) != (there := other["versions"].get(name)):
            return f"process {number} has {name} {there}, and process 0 has {name} {here}; install the same version."
    if number not in waiting:
        return f"there are two processes with --process-id {number}; number them from 0 to {count - 1}."
    return None


def _report(host: str, port: int, own: dict[str, Any], until: float, patience: float) -> None:
    """Connect to process 0, and wait for its answer."""
    where = f"{host}:{port}"
    with _connected(host, port, own["process_id"], until, patience) as server:
        try:
            _write(server, own)
            answer = _read(server, max(until - time.monotonic(), 0) + READING)["problem"]
        except (ValueError, OSError, KeyError, TypeError):
            raise ValueError(
                f"process {own['process_id']} got no answer at {where}; is --coordinator the address of process 0, and "
                "are all processes of one version?"
            ) from None
    if answer is not None:
        raise ValueError(answer)


def _listening(port: int) -> socket.socket:
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    try:
        return socket.create_server(("", port), family=family, dualstack_ipv6=family == socket.AF_INET6)
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise ValueError(
            f"process 0 cannot listen on port {port} ({why}); choose another one in --coordinator."
        ) from None


def _connected(host: str, port: int, process_id: int, until: float, patience: float) -> socket.socket:
    while True:
        try:
            return socket.create_connection((host, port), timeout=max(until - time.monotonic(), 1))
        except OSError as error:  # also for a name that is not known yet, as that of a pod that is being started
            if time.monotonic() >= until:
                raise ValueError(
                    f"process {process_id} found nobody at {host}:{port} ({one_line(error)}); start process 0 there "
                    f"within {patience:g} seconds, or correct --coordinator."
                ) from None
        time.sleep(PAUSE)


def _write(connection: socket.socket, value: dict[str, Any]) -> None:
    connection.sendall(json.dumps(value).encode() + b"\n")


def _read(connection: socket.socket, seconds: float) -> dict[str, Any]:
    """Return what the other side has sent: one line."""
    connection.settimeout(seconds)
    text = b""
    while not text.endswith(b"\n"):
        part = connection.recv(MAX_BYTES)
        text += part
        if not part or len(text) > MAX_BYTES:
            raise ValueError(f"got {text!r} instead of a line")
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"got {value!r}")
    return value


def _read_end(connection: socket.socket) -> None:
    """Wait until the other side has closed the connection, so that the port is free at once on this side."""
    connection.settimeout(READING)
    while connection.recv(MAX_BYTES):
        pass
