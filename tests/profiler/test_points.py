"""Points come in the order in which a planner learns most from them."""

import pytest
from builders import tiny_model

from apss_jax.importers.load import load_model
from profiler.points import Axes, at_most_tokens, axes_of, halving, planned, subjects_of

AXES = Axes((1, 2, 4, 8), (512, 1024, 2048), (1, 2), ("bf16",), ("none", "full"))


@pytest.mark.parametrize(
    ("values", "order"),
    [((), ()), ((1,), (1,)), ((1, 2), (1, 2)), ((1, 2, 4, 8, 16), (1, 16, 4, 2, 8))],
)
def test_ends_come_first_then_the_middle(values: tuple[int, ...], order: tuple[int, ...]) -> None:
    """What lies between two measured points is interpolated; what lies beyond is guessed."""
    assert tuple(halving(values)) == order


def test_the_first_point_is_a_whole_layer_at_its_smallest() -> None:
    """With one point measured, all layers of the model have it."""
    first, *_ = planned(subjects_of(load_model("gpt2")), AXES)
    assert first.key == ("gpt2 layer", 1, 1, 512, "bf16", "none")


def test_every_kind_has_a_point_before_any_has_two() -> None:
    """A short run has a layer, both ends and an update: all that a step is made of."""
    points = planned(subjects_of(load_model("gpt2")), AXES)
    parts = [point.subject.shape.part for point in points[:4]]
    assert parts == ["layer", "head", "embedding", "optimizer"]


def test_every_point_comes_once() -> None:
    """Layers with recomputation, ends and halves without it, one update of the optimizer."""
    points = planned(subjects_of(load_model("gpt2")), AXES)
    grid = 4 * 3 * 2
    assert len({point.key for point in points}) == len(points) == 2 * grid + 4 * grid + 1


def test_ends_of_each_axis_come_before_its_middle() -> None:
    """Among layers without cuts: both micro-batches and both lengths before what is between."""
    points = [
        p
        for p in planned(subjects_of(load_model("gpt2")), AXES)
        if p.subject.is_whole_layer and p.tensor_parallel == 1 and p.recompute == "none"
    ]
    corners = {(p.micro_batch, p.seq_len) for p in points[:3]}
    assert corners == {(1, 512), (8, 512), (1, 2048)}


def test_all_kinds_of_a_model_are_subjects() -> None:
    """Layers, both ends, the optimizer, attention, feed-forward parts and experts."""
    names = [subject.name for subject in subjects_of(load_model("deepseek-v2-lite"))]
    assert names == [
        "deepseek-v2-lite layer 1", "deepseek-v2-lite layer 2", "deepseek-v2-lite head",
        "deepseek-v2-lite embedding", "deepseek-v2-lite optimizer",
        "deepseek-v2-lite latent attention", "deepseek-v2-lite mlp", "deepseek-v2-lite experts",
    ]  # fmt: skip


def test_a_table_of_layers_has_no_subjects() -> None:
    """Its rows are measured already."""
    assert subjects_of(load_model("transgan-amp")) == []


def test_large_micro_batches_are_left_out() -> None:
    """A limit of tokens holds for every point, the optimizer's apart, which has none."""
    points = at_most_tokens(planned(subjects_of(tiny_model()), AXES), 2048)
    assert max(point.tokens for point in points) == 2048


def test_flags_replace_the_usual_grid() -> None:
    """What is given counts, the rest is usual for the device; lengths stay within the model's."""
    given = axes_of(
        [load_model("gpt2")], on_cpu=False, precision=(), recompute=("none",), seq_len=(),
        micro_batch=(3,), tp=(),
    )  # fmt: skip
    assert (given.micro_batches, given.seq_lens, given.recomputes) == ((3,), (1024,), ("none",))
