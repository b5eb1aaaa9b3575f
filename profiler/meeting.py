"""Waits for every process of a run before JAX does, whose own wait ends in a stack trace."""

from __future__ import annotations

import socket
import time
from typing import Final

from apss_jax.schema.errors import InputError, mistake

KEY: Final = "--coordinator"
PAUSE_S: Final = 0.2  # between two tries to reach process 0
GREETING: Final = b"apss"
START: Final = b"start"
LONGEST: Final = 64  # bytes of a message
REMEDY: Final = (
    "Start every process with the same --coordinator and --num-processes, and let its port through"
)


def meet(coordinator: str, num_processes: int, process_id: int, timeout_s: float) -> None:
    """Returns once all processes are there; raises `InputError` that says who is missing.

    Process 0 listens where JAX's coordinator will, hears the number of every other, and lets all
    of them go on.
    """
    host, _, port = coordinator.rpartition(":")
    deadline_s = time.monotonic() + timeout_s
    if process_id:
        _report((host.strip("[]"), int(port)), process_id, deadline_s, timeout_s)
    else:
        _gather(int(port), num_processes, deadline_s, timeout_s)


def _gather(port: int, num_processes: int, deadline_s: float, timeout_s: float) -> None:
    missing = set(range(1, num_processes))
    waiting: list[socket.socket] = []
    try:
        with socket.create_server(("", port)) as server:
            while missing:
                server.settimeout(max(deadline_s - time.monotonic(), 0.01))
                other, _ = server.accept()
                waiting.append(other)
                missing.discard(_number_of(other))
        for other in waiting:
            other.sendall(START)
    except TimeoutError:
        names = ", ".join(map(str, sorted(missing)))
        rule = f"waited {timeout_s:.0f} s: of {num_processes} processes {names} did not come"
        raise mistake(KEY, f"port {port}", rule, REMEDY) from None
    except OSError as error:
        raise _unusable(f"port {port}", error) from None
    finally:
        for other in waiting:
            other.close()


def _number_of(other: socket.socket) -> int:
    """Returns the process that has connected, 0 where it is somebody else."""
    other.settimeout(1.0)
    try:
        words = other.recv(LONGEST).split()
    except OSError:
        return 0
    return int(words[1]) if len(words) == 2 and words[0] == GREETING and words[1].isdigit() else 0


def _report(address: tuple[str, int], process_id: int, deadline_s: float, timeout_s: float) -> None:
    reason = "nobody answered"
    while (left_s := deadline_s - time.monotonic()) > 0:
        try:
            with socket.create_connection(address, timeout=left_s) as other:
                other.sendall(GREETING + f" {process_id}".encode())
                if other.recv(LONGEST) == START:
                    return
                reason = "process 0 gave up"
        except TimeoutError:
            break
        except socket.gaierror as error:
            raise _unusable(address[0], error) from None
        except OSError as error:
            reason = error.strerror or str(error)
        time.sleep(PAUSE_S)
    rule = f"could not be reached for {timeout_s:.0f} s: {reason}"
    raise mistake(KEY, "{}:{}".format(*address), rule, REMEDY)


def _unusable(value: str, error: OSError) -> InputError:
    return mistake(KEY, value, error.strerror or str(error), REMEDY)
