"""The first plan of many searches in every format: every figure as planned, or a rule's name."""

from collections.abc import Sequence
from typing import Any

import pytest
from export_checks import CHECKS
from grid import BATCHES, CLUSTERS, EXPORTED, GRID, MODELS, THIRD, Cell, export_first_plan
from planned import launch_of_split

from apss_jax.exporters.formats import FORMATS, export_files
from apss_jax.importers.clusters import load_cluster
from apss_jax.importers.prediction import with_predictions
from apss_jax.legality.launch import Launch

FEW: list[Cell] = [
    ("llama-3.1-8b", CLUSTERS[2], 128),
    ("qwen3-30b-a3b", CLUSTERS[1], 128),
    ("gpt2", CLUSTERS[3], 24),
]


@pytest.mark.parametrize("cell", FEW)
def test_a_few_plans_go_everywhere(cell: Cell) -> None:
    """Each format takes the plan, every figure in it the plan's, or names the rule."""
    found = export_first_plan(cell)
    assert found is not None
    assert set(found) == set(FORMATS)
    assert EXPORTED in found.values()


@pytest.mark.slow
@pytest.mark.parametrize("cell", THIRD)
def test_every_plan_goes_everywhere(cell: Cell) -> None:
    """25 models on 6 clusters, a batch each: exported with every layer, or refused by name."""
    found = export_first_plan(cell)
    assert found is None or set(found) == set(FORMATS)


def test_the_grid_is_what_it_says() -> None:
    """25 models, 6 clusters with mixed ones among them, 3 batches; a third of it in tests."""
    assert (len(set(MODELS)), len(set(CLUSTERS)), len(set(BATCHES))) == (25, 6, 3)
    assert sum(len(load_cluster(name).used_types) > 1 for name in CLUSTERS) >= 3
    assert (len(set(GRID)), len(set(THIRD))) == (450, 150)
    assert {(model, cluster) for model, cluster, _ in THIRD} == {cell[:2] for cell in GRID}
    assert {batch for _, _, batch in THIRD} == set(BATCHES)


def test_every_format_is_checked() -> None:
    """No format is without a check."""
    assert list(CHECKS) == list(FORMATS)


PLAN: dict[str, Any] = {
    "split": (4, 4),
    "tensor_parallel": 4,
    "data_parallel": 6,
    "micro_batch": 5,
    "num_micro_batches": 12,
    "zero_stage": 1,
}
WHOLE: dict[str, Any] = {**PLAN, "zero_stage": 0}
UNEVEN: dict[str, Any] = {**PLAN, "split": (3, 5)}
# Of each format: a plan that it takes, and others, for which the same files would be wrong.
OTHERS: dict[str, dict[str, Any]] = {
    "tensor": {"tensor_parallel": 2},
    "data": {"data_parallel": 3},
    "micro-batch": {"micro_batch": 6},
    "micro-batches": {"num_micro_batches": 6},
    "tensor and data": {"tensor_parallel": 6, "data_parallel": 4},
    "stages": {"split": (2, 2, 2, 2), "data_parallel": 3},
    "cut": {"split": (2, 6)},
    "sequence": {"seq_len": 1024},
    "recomputation": {"recompute": "full"},
    "chunks": {"split": (2, 2, 2, 2), "chunks": 2},
    "context": {"context_parallel": 2, "data_parallel": 3},
    "sharding": {"zero_stage": 3},
    "sequence parallel": {"sequence_parallel": True},
    "prediction": {"predictions": 1},
    "precision": {"precision": "fp32"},
}
# What files do not say: rules refuse it, the user's own code decides it, or (MaxText, activations
# over tensor ranks) the framework always does it.
UNSAID = {
    "deepspeed": {"sequence", "context", "sequence parallel", "prediction", "chunks"},
    "torchtitan": {"prediction"},
    "maxtext": {"prediction", "sequence parallel"},
    "jax": {"prediction"},
}
PLANS = {"torchtitan": WHOLE, "maxtext": PLAN, "jax": PLAN}


def launch(plan: dict[str, Any]) -> Launch:
    """Returns a plan made for Megatron, with or without layers of prediction."""
    fields = {"stack": "megatron", **plan}
    split: Sequence[int] = fields.pop("split")
    predictions = fields.pop("predictions", 0)
    made = launch_of_split(split, **fields)
    assert made.model is not None
    return Launch(made.plan, with_predictions(made.model, predictions), made.cluster)


CASES = [(name, other) for name in FORMATS for other in OTHERS if other not in UNSAID.get(name, ())]


@pytest.mark.parametrize(("name", "other"), CASES)
def test_a_check_sees_another_plan(name: str, other: str) -> None:
    """Files that pass for their own plan fail for one that differs in a single thing."""
    plan = PLANS.get(name, UNEVEN)
    files, refused = export_files(launch(plan), name)
    assert refused == ()
    CHECKS[name](files, launch(plan))
    with pytest.raises(AssertionError):
        CHECKS[name](files, launch({**plan, **OTHERS[other]}))
