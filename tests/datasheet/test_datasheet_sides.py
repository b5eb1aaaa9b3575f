"""What runs beside the layers: multi-token prediction with the head, towers with the embedding."""

import numpy as np
import pytest
from builders import tiny_cluster, tiny_layer, tiny_model, tiny_stack, tiny_workload

from apss_jax.datasheet.table import unit_table
from apss_jax.importers.prediction import with_predictions
from apss_jax.schema.cluster import ClusterProfile, LayerMeasurement, LayerShape
from apss_jax.schema.model import Head, LayerRun, Model, Tower
from apss_jax.schema.tables import Setting, UnitTable

TOKENS = 64
HIDDEN = 8
FLOPS, MEMORY = 100e12, 1000e9
PLAIN = tiny_model()
PREDICTING = with_predictions(PLAIN, 2)
TOWER = Tower(name="v", hidden_size=8, tokens_per_sequence=64, layers=PLAIN.layers)
COSTS = ("compute_s", "dense_parameters", "saved_bytes", "model_flops")


def table(model: Model, cluster: ClusterProfile | None = None) -> UnitTable:
    """Returns the table of a model for single sequences of 64 tokens."""
    return unit_table(model, cluster or tiny_cluster(), tiny_workload(), tiny_stack(), Setting())


def added(name: str, model: Model = PREDICTING) -> np.ndarray:
    """Returns what a model's sides add to a column, per unit."""
    return getattr(table(model), name) - getattr(table(PLAIN), name)


@pytest.mark.parametrize("name", COSTS)
def test_prediction_is_work_of_the_last_unit(name: str) -> None:
    """Two layers of prediction make the head more expensive, and no other unit."""
    more = added(name)
    assert np.all(more[..., :-1] == 0)
    assert np.all(more[..., -1] > 0)


def test_prediction_by_hand() -> None:
    """Each adds a layer, a loss, a look-up, and a projection from twice the width."""
    plain = table(PLAIN).compute_s[0, 0]
    lookup_s = 4 * 2 * TOKENS * HIDDEN / MEMORY
    projection_s = 2 * TOKENS * 2 * HIDDEN * HIDDEN / FLOPS
    one_s = plain[1] + plain[-1] + lookup_s + projection_s
    assert added("compute_s")[0, 0, -1] == pytest.approx(2 * one_s)


def test_prediction_holds_its_own_parameters() -> None:
    """What the last device holds more is what the model says, the shared matrices left out."""
    assert added("dense_parameters")[-1] == PREDICTING.num_mtp_parameters
    layer = 8 * 24 + 8 * 8 + 8 * 32 + 32 * 8 + 2 * 8
    assert PREDICTING.num_mtp_parameters == 2 * (layer + 2 * 8 * 8 + 3 * 8)


def test_prediction_looks_tokens_up_where_the_head_is() -> None:
    """A head apart from the embedding holds the token table again, tied or not."""
    tied = tiny_model(head=Head(tied=True))
    copies = [
        table(m).tied_parameters for m in (PLAIN, PREDICTING, tied, with_predictions(tied, 1))
    ]
    assert copies == [0, 256 * HIDDEN, 256 * HIDDEN, 256 * HIDDEN]


def test_prediction_may_differ_from_every_layer() -> None:
    """A kind of layer that the decoder has nowhere is costed all the same."""
    wide = LayerRun(layer=tiny_layer(num_norms=4))
    other = tiny_model(mtp_layers=(wide,))
    alike = tiny_model(mtp_layers=(LayerRun(layer=tiny_layer()),))
    assert table(other).compute_s[0, 0, -1] > table(alike).compute_s[0, 0, -1]
    np.testing.assert_array_equal(
        table(other).compute_s[..., :-1], table(PLAIN).compute_s[..., :-1]
    )


def measured(part: str, forward_s: float) -> ClusterProfile:
    """Returns the tiny cluster with one end measured."""
    row = LayerMeasurement(
        shape="end", device_type="ideal", tensor_parallel=1, micro_batch=1, seq_len=64,
        precision="bf16", forward_s=forward_s, backward_s=2 * forward_s,
    )  # fmt: skip
    shape = LayerShape(part=part, hidden_size=8, vocab_size=256)  # type: ignore[arg-type]
    return tiny_cluster(shapes={"end": shape}, measurements=(row,))


@pytest.mark.parametrize(
    ("part", "unit", "sides", "losses"),
    [("head", -1, PREDICTING, 2), ("embedding", 0, tiny_model(towers=(TOWER,)), 0)],
)
def test_a_measured_end_has_its_sides_beside_it(
    part: str, unit: int, sides: Model, losses: int
) -> None:
    """An end that was measured keeps its time; what runs beside it is added as it was.

    Each prediction has a loss of its own, which the measured head is, too.
    """
    computed_s = float(table(PLAIN).compute_s[0, 0, unit])
    beside_s = added("compute_s", sides)[0, 0, unit] - losses * computed_s
    own_s = 1.2 * computed_s
    found = table(sides, measured(part, own_s))
    assert found.compute_s[0, 0, unit] == pytest.approx((1 + losses) * own_s + beside_s)
    assert found.measured_s[0, unit] == 0.0
    assert table(PLAIN, measured(part, own_s)).measured_s[0, unit] > 0.0
