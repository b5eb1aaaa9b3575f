"""Plans for trials: layers for each stage, and what the stages take."""

from collections.abc import Sequence

from apss_jax.schema.plan import Chunk, Plan, Stage


def plan_of(
    layers: Sequence[int],
    *,
    layer_s: Sequence[float] | None = None,
    micro_batches: int = 8,
    schedule: str = "1f1b",
    rank: int = 1,
    **degrees: int,
) -> Plan:
    """Returns a plan; `layer_s` is what a layer's forward pass takes on each stage, if known."""
    first = [sum(layers[:i]) for i in range(len(layers))]
    last = len(layers) - 1
    stages = tuple(
        Stage(
            chunks=(Chunk(first_layer=first[i], num_layers=n, embedding=i == 0, head=i == last),),
            forward_s=layer_s[i] * n if layer_s else None,
            backward_s=2 * layer_s[i] * n if layer_s else None,
        )
        for i, n in enumerate(layers)
    )
    sizes = {"tensor_parallel": 1, "data_parallel": 1, "micro_batch": 1, **degrees}
    return Plan(
        rank=rank,
        pipeline_parallel=len(layers),
        num_micro_batches=micro_batches,
        schedule=schedule,
        stages=stages,
        **sizes,
    )
