"""The commands `merge` and `import` of `python -m profiler`."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, get_args

import typer

from apss_jax.schema.errors import mistake
from profiler.answers import Answer, note

if TYPE_CHECKING:
    from rich.console import Console

    from apss_jax.schema.cluster import ClusterProfile

OUT: Final = "cluster_profile.json"
Out = Annotated[str, typer.Option("--out", metavar="FILE", help="The profile to write.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an older --out.")]


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
