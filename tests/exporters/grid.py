"""The first plan of a search in every format: 25 models, 6 clusters, 3 batches."""

from itertools import product
from typing import Final

from export_checks import CHECKS

from apss_jax.exporters.export import REFUSED
from apss_jax.exporters.formats import FORMATS, export_files, launch_of
from apss_jax.importers.clusters import load_cluster
from apss_jax.importers.load import load_model
from apss_jax.legality.launch import Launch
from apss_jax.planning.search import search_plans

MODELS: Final = (
    "gpt2", "gpt2-xl", "bert-large-uncased", "bloom-7b1", "deepseek-moe-16b", "deepseek-v2-lite",
    "deepseek-v3", "gemma-2b", "gemma-2-9b", "gemma3-4b", "glm-4.5-air", "gpt-oss-20b",
    "gpt3-175b", "llama-2-7b", "llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b",
    "llama-4-scout", "mistral-7b-v0.1", "mixtral-8x7b", "nemotron-h-8b", "opt-13b",
    "qwen2.5-7b", "qwen3-30b-a3b", "qwen3-4b",
)  # fmt: skip
CLUSTERS: Final = (
    "1x8xH100-SXM5-80GB",
    "4x8xA100-SXM4-80GB",
    "1x8xH100-SXM5-80GB+1x8xA100-SXM4-80GB",
    "1x4xA100-SXM4-80GB+1x2xV100-SXM2-32GB",
    "gb200-nvl72",
    "mixed-h100-a100-l40s",
)
BATCHES: Final = (24, 128, 512)
SEQ_LEN: Final = 512
Cell = tuple[str, str, int]
GRID: Final[list[Cell]] = list(product(MODELS, CLUSTERS, BATCHES))
# One batch for each model and cluster, all three batches among them.
THIRD: Final[list[Cell]] = [
    (model, cluster, BATCHES[(i + j) % len(BATCHES)])
    for i, model in enumerate(MODELS)
    for j, cluster in enumerate(CLUSTERS)
]
EXPORTED: Final = "exported"


def export_first_plan(cell: Cell, stack: str | None = None) -> dict[str, str] | None:
    """Returns what became of the first plan in each format: exported, or the rules that refuse it.

    Each export is checked against the plan. None where no plan fits.
    """
    model, cluster, batch = cell
    trained, profile = load_model(model), load_cluster(cluster)
    asked = {"global_batch": batch, "seq_len": SEQ_LEN, "stack": stack, "top": 1}
    found = search_plans(trained, profile, **asked)  # type: ignore[arg-type]
    if not found.plans:
        return None
    launch = launch_of(found.plans[0], trained, profile)
    assert launch.num_layers == trained.num_layers
    return {name: _exported(launch, name) for name in FORMATS}


def _exported(launch: Launch, name: str) -> str:
    files, refused = export_files(launch, name)
    if not refused:
        CHECKS[name](files, launch)
        return EXPORTED
    assert all(each.rule and each.reason and each.source for each in refused)
    assert list(files) == [REFUSED]
    return "+".join(each.rule for each in refused)
