"""Megatron's pipeline layout string, both ways: `Et*6|t*8|t*9|t*9L`.

Symbols are `E` (embedding), `t` (a decoder layer), `m` (a layer of multi-token prediction) and `L`
(the loss, with the head); `|` ends a virtual stage, `x*n` repeats a symbol, `(...)*n` a group, and
commas mean nothing. Virtual stage i runs on pipeline rank i % P, as its chunk i // P.

Source: Megatron-LM, megatron/core/transformer/pipeline_parallel_layer_layout.py (core 0.16).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

SYMBOLS: Final = "EtmL"
MAX_SYMBOLS: Final = 100_000  # of an unrolled string: ten times the layers of any model
GROUP: Final = re.compile(r"\(([^()]*)\)\*(\d{1,6})|\(([^()]*)\)")
REPEAT: Final = re.compile(rf"([{SYMBOLS}|])\*(\d{{1,6}})")


class LayoutTextError(ValueError):
    """A layout string that Megatron would not read, with the reason."""


def layout_text(stages: Sequence[str]) -> str:
    """Returns the layout string of stages given as symbols, `["Ettt", "tttL"]` as `Et*3|t*3L`."""
    return "".join(_folded(["".join(_runs(stage)) for stage in stages]))


def _folded(stages: Sequence[str]) -> Iterator[str]:
    """Yields the stages but the last each with its bar, three or more equal ones as a group."""
    for stage, run in groupby(stages[:-1]):
        times = len(list(run))
        yield f"({stage}|)*{times}," if times > 2 else f"{stage}|" * times
    yield stages[-1]


def _runs(stage: str) -> Iterator[str]:
    for symbol, run in groupby(stage):
        times = len(list(run))
        yield symbol if times == 1 else f"{symbol}*{times}"


def layout_stages(text: str) -> list[str]:
    """Returns the symbols of every virtual stage; raises `LayoutTextError`."""
    plain = re.sub(r"[\s,]", "", text)
    unrolled = _unrolled(_without_groups(plain))
    wrong = sorted(set(unrolled) - set(SYMBOLS) - {"|"})
    if wrong:
        raise LayoutTextError(
            f"holds {''.join(wrong)!r}; a layout is made of E, t, m, L, |, *n and (...)*n"
        )
    return unrolled.split("|")


def _without_groups(text: str) -> str:
    def group(match: re.Match[str]) -> str:
        inner, times = (match[1], int(match[2])) if match[2] else (match[3], 1)
        return _bounded(_unrolled(inner), times)

    found = GROUP.sub(group, text)
    if "(" in found or ")" in found:
        raise LayoutTextError("has parentheses that do not match, or a group inside a group")
    return found


def _unrolled(text: str) -> str:
    return REPEAT.sub(lambda match: _bounded(match[1], int(match[2])), text)


def _bounded(text: str, times: int) -> str:
    if len(text) * times > MAX_SYMBOLS:
        raise LayoutTextError(f"repeats more than {MAX_SYMBOLS} symbols")
    return text * times


def layout_problems(
    stages: Sequence[str], *, num_layers: int, pipeline_parallel: int, num_mtp: int = 0
) -> list[str]:
    """Returns what Megatron's own check would refuse of a layout, in words."""
    flat = "".join(stages)
    found = []
    if len(stages) % max(pipeline_parallel, 1):
        found.append(f"{len(stages)} stages cannot be divided by pipeline {pipeline_parallel}")
    if not flat.startswith("E") or flat.count("E") != 1:
        found.append("the first symbol must be E, and the only E")
    if not flat.endswith("L") or flat.count("L") != 1:
        found.append("the last symbol must be L, and the only L")
    if flat.count("t") != num_layers:
        found.append(f"it has {flat.count('t')} layers t, but --num-layers is {num_layers}")
    return found + _mtp_problems(stages, num_mtp)


def _mtp_problems(stages: Sequence[str], num_mtp: int) -> list[str]:
    flat = "".join(stages)
    found = []
    if flat.count("m") != num_mtp:
        found.append(f"it has {flat.count('m')} m, but --mtp-num-layers is {num_mtp}")
    if "m" in flat and "t" in flat[flat.index("m") :]:
        found.append("layers t must come before every m")
    if sum("m" in stage for stage in stages) > 1:
        found.append("all m must stand in one stage")
    return found
