"""A search result made by hand: two stages of different types, figures easy to follow."""

from io import StringIO

from rich.console import Console

from apss_jax.schema.plan import (
    Breakdown,
    Chunk,
    Cost,
    Estimate,
    MemoryBytes,
    Plan,
    SearchCounts,
    SearchResult,
    Shortfall,
    Stage,
    Violation,
)
from apss_jax.units import GIB

STEP_S = 2.0
BREAKDOWN = Breakdown(
    compute=1.0,
    tensor_comm=0.4,
    pipeline_bubble=0.3,
    pipeline_comm=0.1,
    data_comm=0.1,
    optimizer=0.1,
    other=0.0,
)
COST = Cost(
    step_time_s=STEP_S,
    step_time_low_s=1.6,
    step_time_high_s=2.5,
    tokens_per_s=512_000.0,
    mfu_fraction=0.412,
    bubble_fraction=0.15,
    breakdown_s=BREAKDOWN,
)
NO_COST = Cost(**{**dict(COST), "mfu_fraction": None})


def memory(total_gib: float) -> MemoryBytes:
    """Returns a stage's memory on a device of 80 GiB."""
    parts = {"weights": 10.0, "gradients": 10.0, "optimizer": 10.0, "other": 0.0}
    activations = total_gib - sum(parts.values())
    sized = {name: size * GIB for name, size in {**parts, "activations": activations}.items()}
    return MemoryBytes(**sized, total=total_gib * GIB, capacity=80 * GIB)


def stage(first_layer: int, devices: range, total_gib: float, **ends: bool) -> Stage:
    """Returns a stage of 16 layers."""
    return Stage(
        chunks=(Chunk(first_layer=first_layer, num_layers=16, **ends),),
        devices=tuple(devices),
        device_type="H100-SXM5-80GB" if first_layer else "A100-SXM4-80GB",
        forward_s=0.0121,
        backward_s=0.0242,
        memory_bytes=memory(total_gib),
        oom_probability=0.004 if total_gib < 75 else 0.97,
        fits=total_gib < 75,
    )


PLAN = Plan(
    tensor_parallel=4,
    pipeline_parallel=2,
    data_parallel=2,
    micro_batch=1,
    num_micro_batches=128,
    sequence_parallel=True,
    global_batch=256,
    seq_len=4096,
    precision="bf16",
    stack="generic",
    stages=(stage(0, range(8), 60.0, embedding=True), stage(16, range(8, 16), 40.0, head=True)),
    cost=COST,
    explanation=("Tensor groups stay inside a node.",),
)
WIDEST = PLAN.model_copy(
    update={
        "rank": 20,
        "tensor_parallel": 16,
        "pipeline_parallel": 128,
        "data_parallel": 1024,
        "context_parallel": 16,
        "expert_parallel": 128,
        "virtual_stages": 16,
        "micro_batch": 128,
        "recompute": "selective",
        "stages": tuple(
            stage(16 * i, range(4 * i, 4 * i + 4000, 3), 60.0 + i / 10) for i in range(128)
        ),
    }
)
COUNTS = SearchCounts(
    candidates=100,
    legal=60,
    fits=40,
    dropped={"needless_recompute": 30, "batch": 10, "experts": 0},
    elapsed_s={"total": 1.0, "load": 0.1, "partition": 0.2, "cost": 0.7},
)
RESULT = SearchResult(plans=(PLAN,), search=COUNTS, assumptions=("precision bf16",))
NOTHING = SearchResult(
    plans=(),
    search=COUNTS.model_copy(update={"fits": 0}),
    shortfall=Shortfall(bytes=2.5 * GIB, devices=8, change="recompute full"),
)
BROKEN = Estimate(
    legal=False,
    violations=(Violation(rule="heads", message="32 heads do not divide by tensor parallel 5"),),
    plan=PLAN.model_copy(update={"cost": None, "stages": ()}),
)


def console() -> Console:
    """Returns a console of 80 columns that writes to a string."""
    return Console(file=StringIO(), width=80, highlight=False, markup=False, emoji=False)


def written(target: Console) -> str:
    """Returns what was printed on such a console."""
    assert isinstance(target.file, StringIO)
    return target.file.getvalue()
