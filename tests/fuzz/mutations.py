"""Valid inputs made wrong: bytes flipped and cut, JSON edited, lines moved, numbers made absurd."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

MutateFn = Callable[[bytes, Random], bytes]
HOW_MANY: Final = (1, 1, 1, 2, 3, 4)
DEEP: Final = 3000  # levels of nesting, beyond what a recursive reader survives
LONG: Final = 20_000
ODD_TEXTS: Final = (
    b"NaN", b"Infinity", b"-1", b"0", b"1e999", b"1e-999", b"9" * 40, b"9" * 5000, b"-0", b"0x10",
    b"1_000", b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\\ud800", b"null", b"true", b"[]", b"{}",
    b'""', b"$(id)", b"`id`", b"${X:-8}", b"../../x", b"/dev/zero", b"'", b'"', b"\\", b"(", b")",
    b"*99999", b"|", b"\r\n", b"\t", b" ", b"=", b",", b"#", b"\xc3\x28", b"\xe2\x80\xae",
    "\u0661\u0662".encode(), "\uff18".encode(),
)  # fmt: skip
ODD_VALUES: Final[tuple[Any, ...]] = (
    None, True, False, 0, -1, 1, 2, 3, 7, 10**9, 10**18, 10**40, -(10**40), 1.5, 1e308, -1e308,
    5e-324, "", "x", "8", "NaN", "1e9", "\x00", "\ud7ff", "a" * LONG, [], {}, [None], [[]],
    {"a": 1}, [0] * 1000,
)  # fmt: skip


def mutated(examples: Sequence[bytes], random: Random) -> bytes:
    """Returns one of the examples with one to four things changed."""
    data = random.choice(examples)
    for _ in range(random.choice(HOW_MANY)):
        data = random.choice(MUTATIONS)(data, random)
    return data


def _place(data: bytes, random: Random) -> int:
    return random.randint(0, len(data))


def _span(data: bytes, random: Random) -> tuple[int, int]:
    start = _place(data, random)
    return start, min(start + random.choice((1, 2, 8, 64, 512)), len(data))


def flip(data: bytes, random: Random) -> bytes:
    """Returns the data with one bit turned over."""
    if not data:
        return b"\x80"
    place = random.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << random.randrange(8)]) + data[place + 1 :]


def cut(data: bytes, random: Random) -> bytes:
    """Returns the beginning or the end of the data."""
    place = _place(data, random)
    return data[:place] if random.random() < 0.7 else data[place:]


def delete(data: bytes, random: Random) -> bytes:
    """Returns the data without some bytes."""
    start, end = _span(data, random)
    return data[:start] + data[end:]


def repeat(data: bytes, random: Random) -> bytes:
    """Returns the data with some bytes a few times over."""
    start, end = _span(data, random)
    return data[:end] + data[start:end] * random.choice((1, 2, 50)) + data[end:]


def insert(data: bytes, random: Random) -> bytes:
    """Returns the data with an odd text in it."""
    place = _place(data, random)
    return data[:place] + random.choice(ODD_TEXTS) + data[place:]


def renumber(data: bytes, random: Random) -> bytes:
    """Returns the data with another number, or an odd text, in place of one."""
    found = list(re.finditer(rb"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?", data))
    if not found:
        return insert(data, random)
    match = random.choice(found)
    value = random.choice((b"0", b"1", b"3", b"-8", b"1e30", b"1000000", *ODD_TEXTS))
    return data[: match.start()] + value + data[match.end() :]


def lines(data: bytes, random: Random) -> bytes:
    """Returns the data with its lines dropped, doubled or in another order."""
    rows = data.split(b"\n")
    chosen = random.randrange(len(rows))
    action = random.randrange(3)
    if action == 0:
        del rows[chosen]
    elif action == 1:
        rows.insert(random.randint(0, len(rows)), rows[chosen])
    else:
        random.shuffle(rows)
    return b"\n".join(rows)


def recode(data: bytes, random: Random) -> bytes:
    """Returns the text in another encoding."""
    text = data.decode("utf-8", errors="replace")
    name = random.choice(("utf-16", "utf-32", "latin-1", "utf-8-sig", "cp037"))
    return text.encode(name, errors="replace")


def nest(data: bytes, random: Random) -> bytes:
    """Returns the data inside, or followed by, many brackets."""
    opening, closing = random.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"(", b")")))
    depth = random.choice((2, 50, DEEP))
    return opening * depth + data + closing * random.choice((depth, 0))


def edit_json(data: bytes, random: Random) -> bytes:
    """Returns JSON with a value replaced, dropped, moved, or under a doubled key."""
    try:
        root = json.loads(data)
    except (ValueError, RecursionError):
        return renumber(data, random)
    places = list(_places(root))
    if not places:
        return json.dumps([root]).encode()
    holder, key = random.choice(places)
    action = random.randrange(4)
    if action == 0:
        holder[key] = random.choice(ODD_VALUES)
    elif action == 1:
        del holder[key]
    elif action == 2:
        other, name = random.choice(places)
        holder[key] = json.loads(json.dumps(other[name]))
    elif isinstance(holder, dict):
        holder[random.choice((key.upper(), f"{key}s", f" {key}", "schema"))] = holder[key]
    text = json.dumps(root)
    doubled = isinstance(key, str) and random.random() < 0.1
    return (text.replace(f'"{key}"', f'"{key}": 1, "{key}"', 1) if doubled else text).encode()


def _places(value: Any) -> Any:
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


MUTATIONS: Final[tuple[MutateFn, ...]] = (
    flip, cut, delete, repeat, insert, renumber, renumber, lines, recode, nest, edit_json,
    edit_json, edit_json,
)  # fmt: skip
