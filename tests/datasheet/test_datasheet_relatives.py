"""Parts that were not measured: ratios to the datasheet come from measured ones of their kind."""

import pytest
from builders import tiny_cluster, tiny_layer, tiny_model, tiny_stack, tiny_workload

from apss_jax.datasheet.table import UnitTables
from apss_jax.planning.inputs import gather_inputs
from apss_jax.schema.cluster import ClusterProfile, LayerMeasurement, LayerShape
from apss_jax.schema.layers import Attention, DenseMlp, Layer, MoeMlp
from apss_jax.schema.model import Embedding, LayerRun, Model
from apss_jax.schema.tables import Setting, UnitTable

SEQ_LEN = 64


def layer_of(width: int) -> Layer:
    """Returns a layer whose weights grow with the square of its width."""
    mixer = Attention(num_heads=2, num_kv_heads=2, head_dim=width // 2)
    return tiny_layer(mixer=mixer, feed_forward=DenseMlp(intermediate_size=4 * width, gated=False))


def model_of(width: int, layer: Layer | None = None) -> Model:
    """Returns a model of one width."""
    one = layer or layer_of(width)
    return tiny_model(layer=one, hidden_size=width, embedding=Embedding(vocab_size=256))


def shape_of(width: int, layer: Layer | None = None) -> LayerShape:
    """Returns what a measurement of a model's layers names."""
    return LayerShape(part="layer", hidden_size=width, layer=layer or layer_of(width))


def table(model: Model, cluster: ClusterProfile, **setting: object) -> UnitTable:
    """Returns the table of one setting."""
    tables = UnitTables(model, cluster, tiny_workload(seq_len=SEQ_LEN), tiny_stack())
    return tables.tables([Setting(**setting)])[0]


def layer_s(model: Model, cluster: ClusterProfile | None = None) -> float:
    """Returns the forward time of a layer."""
    return float(table(model, cluster or tiny_cluster()).compute_s[0, 0, 1])


def slower(ratios: dict[int, float], **changes: object) -> ClusterProfile:
    """Returns a cluster on which layers of some widths took so many times their datasheet."""
    rows = [
        LayerMeasurement(**{
            "shape": f"layer {width}", "device_type": "ideal", "tensor_parallel": 1,
            "micro_batch": 1, "seq_len": SEQ_LEN, "precision": "bf16",
            "forward_s": ratio * layer_s(model_of(width)), **changes,
        })
        for width, ratio in ratios.items()
    ]  # fmt: skip
    shapes = {f"layer {width}": shape_of(width) for width in ratios}
    return tiny_cluster(shapes=shapes, measurements=tuple(rows))


@pytest.mark.parametrize(
    ("width", "ratio"),
    [(8, 1.1), (16, 1.2), (32, 1.3), (4, 1.1), (128, 1.3)],
)
def test_other_widths_take_the_ratios_of_measured_ones(width: int, ratio: float) -> None:
    """16 lies half way from 8 to 32; below and beyond them the nearest ratio holds."""
    cluster = slower({8: 1.1, 32: 1.3})
    assert layer_s(model_of(width), cluster) == pytest.approx(ratio * layer_s(model_of(width)))


@pytest.mark.parametrize(("width", "measured"), [(8, True), (16, False)])
def test_only_the_measured_shape_counts_as_measured(width: int, measured: bool) -> None:
    """A ratio that was carried over is no measurement of the plan's own layers."""
    found = table(model_of(width), slower({8: 1.1, 32: 1.3}))
    assert bool(found.measured_s[0, 1] > 0) == measured


def test_another_kind_of_layer_says_nothing() -> None:
    """Experts keep the datasheet's time where dense layers alone were measured."""
    experts = MoeMlp(num_experts=4, experts_per_token=2, expert_intermediate_size=32, gated=False)
    model = model_of(16, layer_of(16).model_copy(update={"feed_forward": experts}))
    cluster = slower({8: 1.1, 32: 1.3})
    assert layer_s(model, cluster) == layer_s(model)


def test_times_with_and_without_collectives_do_not_mix() -> None:
    """Where some times contain their collectives, the ratios of these alone are taken."""
    alone = slower({8: 1.1, 32: 1.3}, tensor_parallel=2)
    first, second = alone.measurements
    rows = (first, second.model_copy(update={"tensor_comm_included": True}))
    mixed = alone.model_copy(update={"measurements": rows})
    found = table(model_of(16), mixed, tensor_parallel=2)
    only = alone.model_copy(update={"measurements": rows[1:]})
    expected = table(model_of(16), only, tensor_parallel=2)
    assert found.compute_s[0, 0, 1] == expected.compute_s[0, 0, 1]
    assert not found.comm_bytes[:, 0, 1].any()


@pytest.mark.parametrize(("part", "unit"), [("embedding", 0), ("head", -1)])
def test_ends_take_the_ratios_of_other_vocabularies(part: str, unit: int) -> None:
    """A head of twice the words is as much slower than its datasheet as the measured one."""
    ends = [tiny_model(embedding=Embedding(vocab_size=words)) for words in (256, 512)]
    plain_s = [float(table(one, tiny_cluster()).compute_s[0, 0, unit]) for one in ends]
    row = LayerMeasurement(
        shape="end", device_type="ideal", tensor_parallel=1, micro_batch=1, seq_len=SEQ_LEN,
        precision="bf16", forward_s=1.25 * plain_s[0],
    )  # fmt: skip
    shape = LayerShape(part=part, hidden_size=8, vocab_size=256)
    cluster = tiny_cluster(shapes={"end": shape}, measurements=(row,))
    found = table(ends[1], cluster).compute_s[0, 0, unit]
    assert found == pytest.approx(1.25 * plain_s[1])


def test_kept_bytes_are_carried_over_too() -> None:
    """A layer that keeps half of what is counted does so at another width."""
    counted = [table(model_of(width), tiny_cluster()).saved_bytes[1] for width in (8, 16)]
    cluster = slower({8: 1.0}, saved_bytes=round(counted[0] / 2))
    found = table(model_of(16), cluster).saved_bytes[1]
    assert found == pytest.approx(counted[1] / 2, rel=1e-3)


def test_the_assumptions_name_what_was_carried_over() -> None:
    """A person reads which measured shapes stand for the model's, and on which devices."""
    cluster = slower({8: 1.1, 32: 1.3})
    said = [_said(model_of(width), cluster) for width in (8, 16)]
    assert said[0] == []
    assert said[1] == [
        "1 of 3 kinds of layers and ends were not measured on ideal: the datasheet's times, with "
        "the measured ratios of layer 8, layer 32"
    ]


def _said(model: Model, cluster: ClusterProfile) -> list[str]:
    found = gather_inputs(model, cluster, global_batch=4, seq_len=SEQ_LEN, stack=tiny_stack())
    return [text for text in found.assumptions if "not measured on" in text]


def test_layers_of_several_kinds_are_each_looked_up() -> None:
    """Of two layers one was measured: it keeps its time, the other takes its ratio."""
    wide = layer_of(8).model_copy(
        update={"feed_forward": DenseMlp(intermediate_size=64, gated=False)}
    )
    runs = (LayerRun(repeat=1, layer=layer_of(8)), LayerRun(repeat=1, layer=wide))
    model = tiny_model(layers=runs)
    plain = table(model, tiny_cluster()).compute_s[0, 0]
    found = table(model, slower({8: 1.2})).compute_s[0, 0]
    assert found[1:3] == pytest.approx(1.2 * plain[1:3])
