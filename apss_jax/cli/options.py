"""Flags that several commands share.

Values arrive as text and are read by `values`: typer's own conversion would answer a wrong one
without the rule and the remedy.
"""

from __future__ import annotations

from typing import Annotated

import typer

from apss_jax import __version__


def _version(asked: bool) -> None:
    if asked:
        print(f"apss-jax {__version__}")
        raise typer.Exit


Text = str | None
MODEL_HELP = "Library name, Hugging Face config.json, or model file."
CLUSTER_HELP = (
    "Library name, profile file, or nodes x GPUs x device; mixed types joined by +, as in "
    "2x8xH100-SXM5-80GB+2x8xA100-SXM4-80GB; or a hostfile, what nvidia-smi printed, or slurm."
)
GpuName = Annotated[
    Text,
    typer.Option(
        "--gpu", metavar="NAME", help="The GPU of hosts that a hostfile or SLURM lists without one."
    ),
]
ModelName = Annotated[str, typer.Option("--model", metavar="M", help=MODEL_HELP)]
ClusterName = Annotated[str, typer.Option("--cluster", metavar="C", help=CLUSTER_HELP)]
MaybeModel = Annotated[Text, typer.Option("--model", metavar="M", help=MODEL_HELP)]
MaybeCluster = Annotated[Text, typer.Option("--cluster", metavar="C", help=CLUSTER_HELP)]
SeqLen = Annotated[
    Text,
    typer.Option(
        "--seq-len",
        metavar="S",
        help="Tokens per sequence.  [default: the model's limit, at most 4096]",
    ),
]
PrecisionName = Annotated[
    Text,
    typer.Option(
        "--precision",
        metavar="P",
        help="fp32, tf32, fp16, bf16 or fp8.  [default: bf16 where every device has it]",
    ),
]
StackName = Annotated[
    Text,
    typer.Option(
        "--stack",
        metavar="NAME",
        help="Training software: library name or stack file.  [default: the cluster's, or generic]",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
Version = Annotated[
    bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
]
