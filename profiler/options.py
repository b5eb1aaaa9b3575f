"""Flags of `python -m profiler`; values arrive as text, so that a wrong one is told its rule."""

from __future__ import annotations

from typing import Annotated, Final

import typer

OUT: Final = "cluster_profile.json"
MINUTES: Final = "10"
CPU_DEVICES: Final = "2"
# What a run without --model measures: layers of several widths, and one with experts.
GPU_MODELS: Final = ("llama-3.1-8b", "llama-3.2-1b", "mixtral-8x7b")
CPU_MODELS: Final = ("gpt2",)
Text = str | None

Minutes = Annotated[
    str, typer.Option("--minutes", metavar="F", help="Time to measure in, compilation included.")
]
Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        metavar="M",
        help="Model whose layers are measured: library name, config.json, or model file; repeats.  "
        f"[default: {', '.join(GPU_MODELS)}; on CPU {', '.join(CPU_MODELS)}]",
    ),
]
Out = Annotated[str, typer.Option("--out", metavar="FILE", help="The profile to write.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an older --out.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with an older --out.")]
Precisions = Annotated[
    Text,
    typer.Option(
        "--precision",
        metavar="P",
        help="fp32, tf32, fp16 or bf16; several with commas.  [default: bf16; on CPU fp32]",
    ),
]
SeqLens = Annotated[
    Text,
    typer.Option("--seq-len", metavar="S", help="Tokens per sequence; several with commas."),
]
MicroBatches = Annotated[
    Text,
    typer.Option("--micro-batch", metavar="B", help="Sequences at once; several with commas."),
]
TensorDegrees = Annotated[
    Text, typer.Option("--tp", metavar="T", help="Tensor-parallel degrees; several with commas.")
]
Recomputes = Annotated[
    Text,
    typer.Option("--recompute", metavar="R", help="none, full or selective; several with commas."),
]
Peaks = Annotated[
    bool,
    typer.Option(
        "--peaks/--no-peaks", help="Measure peak memory of layers, in a process of their own."
    ),
]
CpuDevices = Annotated[
    str,
    typer.Option(
        "--cpu-devices", metavar="N", help="Where there is no GPU: how many devices to imitate."
    ),
]
Coordinator = Annotated[
    Text,
    typer.Option(
        "--coordinator", metavar="HOST:PORT", help="Process 0 of a run of several processes."
    ),
]
NumProcesses = Annotated[
    Text, typer.Option("--num-processes", metavar="N", help="How many processes there are.")
]
ProcessId = Annotated[
    Text, typer.Option("--process-id", metavar="I", help="Which of them this one is.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print warnings as JSON.")]
Plots = Annotated[Text, typer.Option("--plots", metavar="DIR", help="Write pictures here.")]
