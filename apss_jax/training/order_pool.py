"""Mixed clusters that the order head learns on, with the best order known of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Float64, Int, Int32

from apss_jax.partitioning.joint import JointInstance
from apss_jax.partitioning.portfolio import arranged, block_orders, scored_orders
from apss_jax.policy.placements import PlacementInput, placement_inputs
from apss_jax.training.placements import MIXES, Mix, draw_placements
from apss_jax.training.steps import keep_best

# Simulated steps: for the label of a problem, and for the cuts of one order.
LABEL_BUDGET = 2000
CUT_EVALUATIONS = 40


@dataclass(frozen=True)
class OrderPoolPlan:
    """How many problems of how many stages one pool holds; all are padded to one size."""

    counts: tuple[tuple[tuple[int, int], int], ...]
    size: tuple[int, int, int]
    batch: int


@dataclass(eq=False)
class OrderPool:
    """Problems of one padded size; `elite_orders` and `elite_s` change as better ones are found."""

    instances: list[JointInstance]
    inputs: PlacementInput
    elite_orders: Int32[np.ndarray, "batch stages"]
    elite_s: Float64[np.ndarray, "batch"]

    def __len__(self) -> int:
        return len(self.instances)

    def input(self, rows: Int[np.ndarray, "_"]) -> PlacementInput:
        """Returns some of the problems as the network sees them."""
        return jax.tree.map(lambda values: values[rows], self.inputs)

    def costs_s(
        self, rows: Int[np.ndarray, "_"], orders: Int[np.ndarray, "_ samples stages"]
    ) -> Float64[np.ndarray, "_ samples"]:
        """Returns the step with each order, its cuts exact and then briefly searched."""
        found = np.array(
            [
                order_costs_s(self.instances[row], some[:, : self.instances[row].num_stages])
                for row, some in zip(rows.tolist(), orders, strict=True)
            ]
        )
        keep_best(self.elite_orders, self.elite_s, rows, orders, found)
        return found


def build_order_pool(
    plan: OrderPoolPlan, seed: int, mixes: tuple[Mix, ...] = MIXES, *, budget: int = LABEL_BUDGET
) -> OrderPool:
    """Returns the pool of a plan; problems that no order fits are left out.

    `budget` is how many steps are simulated for the label of each.
    """
    drawn = [
        placement.instance
        for stages, count in plan.counts
        for placement in draw_placements(count, seed, stages=stages, mixes=mixes)
    ]
    found = [arranged(instance, budget=budget) for instance in drawn]
    kept = [(each, best) for each, best in zip(drawn, found, strict=True) if best is not None]
    instances = [instance for instance, _ in kept]
    inputs, _ = placement_inputs(instances, plan.size)
    orders = padded_orders([best.order for _, best in kept], plan.size[0])
    step_s = np.array([best.objective_s for _, best in kept])
    return OrderPool(instances, inputs, orders, step_s)


def order_costs_s(
    instance: JointInstance, orders: Int[np.ndarray, "samples stages"]
) -> Float64[np.ndarray, "samples"]:
    """Returns the step with each order; equal ones are looked at once."""
    different, place = np.unique(orders, axis=0, return_inverse=True)
    found_s, _ = scored_orders(instance, different.astype(np.int64), CUT_EVALUATIONS)
    return found_s[place.reshape(-1)]


def usual_orders(
    instance: JointInstance, count: int, rng: np.random.Generator
) -> Int[np.ndarray, "_ stages"]:
    """Returns orders to compare with: some with each type together, drawn from all of them."""
    blocks = block_orders(instance)
    return blocks[rng.integers(len(blocks), size=count)]


def padded_orders(
    orders: Sequence[Int[np.ndarray, "_"]], stages: int
) -> Int32[np.ndarray, "batch stages"]:
    """Returns orders of one length, the last type repeated."""
    rows = [np.pad(order, (0, stages - len(order)), mode="edge") for order in orders]
    return np.array(rows, np.int32).reshape(len(rows), stages)
