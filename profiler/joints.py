"""What joins the nodes of profiles that were measured apart."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from apss_jax.importers.clusters import load_link
from apss_jax.schema.cluster import Bridge, ClusterProfile, Link, LinkFile
from apss_jax.schema.document import read_document
from apss_jax.schema.errors import InputError, mistake

LINK: Final = "--link"
RATE: Final = re.compile(r"([\d.]+)\s*([GM])(bit/s|B/s)(?:,\s*([\d.]+)\s*(us|ms))?", re.IGNORECASE)
LINK_FORMS: Final = (
    "Give a library link, a link file, a name from the files, or a rate as in 100Gbit/s,5us"
)
ASSUMED_LATENCY_S: Final = 20e-6  # of a rate without a latency: as of Ethernet between hosts


@dataclass(frozen=True)
class Joint:
    """The link between the nodes of two files, by their places; None stands for every pair."""

    pair: tuple[int, int] | None
    link: str


def parse_joint(text: str) -> Joint:
    """Returns what a `--link` says: `LINK`, or `1,2=LINK` for the first and the second file."""
    match = re.fullmatch(r"(\d+),(\d+)=(.+)", text)
    if match is None:
        return Joint(None, text)
    first, second = int(match[1]) - 1, int(match[2]) - 1
    if first == second or min(first, second) < 0:
        raise mistake(LINK, text, "must name two different files from 1", "As in 1,2=100Gbit/s")
    return Joint((min(first, second), max(first, second)), match[3])


def joined(
    files: Sequence[str], renamed: Sequence[ClusterProfile], joints: Sequence[Joint]
) -> tuple[dict[str, Link], tuple[Bridge, ...], list[str]]:
    """Returns all links, all bridges, and what was assumed of parts that no joint names."""
    links = {name: link for profile in renamed for name, link in profile.links.items()}
    first = first_numbers([len(profile.nodes) for profile in renamed])
    bridges = [
        bridge.model_copy(update={"groups": tuple(g + first[i] for g in bridge.groups)})
        for i, profile in enumerate(renamed)
        for bridge in profile.bridges
    ]
    notes = []
    for a in range(len(renamed)):
        for b in range(a + 1, len(renamed)):
            said = _joint_of(a, b, joints, len(renamed))
            if said is None:
                pair = f"{files[a]} and {files[b]}"
                notes.append(f"between {pair} the slower of their networks is assumed")
                continue
            name, link = _link_named(said, links)
            links[name] = link
            bridges += [
                Bridge(groups=(first[a] + i, first[b] + j), link=name)
                for i in range(len(renamed[a].nodes))
                for j in range(len(renamed[b].nodes))
            ]
    return links, tuple(bridges), notes


def _joint_of(a: int, b: int, joints: Sequence[Joint], count: int) -> str | None:
    for joint in joints:
        if joint.pair is not None and joint.pair[1] >= count:
            rule = f"names file {joint.pair[1] + 1} of {count}"
            raise mistake(LINK, joint.link, rule, "Number the files from 1")
    exact = [joint.link for joint in joints if joint.pair == (a, b)]
    general = [joint.link for joint in joints if joint.pair is None]
    return next(iter([*exact, *general]), None)


def _link_named(text: str, links: Mapping[str, Link]) -> tuple[str, Link]:
    """Returns a link by name or file, or made of a rate; raises `InputError`."""
    if text in links:
        return text, links[text]
    match = RATE.fullmatch(text.strip())
    if match is not None:
        return text, _link_of_rate(match)
    if text.endswith(".json"):
        found = read_document(LinkFile, text)
        return found.name, found.link
    try:
        return text, load_link(text)
    except InputError:
        rule = "is no link that is known here"
        raise mistake(LINK, text, rule, LINK_FORMS) from None


def _link_of_rate(match: re.Match[str]) -> Link:
    scale = {"G": 1e9, "M": 1e6}[match[2].upper()]
    per_byte = 8 if match[3].lower() == "bit/s" else 1
    latency_s, source = ASSUMED_LATENCY_S, f"given when profiles were merged: {match[0]}"
    if match[4]:
        latency_s = float(match[4]) * {"us": 1e-6, "ms": 1e-3}[match[5].lower()]
    else:
        source += ", latency assumed"
    return Link(
        bytes_per_s=float(match[1]) * scale / per_byte,
        latency_s=latency_s,
        source=source,
    )


def first_numbers(counts: Sequence[int]) -> list[int]:
    """Returns the number of the first of each part's members in the whole."""
    return [sum(counts[:i]) for i in range(len(counts))]
