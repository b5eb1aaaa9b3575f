"""JAX: a module with the mesh of the plan, the layers of each stage, and PartitionSpecs by role.

Target: JAX 0.10 and later (`jax.sharding.Mesh`, `NamedSharding`, `PartitionSpec`).
"""

from __future__ import annotations

from typing import Final

from apss_jax.exporters.export import Export, Exporter, commented, header, vocab_rows
from apss_jax.legality.framework_limits import JAX
from apss_jax.legality.launch import Launch

VERSION: Final = "0.10"
MODULE: Final = "plan_mesh.py"
AXES: Final = ("stage", "data", "context", "tensor")
NOTES: Final = (
    "jax.devices() counts node by node, as the plan does: process 0 must be on the first node.",
    "Expert ranks are neighbouring (data, context) ranks: see EXPERT_PARALLEL.",
)


def specs(launch: Launch) -> dict[str, tuple[str | tuple[str, ...] | None, ...]]:
    """Returns the axes of arrays by role, `None` where a dimension is whole.

    Weights of layers begin with the stages; ZeRO 3 also cuts them over the data ranks.
    """
    plan = launch.plan
    shard = "data" if plan.zero_stage == 3 else None
    tokens: tuple[str | tuple[str, ...] | None, ...] = (None, "data", "context")
    between = ("context", "tensor") if plan.sequence_parallel else "context"
    return {
        "tokens": tokens,  # [micro-batches, samples, tokens]
        "activations": (None, "data", between, None),  # the same, and features
        "embedding": ("tensor", shard),  # [vocabulary, features]
        "head": (shard, "tensor"),  # [features, vocabulary]
        "column": ("stage", None, shard, "tensor"),  # [stages, layers, features in, features out]
        "row": ("stage", None, "tensor", shard),
        "vector": ("stage", None, None),  # norms and biases after a row: [stages, layers, features]
    }


def write_jax(launch: Launch) -> Export:
    """Returns the module."""
    plan = launch.plan
    shape = (
        plan.pipeline_parallel,
        plan.data_parallel,
        plan.context_parallel,
        plan.tensor_parallel,
    )
    stages = [[(c.first_layer, c.num_layers) for c in stage.chunks] for stage in plan.stages]
    rows = vocab_rows(launch)
    lines = [f'    "{name}": P{axes!r},' for name, axes in specs(launch).items()]
    module = f'''{commented(header("JAX", VERSION, launch, NOTES))}
"""The mesh of the plan, which layers each stage holds, and how arrays are cut."""

import numpy as np

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

AXES = {AXES!r}
SHAPE = {shape!r}
DEVICES = {list(launch.ranks)!r}  # of every rank, in the order of SHAPE
STAGES = {stages!r}  # (first layer, layers) of each chunk
NUM_LAYERS = {launch.num_layers}
VOCAB_ROWS = {rows!r}  # a multiple of the tensor ranks, which cut them; None: not known
EXPERT_PARALLEL = {plan.expert_parallel}
MICRO_BATCH = {plan.micro_batch}  # sequences of one data rank
NUM_MICRO_BATCHES = {plan.num_micro_batches}
GLOBAL_BATCH = {plan.global_batch}
SEQ_LEN = {plan.seq_len}
PRECISION = {plan.precision!r}
ZERO_STAGE = {plan.zero_stage}
RECOMPUTE = {plan.recompute!r}
SPECS = {{
{chr(10).join(lines)}
}}


def make_mesh(devices=None):
    """Returns the mesh over the devices of the plan."""
    found = jax.devices() if devices is None else devices
    if max(DEVICES) >= len(found):
        raise ValueError(f"the plan needs device {{max(DEVICES)}}, and there are {{len(found)}}")
    return Mesh(np.array([found[i] for i in DEVICES]).reshape(SHAPE), AXES)


def sharding(mesh, role):
    """Returns how an array of a role is cut over the mesh."""
    return NamedSharding(mesh, SPECS[role])
'''
    return Export({MODULE: module}, MODULE)


EXPORTER: Final = Exporter("jax", "JAX", VERSION, "jax", JAX, write_jax, (MODULE,))
