"""Multi-token prediction in a question: trained where the software has it, said in any case."""

import pytest
from builders import tiny_cluster, tiny_model

from apss_jax.importers.prediction import with_predictions
from apss_jax.planning.estimate import estimate_plan
from apss_jax.planning.inputs import Inputs, gather_inputs
from apss_jax.schema.layout import Layout

MODEL = with_predictions(tiny_model(), 1)


def inputs_under(stack: str) -> Inputs:
    """Returns the question under a stack."""
    return gather_inputs(MODEL, tiny_cluster(), global_batch=16, seq_len=64, stack=stack)


@pytest.mark.parametrize("stack", ["megatron", "nemo"])
def test_megatron_trains_it(stack: str) -> None:
    """Its layers stay in the model, and where they run is said."""
    found = inputs_under(stack)
    assert found.model.num_mtp_layers == 1
    assert "1 layer of multi-token prediction trained too, on the last stage with the head" in (
        found.assumptions
    )


@pytest.mark.parametrize("stack", ["generic", "deepspeed", "torchtitan", "maxtext", "jax"])
def test_other_software_leaves_it_out(stack: str) -> None:
    """Its layers are no part of the plan, and that is said with the stack's name."""
    found = inputs_under(stack)
    assert found.model.num_mtp_layers == found.model.num_mtp_parameters == 0
    assert any(f"left out: stack '{stack}' does not" in said for said in found.assumptions)


def test_a_plan_pays_for_it() -> None:
    """The last stage takes longer and holds more; the first one does not."""
    stages = [
        estimate_plan(
            model, tiny_cluster(), Layout(1, 2, 1), global_batch=16, seq_len=64,
            stack="megatron", split=[2, 2],
        ).plan.stages
        for model in (tiny_model(), MODEL)
    ]  # fmt: skip
    (first, last), (same, longer) = stages
    assert (first.forward_s, first.memory_bytes) == (same.forward_s, same.memory_bytes)
    assert longer.forward_s > last.forward_s
    assert longer.memory_bytes.weights > last.memory_bytes.weights


def test_a_model_without_it_says_nothing() -> None:
    """No assumption speaks of what the model does not have."""
    found = gather_inputs(tiny_model(), tiny_cluster(), global_batch=16, seq_len=64, stack="nemo")
    assert not any("prediction" in said for said in found.assumptions)
