"""Everything that reads what a person or another tool wrote: one line for each reader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from io import StringIO
from pathlib import Path
from typing import Any, Final

import examples
from answers import answers
from command_lines import LINES, reader_of

from apss_jax.calibration.library_constants import Priors
from apss_jax.cli.pins import read_pins
from apss_jax.cli.plan_file import read_plans
from apss_jax.importers.clusters import load_cluster, load_stack
from apss_jax.importers.load import load_model
from apss_jax.importers.megatron_arguments import read_megatron_arguments
from apss_jax.importers.megatron_run import nodes_of_arguments, run_of_arguments
from apss_jax.legality.megatron_arguments import argument_violations
from apss_jax.schema.calibration import Calibration
from apss_jax.schema.cluster import ClusterProfile, Device, LinkFile
from apss_jax.schema.document import read_document
from apss_jax.schema.plan import Estimate, Plan, SearchResult
from apss_jax.schema.runs import read_runs
from apss_jax.schema.trial import Trial
from apss_jax.schema.validation import HeldOut, Validation
from apss_jax.schema.workload import Workload

ReadFn = Callable[[Path], Any]
"""Returns what is in a file; raises `InputError`."""

ExamplesFn = Callable[[], tuple[bytes, ...]]


@dataclass(frozen=True)
class Reader:
    """A reader, inputs that it takes, and the name that a file of its kind has."""

    name: str
    read: ReadFn
    examples: ExamplesFn
    file: str = "input.json"
    prepare: ReadFn = Path.exists  # puts into the folder what stands beside the file


def _hosts(path: Path) -> Any:
    return load_cluster(str(path), gpu="H100").to_json()


def _cluster(path: Path) -> Any:
    return load_cluster(str(path)).to_json()


def _model(path: Path) -> Any:
    model = load_model(str(path))
    return model.num_parameters, model.num_mtp_parameters, model.to_json()


def _megatron(path: Path) -> Any:
    given = read_megatron_arguments(str(path))
    nodes, per_node = nodes_of_arguments(given) or (2, 8)
    run = run_of_arguments(given, nodes * per_node)
    model = run.model.to_json() if run.model else None
    return run.layout, run.split, run.notes, model, argument_violations(given, nodes * per_node)


def _shown(path: Path) -> Any:
    from rich.console import Console

    from profiler.show import show_profile

    console = Console(file=StringIO(), width=80)
    show_profile(read_document(ClusterProfile, path), console)
    return console.file.getvalue()


@cache
def _wanted(layers: int) -> Any:
    from profiler.imports.imported import Wanted

    model = load_model("gpt2-medium")
    (run,) = model.layers
    kept = {"layers": (run.model_copy(update={"repeat": layers}),)}
    cluster = load_cluster("2x8xA100-SXM4-80GB")
    return Wanted(cluster, cluster.used_types[0], model.model_copy(update=kept), 1024, "fp16")


def _imported(path: Path, *, tool: str) -> Any:
    from profiler.imports.formats import import_profile

    return import_profile(tool, [path], _wanted(24)).to_json()


def _document(path: Path, *, kind: Any) -> Any:
    return read_document(kind, path).to_json()


def _text(path: Path, *, read: Callable[[str], Any]) -> Any:
    """Returns what a word of a command line means, with the bytes that it cannot hold left out."""
    return read(path.read_bytes().replace(b"\0", b"").decode("utf-8", errors="replace"))


def _tensors(path: Path) -> Any:
    from apss_jax.policy.weights import read_tensors

    return {name: value.tolist() for name, value in read_tensors(path).items()}


def _policy(path: Path) -> Any:
    from apss_jax.policy.weights import read_policy

    return read_policy(path.parent).config


def _of_kind(kind: Any, found: ExamplesFn) -> Reader:
    return Reader(kind.SCHEMA, partial(_document, kind=kind), found)


def _tool(tool: str, found: ExamplesFn, file: str = "input.json") -> Reader:
    return Reader(f"import {tool}", partial(_imported, tool=tool), found, file)


def _library(folder: str, *names: str) -> ExamplesFn:
    return partial(examples.library, folder, *names)


def _lines(values: tuple[str, ...]) -> ExamplesFn:
    return partial(examples.texts, values)


MODELS: Final = _library("models", "gpt2", "deepseek-v3", "nemotron-h-8b", "gemma3-4b")
CLUSTERS: Final = _library("clusters", "dgx-h100-4", "mixed-h100-a100-bridge", "gb200-nvl72")
READERS: Final[tuple[Reader, ...]] = (
    Reader("model file", _model, MODELS),
    Reader("config.json", _model, examples.configs, "config.json"),
    Reader("profile", _cluster, CLUSTERS),
    Reader("profile show", _shown, CLUSTERS),
    Reader("hostfile", _hosts, _lines(examples.HOSTS), "hosts"),
    Reader("SLURM variables", _hosts, _lines(examples.SLURM), "slurm.txt"),
    Reader("nvidia-smi", _cluster, _lines(examples.SMI), "smi.txt"),
    Reader("nvidia-smi topo", _hosts, _lines(examples.TOPOLOGY), "topo.txt"),
    Reader("Megatron arguments", _megatron, _lines(examples.MEGATRON), "train.sh"),
    Reader("stack", lambda path: load_stack(str(path)).to_json(), _library("stacks")),
    Reader("runs table", read_runs, _lines(examples.RUNS), "runs.csv"),
    Reader("plans", lambda path: read_plans(str(path), 9), partial(answers, Plan, SearchResult)),
    _of_kind(Plan, partial(answers, Plan)),
    _of_kind(SearchResult, partial(answers, SearchResult)),
    _of_kind(Estimate, partial(answers, Estimate)),
    _of_kind(Validation, partial(answers, Validation)),
    _of_kind(HeldOut, _library("references", "held_out")),
    _of_kind(Calibration, partial(answers, Calibration)),
    _of_kind(Trial, partial(answers, Trial)),
    _of_kind(Workload, partial(answers, Workload)),
    _of_kind(Priors, _library("references", "priors")),
    _of_kind(Device, _library("devices")),
    _of_kind(LinkFile, _library("links")),
    _tool("nccl-tests", _lines(examples.NCCL), "out.txt"),
    _tool("metis", examples.metis, "DeviceType.A100_tp2_bs1.json"),
    _tool("galvatron", partial(examples.as_json, {"layernum[2]_bsz8_seq1024": 30.0,
          "layernum[4]_bsz8_seq1024": 40.0}), "computation_profiling_bf16_x.json"),
    _tool("galvatron", partial(examples.as_json, {"allreduce_size_8_consec_1": 150.0,
          "allreduce_size_16_consec_1": 40.0}), "allreduce_bandwidth.json"),
    _tool("sailor", examples.sailor, "profile.json"),
    _tool("aceso", _lines(examples.ACESO), "gpt_350M_mbs2_tp2_algo0.csv"),
    _tool("piper", examples.piper),
    _tool("amp", examples.vectors, "gpt2_P3_2.npy"),
    Reader("weights", _tensors, examples.tensors, "w.safetensors"),
    Reader("network sizes", _policy, examples.policy_config, "config.json", examples.beside),
    Reader("word: cluster", partial(_text, read=lambda text: load_cluster(text).to_json()),
           _lines(examples.SHORTHAND)),
    Reader("word: model", partial(_text, read=lambda text: load_model(text).to_json()),
           _lines(("gpt2", "llama-3.1-8b"))),
    *(Reader(*reader_of(command), "words.txt") for command in LINES),
    Reader("word: pin", partial(_text, read=lambda text: read_pins([text])), _lines(examples.PINS)),
)  # fmt: skip
