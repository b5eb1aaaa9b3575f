"""Random pipelines, on given devices and with the devices open."""

import numpy as np

from apss_jax.cost.schedule import most_in_flight
from apss_jax.partitioning.joint import JointInstance
from apss_jax.partitioning.pipeline import PipelineInstance


def random_pipeline(
    rng: np.random.Generator,
    layers: int,
    stages: int,
    num_micro_batches: int,
    *,
    virtual_stages: int = 1,
    room: float = np.inf,
) -> PipelineInstance:
    """Returns uneven layers on uneven stages; `room` is the share of the memory that there is."""
    pieces = stages * virtual_stages
    slowness = np.tile(rng.uniform(1, 3, stages), virtual_stages)[:, None]
    forward_s = rng.uniform(0.2, 1, layers) * slowness
    schedule = "1f1b" if virtual_stages == 1 else "interleaved_1f1b"
    held = most_in_flight(schedule, stages, num_micro_batches, virtual_stages)
    saved_bytes = rng.uniform(0, 1e9, layers)
    need_bytes = layers * 5e9 + saved_bytes.sum() * held.sum(axis=1).mean()
    return PipelineInstance(
        forward_s=forward_s,
        backward_s=forward_s * rng.uniform(1.5, 2.5, layers),
        transfer_s=np.outer(rng.uniform(0.5, 1, layers - 1), rng.uniform(0, 2, pieces - 1)),
        gradient_s=rng.uniform(0, 1, (pieces, layers)) * rng.choice([0.0, 2.0]),
        state_bytes=rng.uniform(0, 1e10, layers),
        saved_bytes=saved_bytes,
        in_flight=held.T.reshape(-1),
        capacity_bytes=np.full(stages, room * need_bytes / stages),
        num_micro_batches=num_micro_batches,
        virtual_stages=virtual_stages,
    )


def random_cuts(rng: np.random.Generator, instance: PipelineInstance) -> np.ndarray:
    """Returns cuts that leave no piece empty."""
    places = rng.choice(instance.num_layers - 1, instance.num_pieces - 1, replace=False)
    return np.sort(places).astype(np.int64)


def random_joint(
    rng: np.random.Generator,
    layers: int,
    counts: tuple[int, ...],
    *,
    stages: int | None = None,
    node_stages: int = 1,
    with_gradients: bool = True,
    tight: bool = False,
) -> JointInstance:
    """Returns types of different speed, memory and links between them."""
    types = len(counts)
    slowness = rng.uniform(1, 4, types)
    forward_s = np.outer(slowness, rng.uniform(0.2, 1, layers))
    state_bytes, saved_bytes = rng.uniform(0.5e9, 1.5e9, layers), rng.uniform(0, 2e8, layers)
    stages = stages or sum(counts)
    share_bytes = (state_bytes + 0.5 * stages * saved_bytes).sum() / stages
    room = share_bytes * rng.uniform(0.8, 2.5, types)
    return JointInstance(
        type_forward_s=forward_s,
        type_backward_s=2 * forward_s,
        type_gradient_s=forward_s * rng.uniform(0, 2) * with_gradients,
        counts=np.array(counts, np.int64),
        node_stages=np.full(types, node_stages, np.int64),
        link_s_per_byte=rng.uniform(0.1, 2, (types, types)) * 1e-9,
        link_s_per_call=rng.uniform(0, 0.05, (types, types)),
        node_s_per_byte=rng.uniform(0.001, 0.1, types) * 1e-9,
        node_s_per_call=rng.uniform(0, 0.005, types),
        boundary_bytes=rng.uniform(0.5e9, 1e9, layers - 1),
        state_bytes=state_bytes,
        saved_bytes=saved_bytes,
        capacity_bytes=room if tight else np.full(types, np.inf),
        num_micro_batches=int(rng.choice([2, 8, 32])),
        num_stages=stages,
    )
