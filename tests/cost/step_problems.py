"""A problem small enough to work out by hand: three layers without ends on two stages."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from builders import ideal_device, tiny_cluster, tiny_stack

from apss_jax.cost.op_table import ScheduleTable, peak_in_flight
from apss_jax.cost.schedule import build_table
from apss_jax.problem import Problem, build_problem
from apss_jax.schema.cluster import ClusterProfile
from apss_jax.schema.tables import Setting, UnitTable
from apss_jax.strategy import Strategy

TYPES = ("ideal", "slow")  # the slow one takes twice as long


def two_speed_cluster() -> ClusterProfile:
    """Returns a cluster that knows both types of device."""
    one = tiny_cluster()
    types = {"ideal": ideal_device(), "slow": ideal_device(memory_bytes_per_s=500e9)}
    other = one.nodes[0].model_copy(update={"device_type": "slow"})
    return one.model_copy(update={"device_types": types, "nodes": (*one.nodes, other)})


def table(**changes: Any) -> UnitTable:
    """Returns the costs of three layers: 1, 2 and 3 s forward, twice that backward."""
    forward_s = np.array([1.0, 2.0, 3.0])
    compute_s = np.stack([np.stack([forward_s, 2 * forward_s]) * pace for pace in (1, 2)], axis=1)
    zeros = np.zeros((2, 3, 3))
    fields = {
        "setting": Setting(),
        "device_types": TYPES,
        "compute_s": compute_s,
        "measured_s": np.zeros((2, 3)),
        "comm_bytes": zeros,
        "comm_calls": zeros,
        "dense_parameters": np.array([10.0, 20.0, 30.0]),
        "expert_parameters": np.zeros(3),
        "tied_parameters": 0.0,
        "saved_bytes": np.array([100.0, 200.0, 300.0]),
        "working_bytes": np.array([7.0, 5.0, 6.0]),
        "boundary_bytes": np.array([8.0, 16.0, 0.0]),
        "model_flops": np.ones(3),
        "has_ends": False,
    }
    return UnitTable(**{**fields, **changes})


def problem(unit_table: UnitTable | None = None, **stack: Any) -> Problem:
    """Returns the problem of one setting; gradients are not reduced unless the stack says so."""
    silent = {"gradient_exposed_fraction": 0.0, "step_s": 0.0, **stack}
    built = build_problem([unit_table or table()], two_speed_cluster(), tiny_stack(**silent), 2.0)
    return jax.tree.map(jnp.asarray, built)


def schedule(num_micro_batches: int = 2) -> ScheduleTable:
    """Returns 1F1B on two stages."""
    return build_table("1f1b", 2, num_micro_batches)


def strategy(num_micro_batches: int = 2, **changes: Any) -> Strategy:
    """Returns layers 0 and 1 on the first stage, 2 on the second; free links, fast devices."""
    held = peak_in_flight(schedule(num_micro_batches)).T
    fields = {
        "setting": np.int32(0),
        "first_unit": np.array([[0, 2]], np.int32),
        "end_unit": np.array([[2, 3]], np.int32),
        "has_type": np.array([[True, False], [True, False]]),
        "comm_s_per_byte": np.zeros((2, 3), np.float32),
        "comm_s_per_call": np.zeros((2, 3), np.float32),
        "gradient_s_per_byte": np.zeros((2, 2), np.float32),
        "gradient_s_per_call": np.zeros((2, 2), np.float32),
        "replica_s_per_byte": np.zeros((2, 2), np.float32),
        "replica_s_per_call": np.zeros((2, 2), np.float32),
        "transfer_s_per_byte": np.zeros((1, 2), np.float32),
        "transfer_s_per_call": np.zeros((1, 2), np.float32),
        "in_flight": held.astype(np.float32),
        "num_micro_batches": np.float32(num_micro_batches),
        "shards": np.float32(1),
        "expert_shards": np.float32(1),
        "zero_stage": np.int32(0),
        "ends_apart": np.bool_(True),
    }
    return jax.tree.map(jnp.asarray, Strategy(**{**fields, **changes}))
