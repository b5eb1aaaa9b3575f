"""Plans whose degrees differ pairwise, so that one written in place of another is seen."""

from typing import Any, Final

from planned import A100, H100, launch_of_split, on_devices, small_model, typed

from apss_jax.importers.clusters import load_cluster
from apss_jax.importers.prediction import with_predictions
from apss_jax.schema.layers import Attention, DenseMlp, LatentAttention, Layer, MoeMlp
from apss_jax.schema.model import Model


def routed(layers: int) -> Model:
    """Returns a model whose layers have 30 experts each."""
    attention = Attention(num_heads=8, num_kv_heads=8, head_dim=8)
    experts = MoeMlp(num_experts=30, experts_per_token=2, expert_intermediate_size=64)
    return small_model(layers, Layer(mixer=attention, feed_forward=experts))


LATENT_ATTENTION: Final = LatentAttention(
    num_heads=4, query_rank=20, kv_rank=16, nope_head_dim=12, rope_head_dim=6, value_head_dim=14
)
WIDE: Final[dict[str, Any]] = {"context_parallel": 3, "data_parallel": 5, "micro_batch": 7}
SHARED: Final[dict[str, Any]] = {"tensor_parallel": 2, "sequence_parallel": True}
UNEVEN: Final = launch_of_split(
    [1, 2, 3, 4], model=routed(10), expert_parallel=15, recompute="full", **WIDE, **SHARED
)
CHUNKED: Final = launch_of_split(
    [2] * 8,
    chunks=2,
    tensor_parallel=6,
    recompute="selective",
    zero_stage=0,
    precision="fp16",
    **WIDE,
)
SHARDED: Final = launch_of_split([6], zero_stage=3, recompute="full", **WIDE, **SHARED)
GRADIENTS: Final = launch_of_split([6], zero_stage=2, **WIDE, **SHARED)
REPLICATED: Final = launch_of_split([6], zero_stage=0, recompute="selective", **WIDE, **SHARED)
SPREAD: Final = launch_of_split(
    [1, 2, 3, 4], model=routed(10), expert_parallel=15, recompute="full", zero_stage=3, **WIDE
)
PREDICTING: Final = launch_of_split(
    [1, 2, 3, 4],
    model=with_predictions(routed(10), 2),
    expert_parallel=15,
    stack="megatron",
    **WIDE,
    **SHARED,
)
HALVED: Final = launch_of_split(
    [2, 4], tensor_parallel=3, data_parallel=5, micro_batch=7, zero_stage=3, sequence_parallel=True
)
LATENT: Final = launch_of_split(
    [6],
    model=small_model(
        6, Layer(mixer=LATENT_ATTENTION, feed_forward=DenseMlp(intermediate_size=96))
    ),
    tensor_parallel=2,
    data_parallel=3,
    micro_batch=5,
    zero_stage=2,
    precision="fp8",
)
PLAIN: Final = launch_of_split([6], data_parallel=3, micro_batch=5, zero_stage=0)
PIPED: Final = launch_of_split(
    [1, 2, 3, 4], tensor_parallel=2, data_parallel=3, micro_batch=5, recompute="full"
)
CUT: Final = launch_of_split(
    [6], tensor_parallel=2, data_parallel=3, micro_batch=5, zero_stage=2, precision="fp16"
)
TYPES: Final = typed(
    launch_of_split(
        [2, 3, 5],
        model=routed(10),
        context_parallel=4,
        data_parallel=5,
        expert_parallel=10,
        recompute="full",
        **SHARED,
    ),
    load_cluster(f"5x8x{A100}+10x8x{H100}"),
    [A100, H100, H100],
)
EQUAL: Final = launch_of_split(
    [4] * 4,
    chunks=2,
    model=routed(16),
    tensor_parallel=3,
    context_parallel=7,
    expert_parallel=5,
    data_parallel=20,
    micro_batch=42,
    sequence_parallel=True,
    recompute="full",
    zero_stage=3,
)
LINED: Final = launch_of_split(
    [2] * 4, context_parallel=3, data_parallel=5, micro_batch=72, recompute="selective", **SHARED
)
BACKWARDS: Final = on_devices(LINED, [range(30 * i, 30 * i + 30) for i in (3, 2, 1, 0)])
