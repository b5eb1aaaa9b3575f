"""Mutated inputs over all readers: what they answer, and what no input may make them do.

    PYTHONPATH=.:tests python tests/fuzz/fuzzing.py --inputs 100000

Each input is made from the name of the reader and a number, so that any can be made again. It is
read in two processes whose hashes differ. A finding is an exception that is no message, more than
2 s, more than 1 GB, a file written, a process started, or another answer the second time.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, Final

from mutations import mutated
from readers import READERS, Reader

from apss_jax.schema.errors import InputError

LONGEST_S: Final = 2.0  # of processor time
MOST_BYTES: Final = 10**9
HASHES: Final = ("0", "1")  # of the two processes
FORBIDDEN: Final = {"os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.link",
                    "subprocess.Popen", "os.system", "os.exec", "os.fork", "os.posix_spawn",
                    "socket.connect", "shutil.rmtree"}  # fmt: skip


class TooLongError(Exception):
    """A reader took longer than it may."""


@dataclass(frozen=True)
class Outcome:
    """What became of an input: how it ended, and a digest of the answer or the message."""

    kind: str  # "read", "refused", or what is wrong
    digest: str
    text: str = ""  # of a finding


@dataclass
class _Watch:
    """What readers did that they may not, while it is on."""

    is_on: bool = False
    seen: str = ""

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        """Notes a forbidden event; Python calls it for every one."""
        if not self.is_on:
            return
        if event == "open":
            _, mode, flags = args
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if writes or (isinstance(mode, str) and set(mode) & set("wax+")):
                self.seen = f"opened {args[0]!r} to write"
        elif event in FORBIDDEN:
            self.seen = f"{event} {args!r}"


WATCH: Final = _Watch()


@cache
def examples_of(reader: Reader) -> tuple[bytes, ...]:
    """Returns the inputs that a reader takes, read once."""
    return reader.examples()


def input_of(reader: Reader, number: int) -> bytes:
    """Returns an input of a reader by its number."""
    return mutated(examples_of(reader), Random(f"{reader.name}/{reader.file}/{number}"))


def outcome_of(reader: Reader, data: bytes, folder: Path) -> Outcome:
    """Returns what a reader makes of an input, in a folder of its own."""
    path = folder / reader.file
    path.write_bytes(data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    WATCH.seen = ""
    try:
        with _watched():
            answer = repr(reader.read(Path(reader.file)))
        kind = "read"
    except InputError as error:
        kind, answer = "refused", str(error)
    except BaseException as error:
        kind, answer = f"failed: {type(error).__name__}", traceback.format_exc(limit=-6)
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    if WATCH.seen:
        kind, answer = "wrote or started something", WATCH.seen
    elif grown > MOST_BYTES:
        kind, answer = "took too much memory", f"{grown} bytes"
    elif kind == "refused" and not answer.strip():
        kind = "said nothing"
    finding = answer if kind not in ("read", "refused") else ""
    return Outcome(kind, sha256(f"{kind}{answer}".encode(errors="replace")).hexdigest(), finding)


@contextmanager
def _watched() -> Iterator[None]:
    """Watches what is done, and ends what lasts too long."""
    old = signal.signal(signal.SIGPROF, _too_long)
    signal.setitimer(signal.ITIMER_PROF, LONGEST_S)
    WATCH.is_on = True
    try:
        yield
    finally:
        WATCH.is_on = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, old)


def _too_long(number: int, frame: FrameType | None) -> None:
    raise TooLongError(f"took more than {LONGEST_S} s")


@contextmanager
def own_folder(reader: Reader) -> Iterator[Path]:
    """Makes a folder the working one for a while, with what a reader needs, and removes it."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "model"  # a config.json is named after its folder
        folder.mkdir()
        reader.prepare(folder)
        os.chdir(folder)
        try:
            yield folder
        finally:
            os.chdir(before)


def outcomes(reader: Reader, numbers: range) -> list[Outcome]:
    """Returns what becomes of the inputs with these numbers; a valid input warms the reader up."""
    with own_folder(reader) as folder:
        outcome_of(reader, examples_of(reader)[0], folder)
        return [outcome_of(reader, input_of(reader, n), folder) for n in numbers]


def worker(index: int, first: int, last: int) -> None:
    """Writes the outcomes of a part of one reader's inputs, a line each."""
    sys.addaudithook(WATCH)
    for number, outcome in zip(
        range(first, last), outcomes(READERS[index], range(first, last)), strict=True
    ):
        sys.stdout.write(json.dumps([number, outcome.kind, outcome.digest, outcome.text]) + "\n")


def rows_of(index: int, first: int, last: int, hashes: str) -> dict[int, list[str]]:
    """Returns the outcomes of a worker process by the input's number."""
    words = [sys.executable, __file__, "--worker", str(index), str(first), str(last)]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONHASHSEED": hashes},
    )  # fmt: skip
    rows = {row[0]: row[1:] for row in map(json.loads, done.stdout.splitlines())}
    if done.returncode:
        rows[-1] = ["ended", str(done.returncode), done.stderr[-3000:]]
    return rows


def compared(index: int, first: int, last: int) -> tuple[Counter[str], list[str]]:
    """Returns how inputs of a reader ended, and the findings in words."""
    one, two = (rows_of(index, first, last, hashes) for hashes in HASHES)
    name = READERS[index].name
    counts = Counter(kind for kind, *_ in one.values())
    found = [f"{name} {n}: {kind}\n{text}" for n, (kind, _, text) in one.items() if text]
    nothing = ["nothing", "", ""]
    for n, (kind, digest, _) in one.items():
        again, other, text = two.get(n, nothing)
        if digest != other:
            found.append(f"{name} {n}: {kind}, and another answer the second time: {again}\n{text}")
    return counts, found


def main() -> int:
    """Reads so many inputs in all and prints the counts; 1 where there are findings."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--reader", help="only this one")
    parser.add_argument("--worker", type=int, nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        worker(*given.worker)
        return 0
    chosen = [i for i, r in enumerate(READERS) if given.reader in (None, r.name)]
    each = -(-given.inputs // len(chosen))
    findings: list[str] = []
    for index in chosen:
        counts, found = compared(index, 0, each)
        said = ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items()))
        sys.stdout.write(f"{READERS[index].name}: {said}; findings {len(found)}\n")
        sys.stdout.flush()
        findings += found
    sys.stdout.write("".join(f"\n{text}\n" for text in findings))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
