"""The command `python -m profiler`: measures, and shows, merges and imports what was measured."""

from __future__ import annotations

import os
import re
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, get_args

import typer

from apss_jax.schema.errors import mistake
from profiler import options
from profiler.answers import ANSWERED, INTERRUPTED, Answer, note, run
from profiler.commands import import_command, merge_command

if TYPE_CHECKING:
    from rich.console import Console

    from apss_jax.schema.cluster import ClusterProfile
    from profiler.session import Bench, Request

LEAST_MINUTES: Final = 0.05
GPU_MOST_TOKENS: Final = 65_536  # of a micro-batch; more does not fit beside a layer's activations
CPU_MOST_TOKENS: Final = 2_048

app: Final = typer.Typer(add_completion=False, rich_markup_mode=None)
app.command("merge")(merge_command)
app.command("import")(import_command)


@app.callback(invoke_without_command=True)
def measure_command(
    context: typer.Context,
    *,
    minutes: options.Minutes = options.MINUTES,
    model: options.Models = None,
    out: options.Out = options.OUT,
    force: options.Force = False,
    resume: options.Resume = False,
    precision: options.Precisions = None,
    seq_len: options.SeqLens = None,
    micro_batch: options.MicroBatches = None,
    tp: options.TensorDegrees = None,
    recompute: options.Recomputes = None,
    peaks: options.Peaks = True,
    cpu_devices: options.CpuDevices = options.CPU_DEVICES,
    coordinator: options.Coordinator = None,
    num_processes: options.NumProcesses = None,
    process_id: options.ProcessId = None,
) -> Answer | None:
    """Measure the devices and links at hand, and write them as a cluster profile.

    A search then takes the file as --cluster. Exit codes: 0 answered, 2 the input is wrong, 130
    interrupted; what was measured until then is in the file.
    """
    if context.invoked_subcommand is not None:
        return None
    given = {
        "precision": _words("--precision", precision, _precisions()),
        "recompute": _words("--recompute", recompute, ("none", "full", "selective")),
        "seq_len": _numbers("--seq-len", seq_len),
        "micro_batch": _numbers("--micro-batch", micro_batch),
        "tp": _numbers("--tp", tp),
    }
    path, old = _output(out, force=force, resume=resume)
    time_min = _minutes(minutes)
    forced = _numbers("--cpu-devices", cpu_devices)
    flags = {
        "coordinator": coordinator,
        "num_processes": _number("--num-processes", num_processes),
        "process_id": _number("--process-id", process_id, least=0),
    }
    from profiler.budget import Budget

    budget = Budget.of_minutes(time_min)
    bench = _bench(forced[0], given, flags, budget, peaks=peaks)
    request = _request(path, model or [], given, old, bench)
    return measured(request, bench)


def measured(request: Request, bench: Bench) -> Answer:
    """Returns the answer of a run; an interrupt ends it early and keeps what there is."""
    from profiler.interrupts import heeded
    from profiler.progress import Bar
    from profiler.session import Session

    bar = Bar.on_stderr()
    session, code = Session(request, bench), ANSWERED
    try:
        with heeded(bar) as session.progress:
            session.run()
    except KeyboardInterrupt:
        code = INTERRUPTED
        note(f"Interrupted: {request.out} has what was measured; go on with --resume")
    finally:
        bar.end()
    profile = session.profile
    if bench.context.process_index != 0:  # the first one speaks for all
        return Answer(profile.to_json(), lambda console: None, code)
    note(f"Wrote {request.out}")
    return Answer(profile.to_json(), partial(_show, profile), code)


@app.command("show")
def show_command(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A cluster profile.")],
    plots: options.Plots = None,
    as_json: options.AsJson = False,
) -> Answer:
    """Show a profile: tables, pictures, and what a person should be warned of."""
    from apss_jax.schema.cluster import ClusterProfile
    from apss_jax.schema.document import read_document
    from profiler.findings import warnings_of

    profile = read_document(ClusterProfile, file)
    if plots is not None:
        from profiler.plots import draw_profile

        for picture in draw_profile(profile, Path(plots)):
            note(f"Wrote {picture}")
    document = {"schema": "apss.profile_warnings/1", "warnings": warnings_of(profile)}
    return Answer(document, partial(_show, profile), as_json=as_json)


@app.command("mock")
def mock_command(
    cluster: Annotated[str, typer.Argument(metavar="C", help="As --cluster of a search.")],
    model: Annotated[str, typer.Option(metavar="M", help="Model to imitate layers of.")],
    out: options.Out = options.OUT,
    force: options.Force = False,
) -> Answer:
    """Write a profile as if a cluster had been measured; every figure is marked as mocked."""
    from apss_jax.importers.clusters import load_cluster
    from apss_jax.importers.load import load_model
    from apss_jax.schema.document import write_document
    from profiler.mocks import mocked_profile

    path, _ = _output(out, force=force, resume=False)
    profile = mocked_profile(load_cluster(cluster), load_model(model))
    write_document(profile, path)
    note(f"Wrote {path}")
    return Answer(profile.to_json(), partial(_show, profile))


def main() -> NoReturn:
    """Runs the command and ends the process."""
    sys.exit(run(app))


def _bench(
    cpu_devices: int, given: dict[str, Any], flags: dict[str, Any], budget: Any, *, peaks: bool
) -> Bench:
    from profiler.bench import (
        bench_at_hand,
        prepare_environment,
    )
    from profiler.hosts import find_launch

    launch = find_launch(os.environ, **flags)
    # Several processes have one device each; a single one imitates several on a CPU.
    prepare_environment(1 if launch is not None else cpu_devices)
    from profiler.links import measure_links

    asked = given["precision"]
    return bench_at_hand(
        budget=budget,
        precision=asked[0] if asked else None,
        launch=launch,
        measure_links=measure_links,
        peaks=peaks,
    )


def _request(
    path: Path,
    models: list[str],
    given: dict[str, Any],
    old: ClusterProfile | None,
    bench: Bench,
) -> Request:
    from apss_jax.importers.load import load_model
    from profiler.bench import default_precision
    from profiler.points import axes_of
    from profiler.session import Request

    platform = bench.context.devices[0].platform
    on_cpu = platform == "cpu"
    usual = options.CPU_MODELS if on_cpu else options.GPU_MODELS
    loaded = tuple(load_model(m) for m in models or usual)
    given = {**given, "precision": given["precision"] or (default_precision(platform),)}
    axes = axes_of(loaded, on_cpu=on_cpu, **given)
    longest = CPU_MOST_TOKENS if on_cpu else GPU_MOST_TOKENS
    asked = max(axes.micro_batches) * max(axes.seq_lens) if given["seq_len"] else 0
    return Request(path, loaded, axes, max(longest, asked), old)


def _output(text: str, *, force: bool, resume: bool) -> tuple[Path, ClusterProfile | None]:
    """Returns where the profile goes, and the one to go on with; raises `InputError`."""
    path = Path(text)
    if path.suffix.lower() != ".json" or path.is_dir():
        raise mistake("--out", text or "''", "does not name a .json file", "Name a .json file")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        rule = f"its folder {path.parent} is not there or cannot be written"
        raise mistake("--out", text, rule, "Make the folder or name another")
    if not path.exists() or force:
        return path, None
    if not resume:
        remedy = "Go on with it by --resume, replace it by --force, or name another file"
        raise mistake("--out", text, "is already there", remedy)
    from apss_jax.schema.cluster import ClusterProfile
    from apss_jax.schema.document import read_document

    return path, read_document(ClusterProfile, path)


def _minutes(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = float("nan")
    if not LEAST_MINUTES <= found < float("inf"):
        rule = f"must be a number of minutes from {LEAST_MINUTES}"
        raise mistake("--minutes", text, rule, "Give one, as in --minutes 8")
    return found


def _number(flag: str, text: str | None, *, least: int = 1) -> int | None:
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,8}", text) or int(text) < least:
        raise mistake(flag, text or "''", f"must be a whole number from {least}", "Correct it")
    return int(text)


def _numbers(flag: str, text: str | None) -> tuple[int, ...]:
    pieces = [] if text is None else text.split(",")
    return tuple(sorted({_number(flag, piece.strip()) or 0 for piece in pieces}))


def _words(flag: str, text: str | None, allowed: tuple[str, ...]) -> tuple[str, ...]:
    pieces = [] if text is None else [piece.strip().lower() for piece in text.split(",")]
    for piece in pieces:
        if piece not in allowed:
            raise mistake(flag, piece or "''", "is not known", f"Choose from {', '.join(allowed)}")
    return tuple(dict.fromkeys(pieces))


def _precisions() -> tuple[str, ...]:
    from apss_jax.schema.cluster import Precision

    return tuple(word for word in get_args(Precision) if word != "fp8")


def _show(profile: ClusterProfile, console: Console) -> None:
    from profiler.show import show_profile

    show_profile(profile, console)
