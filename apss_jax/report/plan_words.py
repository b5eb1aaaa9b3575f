"""What a plan's figures are called, and what stages hold, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from apss_jax.report.figures import UNKNOWN, count, gib, ranges, repeated
from apss_jax.schema.plan import Chunk, MemoryBytes, Plan, Stage

if TYPE_CHECKING:
    from apss_jax.schema.cluster import ClusterProfile
    from apss_jax.schema.model import Model

BREAKDOWN_WORDS: Final = {
    "compute": "compute",
    "tensor_comm": "collectives inside layers",
    "pipeline_bubble": "pipeline bubble",
    "pipeline_comm": "transfers between stages",
    "data_comm": "gradient reduction",
    "optimizer": "optimizer",
    "other": "other",
}
PASS_WORDS: Final = {"F": "forward", "B": "backward", "U": "gradients and update"}
MEMORY_WORDS: Final = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "activations": "activations",
    "other": "other",
}
QUESTION_WORDS: Final = {
    "global_batch": "Global batch",
    "network_speed": "Speed of the network between nodes",
    "intra_speed": "Speed of the links inside nodes",
}
REASONS: Final = {
    "needless_context": "whole sequences could be spread instead",
    "memory_lower_bound": "no partition of it fits in memory",
    "unsharded_optimizer": "ZeRO 1 sends no more and holds less",
    "needless_sharding": "a lower ZeRO stage fits and is no slower",
    "needless_recompute": "less recomputation fits too",
    "idle_devices": "too slow with that many devices idle",
    "slow_compute": "too slow by its compute alone",
    "bubble": "too slow with its pipeline filling up",
    "layer_comm": "too slow with its collectives inside layers",
    "gradient_comm": "too slow with its gradient reduction",
    "cannot_win": "its bound is above the plans that are shown",
    "no_partition_fits": "none of its partitions was found to fit in memory",
    "cannot_be_placed": "its groups find no devices in any order",
    "search_budget": "beyond the number of layouts that a search costs",
}


def headline(model: Model, cluster: ClusterProfile) -> str:
    """Returns what is trained on what."""
    size = f"{count(model.num_parameters)} parameters, {model.num_layers} layers"
    devices = f"{cluster.num_devices} {plural('device', cluster.num_devices)}"
    return f"{model.name} ({size}) on {cluster.name} ({devices})"


def layers_per_stage(plan: Plan) -> str:
    """Returns how many layers each stage holds."""
    return repeated([sum(chunk.num_layers for chunk in stage.chunks) for stage in plan.stages])


def heaviest(plan: Plan) -> tuple[int, Stage] | None:
    """Returns the stage that comes closest to its capacity, with its index."""
    known = [(i, stage) for i, stage in enumerate(plan.stages) if stage.memory_bytes]
    return max(known, key=lambda pair: load_fraction(pair[1].memory_bytes), default=None)


def load_fraction(held: MemoryBytes | None) -> float:
    """Returns how full a device gets; 0 where that is not known."""
    return held.total / held.capacity if held else 0.0


def occupancy(held: MemoryBytes | None) -> str:
    """Returns used and available GiB."""
    return f"{gib(held.total)}/{gib(held.capacity)}" if held else UNKNOWN


def worst_oom(plan: Plan) -> float | None:
    """Returns the probability that the likeliest stage runs out of memory."""
    known = [s.oom_probability for s in plan.stages if s.oom_probability is not None]
    return max(known, default=None)


def held_by(stage: Stage) -> str:
    """Returns the layers and ends that a stage holds, chunk by chunk."""
    return "+".join(_held(chunk) for chunk in stage.chunks)


def _held(chunk: Chunk) -> str:
    last = chunk.first_layer + chunk.num_layers - 1
    parts = ["emb"] if chunk.embedding else []
    parts += [ranges(range(chunk.first_layer, last + 1))] if chunk.num_layers else []
    parts += ["head"] if chunk.head else []
    return "+".join(parts) or "nothing"


def plural(word: str, number: int) -> str:
    """Returns the word for one or for several."""
    return word if number == 1 else f"{word}es" if word.endswith("ch") else f"{word}s"
