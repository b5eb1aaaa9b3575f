"""Every model of the library under every kind of setting; what must always hold."""

from dataclasses import fields
from itertools import product

import numpy as np
import pytest
from builders import tiny_stack
from hypothesis import given
from hypothesis import strategies as st

from apss_jax.datasheet.grid import grid_of
from apss_jax.datasheet.table import UnitTables, unit_table
from apss_jax.datasheet.tensor_links import TensorLinks
from apss_jax.importers.clusters import load_cluster, load_stack
from apss_jax.importers.load import list_models, load_model
from apss_jax.schema.model import Model
from apss_jax.schema.tables import Setting, UnitTable
from apss_jax.schema.workload import Workload

CLUSTER = load_cluster("2x8xH100+1x4xA100")
STACK = load_stack("megatron")
SETTINGS = [
    Setting(*degrees, micro_batch, recompute, sequence_parallel)
    for degrees in ((1, 1, 1), (2, 1, 1), (8, 2, 4))
    for micro_batch in (1, 4)
    for recompute in ("none", "selective", "full")
    for sequence_parallel in (False, True)
]
FIGURES = [field.name for field in fields(UnitTable) if "ndarray" in str(field.type)]
DESCRIBED = [name for name in list_models() if load_model(name).table is None]


def tables(model: Model, settings: list[Setting], seq_len: int = 4096) -> list[UnitTable]:
    """Returns the tables of a model on a mixed cluster."""
    workload = Workload(global_batch=64, seq_len=min(seq_len, model.max_seq_len or seq_len))
    return UnitTables(model, CLUSTER, workload, STACK).tables(settings)


@pytest.mark.parametrize("name", DESCRIBED)
def test_library_models_have_finite_tables(name: str) -> None:
    """No figure is negative, infinite or missing, and layers take time on every device type."""
    model = load_model(name)
    for found, figure in product(tables(model, SETTINGS), FIGURES):
        values = getattr(found, figure)
        assert np.isfinite(values).all()
        assert (values >= 0).all()
        assert (found.compute_s > 0).all()
        assert values.shape[-1] == model.num_layers + 2


@pytest.mark.parametrize("name", DESCRIBED)
def test_one_device_holds_the_whole_model(name: str) -> None:
    """Parameters add up to the exact count, the padding of the vocabulary apart."""
    model = load_model(name)
    found = tables(model, [Setting()])[0]
    held = found.dense_parameters.sum() + found.expert_parameters.sum()
    widest = max(model.hidden_size, model.embedding.width or 0)
    tables_of_tokens = 2 * 127 * widest + 127 * model.embedding.per_layer_size * model.num_layers
    trained = model.num_parameters + model.num_mtp_parameters
    assert 0 <= held - trained <= tables_of_tokens


def test_model_flops_are_six_n_and_attention() -> None:
    """Llama 3.1 8B: 6 (N - embedding) T + 12 L h s T (PaLM, arXiv 2204.02311, appendix B)."""
    model = load_model("llama-3.1-8b")
    tokens = 2 * 4096
    multiplied = model.num_parameters - 128256 * 4096 - 65 * 4096  # but table and norms
    expected = 6 * multiplied * tokens + 12 * 32 * 4096 * 4096 * tokens
    degrees = Setting(tensor_parallel=2, context_parallel=2, micro_batch=2, recompute="full")
    for found in tables(model, [Setting(micro_batch=2), degrees]):
        assert found.model_flops.sum() == pytest.approx(expected, rel=1e-12)


def test_a_mixture_of_experts_counts_what_a_token_uses() -> None:
    """Mixtral 8x7B: two of eight experts (3 matrices of 4096 x 14336) in 32 layers."""
    model = load_model("mixtral-8x7b")
    idle = 6 * 32 * 3 * 4096 * 14336
    used = model.num_parameters - idle - 32000 * 4096 - 65 * 4096
    expected = 4096 * (6 * used + 12 * 32 * 4096 * 4096)
    assert tables(model, [Setting()])[0].model_flops.sum() == pytest.approx(expected, rel=1e-12)


def test_many_settings_equal_one_at_a_time() -> None:
    """A batch of settings gives what each gives alone."""
    model = load_model("mixtral-8x7b")
    workload = Workload(global_batch=64, seq_len=4096)
    for found in tables(model, SETTINGS):
        alone = unit_table(model, CLUSTER, workload, STACK, found.setting)
        for figure in FIGURES:
            np.testing.assert_array_equal(getattr(found, figure), getattr(alone, figure))


def test_no_settings_give_no_tables() -> None:
    """An empty list is not an error."""
    assert tables(load_model("gpt2"), []) == []


@given(
    name=st.sampled_from(DESCRIBED),
    degrees=st.sampled_from([(1, 2), (2, 4), (4, 8)]),
    micro_batch=st.sampled_from([1, 2, 8]),
    recompute=st.sampled_from(["none", "selective", "full"]),
)
def test_more_tensor_ranks_never_compute_or_hold_more(
    name: str, degrees: tuple[int, int], micro_batch: int, recompute: str
) -> None:
    """Doubling the degree raises neither time nor memory of any unit."""
    few, many = tables(
        load_model(name),
        [Setting(t, micro_batch=micro_batch, recompute=recompute) for t in degrees],
    )
    assert (many.compute_s <= few.compute_s * (1 + 1e-12)).all()
    # A wider padding of the vocabulary may hold a little more in sum, never on one device.
    assert (many.dense_parameters <= few.dense_parameters).all()
    assert (many.saved_bytes <= few.saved_bytes).all()


@given(
    name=st.sampled_from(DESCRIBED),
    setting=st.sampled_from(SETTINGS),
    host_s=st.sampled_from([0.0, 1e-3]),
)
def test_a_larger_micro_batch_never_costs_less_nor_more_per_sample(
    name: str, setting: Setting, host_s: float
) -> None:
    """Its time grows, collectives included, and at most in proportion."""
    larger = Setting(**{**setting.__dict__, "micro_batch": 2 * setting.micro_batch})
    stack = tiny_stack(cpu_forward_s=host_s, kernel_s=1e-5)
    workload = Workload(global_batch=64, seq_len=512)
    found = UnitTables(load_model(name), CLUSTER, workload, stack).tables([setting, larger])
    grid = grid_of([setting, larger], workload.seq_len, workload.precision)
    moved, calls = (np.stack([getattr(t, n) for t in found]) for n in ("comm_bytes", "comm_calls"))
    links = TensorLinks(CLUSTER, stack)
    for unit in range(found[0].num_units):
        comm_s = links.seconds(moved[..., unit], calls[..., unit], grid)
        one_s, two_s = np.stack([t.compute_s[..., unit] for t in found]) + comm_s
        assert (two_s >= one_s * (1 - 1e-12)).all()
        assert (two_s <= 2 * one_s * (1 + 1e-12)).all()
    np.testing.assert_allclose(found[1].saved_bytes, 2 * found[0].saved_bytes)
