"""Small problems with round numbers for the tests of rules and candidates."""

from apss_jax.legality.facts import Facts, facts_of
from apss_jax.schema.cluster import ClusterProfile, DeviceRates, DeviceType, Link, NodeGroup
from apss_jax.schema.layers import Attention, DenseMlp, Layer, MoeMlp, StateSpace
from apss_jax.schema.layout import Layout
from apss_jax.schema.model import Embedding, LayerRun, LayerTable, Model, TableRow
from apss_jax.schema.stack import Stack
from apss_jax.schema.workload import Workload

RATES = DeviceRates(
    gemm_fraction=0.7, gemm_half_size=100.0, attention_fraction=0.3, memory_fraction=0.8,
    source="round numbers",
)  # fmt: skip
LINKS = {
    "inside": Link(bytes_per_s=1e11, latency_s=1e-5),
    "network": Link(bytes_per_s=1e10, latency_s=2e-5),
}
NEW = DeviceType(
    memory_bytes=80_000_000_000,
    peak_flops_per_s={"bf16": 4e14, "fp16": 4e14},
    memory_bytes_per_s=2e12,
    rates=RATES,
)
OLD = NEW.model_copy(update={"peak_flops_per_s": {"fp16": 1e14}, "memory_bytes": 16_000_000_000})


def cluster_of(*nodes: int, per_domain: int = 1, types: str | None = None) -> ClusterProfile:
    """Returns a cluster with these devices per node; `types` has one letter, n or o, per node."""
    kinds = {"n": "new", "o": "old"}
    groups = tuple(
        NodeGroup(
            devices=devices,
            device_type=kinds[letter],
            intra_link="inside",
            network="network",
            nodes_per_domain=per_domain,
        )
        for devices, letter in zip(nodes, types or "n" * len(nodes), strict=True)
    )
    if len(set(groups)) == 1:
        groups = (groups[0].model_copy(update={"count": len(nodes)}),)
    return ClusterProfile(
        name="test", device_types={"new": NEW, "old": OLD}, links=LINKS, nodes=groups
    )


def dense_layer(heads: int = 32, kv_heads: int | None = None, width: int = 1024) -> Layer:
    """Returns an ordinary layer."""
    attention = Attention(num_heads=heads, num_kv_heads=kv_heads or heads, head_dim=64)
    return Layer(mixer=attention, feed_forward=DenseMlp(intermediate_size=width))


def moe_layer(experts: int = 8, heads: int = 32) -> Layer:
    """Returns a layer with experts."""
    moe = MoeMlp(num_experts=experts, experts_per_token=2, expert_intermediate_size=512)
    return dense_layer(heads).model_copy(update={"feed_forward": moe})


def scan_layer(heads: int = 32, groups: int = 8) -> Layer:
    """Returns a state-space layer."""
    mixer = StateSpace(
        num_heads=heads, head_dim=64, state_size=16, num_groups=groups, conv_kernel=4
    )
    return Layer(mixer=mixer, num_norms=1)


def model_of(*layers: Layer, repeat: int = 1, positions: int = 0) -> Model:
    """Returns a model of these layers, each repeated."""
    return Model(
        name="test",
        hidden_size=512,
        embedding=Embedding(vocab_size=1000, num_positions=positions),
        layers=tuple(LayerRun(repeat=repeat, layer=layer) for layer in layers),
    )


def table_model(rows: int = 6, degrees: tuple[int, ...] = (1, 2, 4)) -> Model:
    """Returns a model that is a table of equal layers, measured on new devices."""
    times = {"new": {str(degree): 0.004 / degree for degree in degrees}}
    row = TableRow(
        name="row", num_parameters=1000, forward_s=times, output_bytes=10, saved_bytes=20
    )
    return Model(name="table", table=LayerTable(rows=(row,) * rows))


def facts(
    model: Model | None = None,
    cluster: ClusterProfile | None = None,
    batch: int = 64,
    seq_len: int = 4096,
    precision: str = "bf16",
    stack: str = "generic",
) -> Facts:
    """Returns the facts of a problem: by default 12 layers of 32 heads on 2 nodes of 8 devices."""
    workload = Workload(global_batch=batch, seq_len=seq_len, precision=precision)  # type: ignore[arg-type]
    return facts_of(
        model or model_of(dense_layer(), repeat=12),
        cluster or cluster_of(8, 8),
        workload,
        Stack(name=stack, source="test"),
    )


def layout(tensor: int = 1, pipeline: int = 1, data: int = 1, **others: object) -> Layout:
    """Returns a layout by its three degrees and whatever else matters."""
    return Layout(tensor, pipeline, data, **others)  # type: ignore[arg-type]
