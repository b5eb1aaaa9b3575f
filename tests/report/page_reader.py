"""A page read as a person reads it: numbers with their units, lengths of bars, places of dots."""

import re
from typing import Final
from xml.etree import ElementTree

UNITS: Final = {
    "s": 1.0, "ms": 1e-3, "us": 1e-6, "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12, "%": 0.01,
}  # fmt: skip
GIB: Final = 2**30
DRAWING: Final = re.compile(r'<svg class="([\w ]+)".*?</svg>', re.DOTALL)


def number_of(text: str, kind: str) -> float | None:
    """Returns the number that a text says, in SI units; None for a dash."""
    if text == "-":
        return None
    digits, _, unit = text.lstrip("<>").partition(" ")
    return float(digits) * (GIB if kind == "gib" else UNITS.get(unit, 1.0))


def slack_of(text: str, kind: str) -> float:
    """Returns by how much the number of a text may be off: half of its last digit."""
    digits, _, unit = text.lstrip("<>").partition(" ")
    last = 10.0 ** -len(digits.partition(".")[2])
    whole = len(digits) - len(digits.rstrip("0")) if "." not in digits and len(digits) > 3 else 0
    scale = GIB if kind == "gib" else UNITS.get(unit, 1.0)
    return 0.5001 * last * 10.0**whole * scale


class Drawing:
    """One SVG of a page."""

    def __init__(self, source: str) -> None:
        self.root = ElementTree.fromstring(source)

    @property
    def label(self) -> str:
        """Returns what is read out in its place."""
        return self.root.get("aria-label", "")

    def lengths(self, prefix: str) -> dict[str, float]:
        """Returns the widths of the rectangles whose class begins so, by the rest of it."""
        found = [(r.get("class", ""), float(r.get("width", 0))) for r in self.root.iter("rect")]
        return {kind[len(prefix) :]: width for kind, width in found if kind.startswith(prefix)}

    def spans(self, word: str) -> list[tuple[float, float, float]]:
        """Returns left, right and top of the rectangles with a word in their class, in order."""
        return [
            (float(r.get("x", 0)), float(r.get("x", 0)) + float(r.get("width", 0)),
             float(r.get("y", 0)))
            for r in self.root.iter("rect") if word in r.get("class", "").split()
        ]  # fmt: skip

    def dots(self, word: str) -> list[tuple[float, float]]:
        """Returns the places of the circles with a word in their class, in order."""
        return [
            (float(c.get("cx", 0)), float(c.get("cy", 0)))
            for c in self.root.iter("circle")
            if word in c.get("class", "").split()
        ]


def drawings(page: str, kind: str) -> list[Drawing]:
    """Returns the SVGs of a class, in the order of the page."""
    return [Drawing(m[0]) for m in DRAWING.finditer(page) if m[1] == kind]
