"""Puts what other tools measured into a cluster: layer times as measurements, rates into links."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Final

from pydantic import ValidationError

from apss_jax.schema.cluster import (
    ClusterProfile,
    LayerMeasurement,
    LayerShape,
    Link,
    Precision,
)
from apss_jax.schema.errors import mistake
from apss_jax.schema.link_measurements import LinkMeasurement
from apss_jax.schema.model import Model
from apss_jax.schema.topology import Topology
from profiler.fit import link_fit
from profiler.imports.imported import Imported, LinkDatum, PartTime, Wanted
from profiler.link_figures import latency_of, rate_of
from profiler.points import key_of

LEAST_OF_PEAK: Final = 0.004  # of the precision's; below, a time is in a smaller unit than it says
MOST_OF_PEAK: Final = 1.1  # of any precision's; above, in a larger one
HEADROOM_TOKENS: Final = 128  # of a micro-batch, below which launching is all of the time


def attached(imported: Imported, wanted: Wanted, source: str) -> ClusterProfile:
    """Returns the cluster with everything imported in it; raises `InputError`.

    Layer times whose rate no device reaches, or that fall far below what any does, are refused:
    the unit, the model or the device is another one.
    """
    cluster = wanted.cluster
    rows, shapes = _rows(imported, wanted)
    measurements, links = _links(imported.links, wanted, source)
    kept = [row for row in cluster.measurements if _point(row) not in {_point(r) for r in rows}]
    notes = [*cluster.notes, f"{source}: imported", *imported.notes]
    return cluster.model_copy(
        update={
            "shapes": {**cluster.shapes, **shapes},
            "measurements": (*kept, *rows),
            "links": {**cluster.links, **links},
            "link_measurements": (*cluster.link_measurements, *measurements),
            "notes": tuple(dict.fromkeys(notes)),
        }
    )


def _rows(
    imported: Imported, wanted: Wanted
) -> tuple[list[LayerMeasurement], dict[str, LayerShape]]:
    if not imported.parts:
        return [], {}
    if wanted.model is None or wanted.model.hidden_size is None or not wanted.model.layers:
        rule = "is needed: the files do not describe the model that was profiled"
        raise mistake("--model", "", rule, "Name it, or give its config.json")
    precision = wanted.precision or imported.precision
    if precision is None:
        rule = "is needed: the files do not say it"
        raise mistake("--precision", "", rule, "Give it, as in --precision fp16")
    shapes = _shapes(wanted.model)
    found = [_row(part, wanted, wanted.model, shapes, precision) for part in imported.parts]
    return found, {name: shape for name, shape in shapes.values()}


def _row(
    part: PartTime,
    wanted: Wanted,
    model: Model,
    shapes: Mapping[str, tuple[str, LayerShape]],
    precision: Precision,
) -> LayerMeasurement:
    length = part.point.seq_len or wanted.seq_len
    if length is None:
        rule = "is needed: the files do not say it"
        raise mistake("--seq-len", "", rule, "Give it, as in --seq-len 2048")
    if part.part == "layer":
        _check_plausible(part, wanted, model, length, precision)
    with _usable(part.point.place):
        return LayerMeasurement(
            shape=shapes[part.part][0],
            device_type=wanted.device_type,
            tensor_parallel=part.point.tensor_parallel,
            micro_batch=part.point.micro_batch,
            seq_len=length,
            precision=precision,
            forward_s=part.forward_s,
            backward_s=part.backward_s,
            tensor_comm_included=part.point.comm_included,
            saved_bytes=part.saved_bytes,
            provenance="imported",
        )


@contextmanager
def _usable(place: str | None = None) -> Iterator[None]:
    """Raises `InputError` for a figure that no profile can hold: infinite, or not above 0."""
    try:
        yield
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"])) or "(figures)"
        rule = str(first["msg"])
        raise mistake(key, first["input"], rule, "Repair the file", file=place) from None


def _shapes(model: Model) -> dict[str, tuple[str, LayerShape]]:
    """Returns the name and the shape of each part of a model."""
    hidden, layer = model.hidden_size, model.layers[0].layer
    vocab = model.embedding.vocab_size if model.embedding is not None else None
    assert hidden is not None  # a model with layers has one
    parts = {
        "embedding": LayerShape(part="embedding", hidden_size=hidden, vocab_size=vocab),
        "layer": LayerShape(part="layer", hidden_size=hidden, layer=layer),
        "head": LayerShape(part="head", hidden_size=hidden, vocab_size=vocab),
    }
    return {part: (f"{model.name} {part}", shape) for part, shape in parts.items()}


def _check_plausible(
    part: PartTime, wanted: Wanted, model: Model, seq_len: int, precision: Precision
) -> None:
    """Raises `InputError` where a layer would be faster than its device, or absurdly slow."""
    tokens = part.point.micro_batch * seq_len
    hidden = model.hidden_size or 0
    weights = model.layers[0].layer.weights(hidden)
    parameters = sum(w.num_parameters for w in weights if not w.is_expert)
    flops = 2 * parameters * tokens / part.point.tensor_parallel
    peaks = wanted.cluster.device_types[wanted.device_type].peak_flops_per_s
    best = max(peaks.values())
    fraction = flops / part.forward_s / best
    least = LEAST_OF_PEAK * peaks.get(precision, best) / best
    if fraction > MOST_OF_PEAK or (fraction < least and tokens > HEADROOM_TOKENS):
        rule = (
            f"would be {fraction:.3g} of the peak of {wanted.device_type} for a layer of "
            f"{model.name}: a unit is wrong, or the model or the device is another"
        )
        remedy = "Correct --model, --device, --seq-len or the file"
        raise mistake("forward_s", part.forward_s, rule, remedy, file=part.point.place)


def _point(row: LayerMeasurement) -> tuple[object, ...]:
    return (row.device_type, key_of(row))


@dataclass
class _Reached:
    """Rates of one link, by what reached them, per device or per node as the link counts."""

    collective: list[tuple[int, float]]  # size of the group, rate
    transfer: list[float]
    latency_s: list[float]


def _links(
    data: Sequence[LinkDatum], wanted: Wanted, source: str
) -> tuple[list[LinkMeasurement], dict[str, Link]]:
    """Returns the samples as measurements, and the links with the figures that they give."""
    topology = Topology.of(wanted.cluster)
    measurements, reached = [], dict[str, _Reached]()
    for datum in data:
        name = wanted.link or _link_of(topology, datum.devices)
        if name not in wanted.cluster.links:
            known = ", ".join(sorted(wanted.cluster.links))
            raise mistake("--link", name, "is no link of the cluster", f"Choose from {known}")
        found = _measurement(datum, name)
        if found.samples:
            measurements.append(found)
            calls = latency_of(found) if found.fit is not None else None
        else:
            calls = None
        one = reached.setdefault(name, _Reached([], [], []))
        link = wanted.cluster.links[name]
        rate = _rate(datum, found) / _senders(topology, datum.devices, link)
        if datum.operation in ("send", "exchange"):
            one.transfer.append(rate)
        else:
            one.collective.append((len(datum.devices), rate))
        one.latency_s += [calls] if calls is not None else []
    links = {n: _updated(wanted.cluster.links[n], r, source) for n, r in reached.items()}
    return measurements, links


def _link_of(topology: Topology, devices: Sequence[int]) -> str:
    group = topology.cluster.nodes[int(topology.group[devices[0]])]
    inside = len({int(topology.domain[d]) for d in devices}) == 1
    return group.intra_link if inside else group.network


def _senders(topology: Topology, devices: Sequence[int], link: Link) -> int:
    """Returns over how many networks of its own a group leaves a domain."""
    domains = [int(topology.domain[d]) for d in devices]
    if len(set(domains)) == 1 or link.shared_by_node:
        return 1
    return min(domains.count(domain) for domain in set(domains))


def _measurement(datum: LinkDatum, link: str) -> LinkMeasurement:
    with _usable():
        return LinkMeasurement(
            operation=datum.operation,
            link=link,
            devices=datum.devices,
            samples=datum.samples,
            fit=link_fit(datum.operation, len(datum.devices), datum.samples),
            provenance="imported",
        )


def _rate(datum: LinkDatum, measurement: LinkMeasurement) -> float:
    return rate_of(measurement) if measurement.samples else datum.bus_bytes_per_s or 0.0


def _updated(link: Link, reached: _Reached, source: str) -> Link:
    """Returns a link with imported rates; what was not imported keeps what it reached before."""
    collective = link.bytes_per_s * link.reached_fraction
    if reached.collective:
        largest = max(size for size, _ in reached.collective)
        collective = median(rate for size, rate in reached.collective if size == largest)
    transfer = link.bytes_per_s * link.transfer_fraction
    if reached.transfer:
        transfer = median(reached.transfer)
    rate = max(collective, transfer)
    return link.model_copy(
        update={
            "bytes_per_s": rate,
            "reached_fraction": collective / rate,
            "transfer_fraction": transfer / rate,
            "latency_s": median(reached.latency_s) if reached.latency_s else link.latency_s,
            "provenance": "imported",
            "source": source,
        }
    )
