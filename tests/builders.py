"""Small models and clusters whose costs can be worked out by hand."""

from apss_jax.schema.cluster import ClusterProfile, DeviceRates, DeviceType, Link, NodeGroup
from apss_jax.schema.layers import Attention, DenseMlp, Layer
from apss_jax.schema.model import Embedding, Head, LayerRun, Model
from apss_jax.schema.stack import Stack
from apss_jax.schema.workload import Workload
from apss_jax.units import GB, GIB, TFLOP


def tiny_layer(**changes: object) -> Layer:
    """Returns a layer of hidden size 8: two heads of 4, feed-forward width 32, no gate."""
    attention = Attention(num_heads=2, num_kv_heads=2, head_dim=4)
    feed_forward = DenseMlp(intermediate_size=32, gated=False)
    return Layer(**{"mixer": attention, "feed_forward": feed_forward, **changes})


def tiny_model(num_layers: int = 4, layer: Layer | None = None, **changes: object) -> Model:
    """Returns a model of hidden size 8 with a vocabulary of 256 and equal layers."""
    fields = {
        "name": "tiny",
        "hidden_size": 8,
        "embedding": Embedding(vocab_size=256),
        "layers": (LayerRun(repeat=num_layers, layer=layer or tiny_layer()),),
        "head": Head(),
    }
    return Model(**{**fields, **changes})


def ideal_rates(**changes: object) -> DeviceRates:
    """Returns rates that reach the datasheet."""
    fields = {
        "gemm_fraction": 1.0,
        "gemm_half_size": 0.0,
        "flash_attention_fraction": 1.0,
        "attention_fraction": 1.0,
        "memory_fraction": 1.0,
        "source": "chosen for round numbers",
    }
    return DeviceRates(**{**fields, **changes})


def ideal_device(**changes: object) -> DeviceType:
    """Returns a device of 100 TFLOP/s in 16 bits, 1 TB/s and 16 GiB."""
    fields = {
        "memory_bytes": int(16 * GIB),
        "peak_flops_per_s": {"bf16": 100 * TFLOP, "fp16": 100 * TFLOP, "fp32": 50 * TFLOP},
        "memory_bytes_per_s": 1000 * GB,
        "rates": ideal_rates(),
    }
    return DeviceType(**{**fields, **changes})


def tiny_cluster(devices: int = 4, nodes: int = 1, **changes: object) -> ClusterProfile:
    """Returns equal nodes of ideal devices: 100 GB/s inside a node, 10 GB/s between nodes."""
    fields = {
        "name": "tiny",
        "device_types": {"ideal": ideal_device()},
        "links": {
            "inside": Link(bytes_per_s=100 * GB, latency_s=0.0),
            "between": Link(bytes_per_s=10 * GB, latency_s=0.0),
        },
        "nodes": (
            NodeGroup(
                count=nodes,
                devices=devices,
                device_type="ideal",
                intra_link="inside",
                network="between",
            ),
        ),
    }
    return ClusterProfile(**{**fields, **changes})


def tiny_stack(**changes: object) -> Stack:
    """Returns a stack that adds nothing to what the device needs."""
    fields = {"name": "ideal", "source": "chosen for round numbers", "reserved_bytes": 0.0}
    return Stack(**{**fields, **changes})


def tiny_workload(**changes: object) -> Workload:
    """Returns steps of 16 sequences of 64 tokens."""
    return Workload(**{"global_batch": 16, "seq_len": 64, **changes})
