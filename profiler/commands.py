"""The commands `merge` and `import` of `python -m profiler`."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from apss_jax.schema.errors import mistake
from profiler.answers import Answer, note
from profiler.options import OUT, Force, Out, Text

if TYPE_CHECKING:
    from rich.console import Console

    from apss_jax.schema.cluster import ClusterProfile


def merge_command(
    files: Annotated[list[str], typer.Argument(metavar="A.json B.json ...")],
    link: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LINK",
            help="What joins the nodes of the files: a library link, a link file, or a rate as "
            "100Gbit/s,5us; for one pair of files as 1,2=LINK; repeats.",
        ),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(metavar="WHICH", help="Which file holds where two contradict: first or last."),
    ] = None,
    out: Out = OUT,
    force: Force = False,
) -> Answer:
    """Put profiles of different nodes together as one cluster; contradictions are named."""
    from apss_jax.schema.cluster import ClusterProfile
    from apss_jax.schema.document import read_document
    from profiler.joints import parse_joint
    from profiler.merge import Keep, Source, merge_profiles

    if len(files) < 2:
        raise mistake("merge", files[0], "is one file alone", "Name two profiles or more")
    if keep is not None and keep not in get_args(Keep):
        raise mistake("--keep", keep or "''", "is not known", "Choose first or last")
    path = new_file(out, force=force)
    sources = [Source(file, read_document(ClusterProfile, file)) for file in files]
    held: Keep | None = "first" if keep == "first" else "last" if keep == "last" else None
    profile = merge_profiles(sources, [parse_joint(text) for text in link or ()], keep=held)
    return _written(profile, path)


def import_command(
    tool: Annotated[
        str,
        typer.Argument(
            metavar="FORMAT", help="nccl-tests, metis, galvatron, sailor, aceso, piper or amp."
        ),
    ],
    files: Annotated[list[str], typer.Argument(metavar="FILE ...")],
    cluster: Annotated[
        str,
        typer.Option(metavar="C", help="The cluster that was measured, as --cluster of a search."),
    ] = "",
    device: Annotated[
        Text, typer.Option(metavar="T", help="The device type, where the cluster has several.")
    ] = None,
    model: Annotated[
        Text, typer.Option(metavar="M", help="The model that was measured, as --model of a search.")
    ] = None,
    seq_len: Annotated[
        int | None, typer.Option(metavar="S", help="Its tokens per sequence.")
    ] = None,
    precision: Annotated[
        Text, typer.Option(metavar="P", help="fp32, tf32, fp16, bf16 or fp8.")
    ] = None,
    operation: Annotated[
        Text, typer.Option(metavar="OP", help="What nccl-tests ran, where its output does not say.")
    ] = None,
    link: Annotated[
        Text,
        typer.Option(
            metavar="LINK", help="Which of the cluster's links was measured.  [default: found]"
        ),
    ] = None,
    out: Out = OUT,
    force: Force = False,
) -> Answer:
    """Read what another tool measured into a profile of ours; units are checked."""
    from apss_jax.importers.clusters import load_cluster
    from apss_jax.importers.load import load_model
    from apss_jax.schema.cluster import Precision
    from apss_jax.schema.link_measurements import COLLECTIVES, TRANSFERS
    from profiler.imports.formats import import_profile
    from profiler.imports.imported import Wanted

    if not cluster:
        rule = "is needed: the files do not describe the cluster that was measured"
        raise mistake("--cluster", "", rule, "Give it, as in --cluster 1x8xA100-SXM4-80GB")
    path = new_file(out, force=force)
    described = load_cluster(cluster)
    wanted = Wanted(
        cluster=described,
        device_type=_device_type(described, device),
        model=load_model(model) if model is not None else None,
        seq_len=seq_len,
        precision=_word("--precision", precision, get_args(Precision)),
        operation=_word("--operation", operation, (*COLLECTIVES, *TRANSFERS)),
        link=link,
    )
    return _written(import_profile(tool, [Path(file) for file in files], wanted), path)


def _device_type(cluster: ClusterProfile, asked: str | None) -> str:
    """Returns the device type that was measured; raises `InputError` where it is not told."""
    if asked is None and len(cluster.used_types) == 1:
        return cluster.used_types[0]
    if asked in cluster.used_types:
        return asked
    rule = "is needed: the cluster has several" if asked is None else "is not in the cluster"
    remedy = f"Choose from {', '.join(cluster.used_types)}"
    raise mistake("--device", asked or "", rule, remedy)


def _word(flag: str, text: Text, allowed: tuple[str, ...]) -> Any:
    if text is not None and text not in allowed:
        raise mistake(flag, text or "''", "is not known", f"Choose from {', '.join(allowed)}")
    return text


def new_file(text: str, *, force: bool) -> Path:
    """Returns where a profile is to be written; raises `InputError` before any work is done."""
    path = Path(text)
    if path.suffix.lower() != ".json" or path.is_dir():
        raise mistake("--out", text or "''", "does not name a .json file", "Name a .json file")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        rule = f"its folder {path.parent} is not there or cannot be written"
        raise mistake("--out", text, rule, "Make the folder or name another")
    if path.exists() and not force:
        remedy = "Replace it with --force, or name another file"
        raise mistake("--out", text, "is already there", remedy)
    return path


def _written(profile: ClusterProfile, path: Path) -> Answer:
    from apss_jax.schema.document import write_document

    write_document(profile, path)
    note(f"Wrote {path}")
    return Answer(profile.to_json(), partial(_show, profile))


def _show(profile: ClusterProfile, console: Console) -> None:
    from profiler.show import show_profile

    show_profile(profile, console)
