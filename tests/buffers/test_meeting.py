"""Processes meet, and agree: here they are threads, for each of which a process would take seconds to start."""

from __future__ import annotations

import concurrent.futures
import re
import socket
import types

import pytest
from support.processes import free_port, in_all

from jaxrl_buffers import _processes as processes
from jaxrl_buffers import _rendezvous as rendezvous
from jaxrl_buffers import cluster
from jaxrl_buffers.cluster import Cluster


def test_values_are_gathered_in_order_and_forgotten():
    def talk(one):
        return [processes.gather(one, [one.index, number]) for number in range(20)]

    results, store = in_all(talk)
    assert results == [[[[index, number] for index in range(3)] for number in range(20)]] * 3
    assert len(store.values) <= 1  # the last one, which others may still read


def test_the_first_process_acts_for_all():
    acted = []

    def act(one):
        return processes.on_first(one, lambda: acted.append(one.index) or {"a": 1})

    assert in_all(act)[0] == [{"a": 1}] * 3
    assert acted == [0]


def test_an_error_of_the_first_process_is_one_of_all():
    def act(one):
        return processes.on_first(one, lambda: int("x"))

    first, *others = in_all(act)[0]
    assert str(first).startswith("invalid literal")
    assert processes.is_shared(first)
    assert {(type(error), error.kind, str(error)) for error in others} == {
        (processes.Elsewhere, "ValueError", f"process 0: {first}")
    }


def test_an_error_of_one_process_is_one_of_all():
    def act(one):
        return processes.all_or_none(one, lambda: 1 / (one.index - 1))

    first, second, third = in_all(act)[0]
    assert isinstance(second, ZeroDivisionError)
    assert str(first) == str(third) == f"process 1: {second}"
    assert all(map(processes.is_shared, (first, second, third)))
    assert not processes.is_shared(ValueError("mine"))


def test_what_the_first_process_says_need_not_be_said_again():
    assert in_all(lambda one: processes.is_said(one, "same" if one.index < 2 else "other", 20))[0] == [
        False,
        True,
        False,
    ]
    assert in_all(lambda one: one.index > 0 and processes.is_said(one, "mine", 0.1))[0] == [False] * 3
    assert not processes.is_said(processes.job(), "alone", 0)


def test_alone_nobody_is_asked():
    one = processes.job()
    assert (one.index, one.count) == (0, 1)
    assert processes.gather(one, {1}) == [{1}]
    assert processes.on_first(one, lambda: {1}) == {1}
    with pytest.raises(ZeroDivisionError) as caught:
        processes.all_or_none(one, lambda: 1 / 0)
    assert not processes.is_shared(caught.value)


def meet(*members, patience=20.0, port=None):
    """Let processes meet, each given by its number, all that it believes there are, and its versions."""
    port = port or free_port()

    def of_member(member):
        number, count, *versions = member
        own = {"num_processes": count, "versions": versions[0] if versions else {"jax": "1"}}
        until = rendezvous.time.monotonic() + patience
        try:
            if number == 0:
                return rendezvous._receive(port, own, until, patience)
            return rendezvous._report("127.0.0.1", port, own | {"process_id": number}, until, patience)
        except ValueError as error:
            return str(error)

    with concurrent.futures.ThreadPoolExecutor(len(members)) as pool:
        return list(pool.map(of_member, members))


def test_all_processes_meet_and_the_port_is_free_again():
    port = free_port()
    assert meet((2, 3), (1, 3), (0, 3), port=port) == [None] * 3
    assert meet((0, 1), port=port) == [None]
    rendezvous.meet("127.0.0.1", port, 1, 0, 1.0)


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        (((0, 2), (1, 3)), "process 1 was started with --num-processes 3, and process 0 with 2."),
        (((0, 3), (1, 3), (1, 3)), "there are two processes with --process-id 1; number them from 0 to 2."),
        (
            ((0, 2), (1, 2, {"jax": "2"})),
            "process 1 has jax 2, and process 0 has jax 1; install the same version.",
        ),
    ],
)
def test_processes_that_do_not_belong_together(members, problem):
    assert meet(*members) == [problem] * len(members)


def test_a_process_that_does_not_come():
    missing = "process 2 did not come to process 0 within 0.5 seconds; start all of them."
    assert meet((0, 3), (1, 3), patience=0.5) == [missing] * 2


def test_nobody_is_there():
    [problem] = meet((1, 2), patience=0.3)
    assert problem.startswith("process 1 found nobody at 127.0.0.1:")
    assert problem.endswith("start process 0 there within 0.3 seconds, or correct --coordinator.")
    with pytest.raises(ValueError, match=r"process 1 found nobody at no\.such\.host\.invalid:1 "):
        rendezvous.meet("no.such.host.invalid", 1, 2, 1, 0.3)


def test_somebody_else_is_there(monkeypatch):
    monkeypatch.setattr(rendezvous, "READING", 0.2)
    with socket.create_server(("", 0), family=socket.AF_INET) as server:
        port = server.getsockname()[1]
        taken, unanswered = meet((0, 2), patience=0.2, port=port) + meet((1, 2), patience=0.2, port=port)
    assert (
        taken
        == f"process 0 cannot listen on port {port} (Address already in use); choose another one in --coordinator."
    )
    assert unanswered.startswith(
        f"process 1 got no answer at 127.0.0.1:{port}; is --coordinator the address of process 0"
    )


def test_strangers_do_not_disturb(monkeypatch):
    """Somebody connects, sends something else, and goes."""
    port = free_port()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        first = pool.submit(meet, (0, 2), port=port)
        stranger = rendezvous._connected("127.0.0.1", port, 9, rendezvous.time.monotonic() + 20, 20)
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        stranger.close()
        assert meet((1, 2), port=port) == [None]
        assert first.result() == [None]


def test_the_command_line_is_read():
    assert Cluster.of_arguments(["ddqn", "--seed", "1"]) is None
    assert Cluster.of_arguments(["--distributed"]) == Cluster()
    words = ["--coordinator=h:1", "--num-processes", "2", "--process-id", "0", "--process-id=1"]
    assert Cluster.of_arguments(words) == Cluster("h:1", 2, 1)


@pytest.mark.parametrize(("number", "near"), [(3, "2 or 4"), (1, "2")])
def test_devices_that_the_processes_cannot_share(number, near, monkeypatch):
    monkeypatch.setattr(cluster, "connect", lambda cluster: None)
    monkeypatch.setattr(processes, "job", lambda: types.SimpleNamespace(index=0, count=2))
    words = f"--coordinator h:1 --num-processes 2 --process-id 0 --devices {number}"
    expected = f"--devices: got {number}, expected a multiple of the 2 processes; {near} would do."
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
        cluster.connect_from_arguments(words.split())
