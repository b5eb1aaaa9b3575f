"""Processes that wait for each other: they go on together, or each says who is missing."""

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from workers import free_port

from apss_jax.schema.errors import InputError
from profiler.meeting import meet

SHORT_S = 1.0
LONG_S = 60.0


def alone(process_id: int, coordinator: str) -> str:
    """Returns what a process says that nobody joins."""
    with pytest.raises(InputError) as caught:
        meet(coordinator, 3, process_id, SHORT_S)
    return str(caught.value)


def test_processes_go_on_together() -> None:
    """Three processes, the first of them last, all return."""
    coordinator = f"127.0.0.1:{free_port()}"
    with ThreadPoolExecutor(3) as pool:
        ways = [pool.submit(meet, coordinator, 3, number, LONG_S) for number in (2, 1, 0)]
        assert [way.result(LONG_S) for way in ways] == [None] * 3


def test_the_first_says_who_is_missing() -> None:
    """Of three processes only number 2 comes: number 1 is named, and the time."""
    coordinator = f"127.0.0.1:{free_port()}"
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(alone, 2, coordinator)
        said = alone(0, coordinator)
        assert "waited 1 s: of 3 processes 1 did not come" in said
        assert "could not be reached for 1 s" in other.result(LONG_S)


def test_nobody_is_there() -> None:
    """Another process names the address that it tried, and the way out."""
    port = free_port()
    said = alone(1, f"127.0.0.1:{port}")
    assert f"127.0.0.1:{port}" in said and "could not be reached for 1 s" in said
    assert "Start every process" in said


def test_a_stranger_counts_for_nothing() -> None:
    """Who connects without a process's number does not make up for a process."""
    port = free_port()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(alone, 0, f"127.0.0.1:{port}")
        for _ in range(200):
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=1) as other:
                    other.sendall(b"GET / HTTP/1.1\r\n\r\n")
                break
            except OSError:
                continue
        assert "1, 2 did not come" in first.result(LONG_S)


def test_a_port_in_use_is_told() -> None:
    """Process 0 cannot listen where somebody else does."""
    with socket.create_server(("", 0)) as taken:
        said = alone(0, f"127.0.0.1:{taken.getsockname()[1]}")
    assert "in use" in said


def test_a_host_without_an_address_is_told() -> None:
    """A name that means nothing is refused at once."""
    assert "no-such-host.invalid" in alone(1, "no-such-host.invalid:1234")
