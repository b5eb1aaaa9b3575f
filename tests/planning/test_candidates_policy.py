"""The policy's bounds hold for every partition, and its reasons drop what they say."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from legality_problems import NEW, cluster_of, dense_layer, facts, layout, model_of

from apss_jax.legality.facts import Facts
from apss_jax.planning.candidates import NEAREST, all_candidates, find_candidates
from apss_jax.planning.heuristics import REASONS, Bounds, View, beaten, propose
from apss_jax.schema.cluster import ClusterProfile
from apss_jax.schema.layout import Layout, Layouts
from apss_jax.schema.stack import Stack
from apss_jax.schema.tables import Setting, UnitTable

STACK = Stack(name="generic", source="test", reserved_bytes=1e9)
BYTES_EACH = 2 + 4 + 12  # weight, gradient, optimizer
LAYERS = 4
CLUSTER = cluster_of(4, 4)
MODEL = model_of(dense_layer(8, width=512), repeat=LAYERS)


def table(
    setting: Setting,
    parameters: Sequence[float] = (1e8, 1e9, 1e9, 1e9, 1e9, 1e8),
    saved_bytes: Sequence[float] = (0.0, 1e9, 1e9, 1e9, 1e9, 1e9),
    seconds: Sequence[float] = (0.1, 1.0, 1.0, 1.0, 1.0, 0.5),
) -> UnitTable:
    """Returns a table that scales as parallelism does: per rank, and per sample."""
    ranks = setting.tensor_parallel * setting.context_parallel
    kept = {"none": 1.0, "selective": 1.0, "full": 0.1}[setting.recompute]
    passes = np.array([1.0, 2.0 if setting.recompute != "full" else 3.0])[:, None, None]
    zeros = np.zeros((2, 3, len(parameters)))
    samples = setting.micro_batch / ranks
    return UnitTable(
        setting=setting,
        device_types=("new",),
        compute_s=passes * np.array(seconds) * samples * 1e-3,
        measured_s=np.zeros((1, len(parameters))),
        comm_bytes=zeros,
        comm_calls=zeros,
        dense_parameters=np.array(parameters) / setting.tensor_parallel,
        expert_parameters=np.zeros(len(parameters)),
        tied_parameters=0.0,
        saved_bytes=kept * np.array(saved_bytes) * samples,
        working_bytes=np.zeros(len(parameters)),
        boundary_bytes=np.zeros(len(parameters)),
        model_flops=np.ones(len(parameters)),
        has_ends=True,
    )


def tables(settings: Sequence[Setting]) -> list[UnitTable]:
    """Returns the tables of the usual small model."""
    return [table(setting) for setting in settings]


def problem(batch: int = 8, cluster: ClusterProfile = CLUSTER) -> Facts:
    """Returns the facts of the small model: 4 layers and two ends."""
    return facts(MODEL, cluster, batch=batch, seq_len=64)


def bounds(about: Facts | None = None, cluster: ClusterProfile = CLUSTER) -> Bounds:
    """Returns bounds over the small model's tables."""
    return Bounds.of(about or problem(), cluster, STACK, tables, 2.0)


def view(*layouts: Layout, about: Facts | None = None) -> View:
    """Returns layouts with their figures."""
    return bounds(about).look_at(Layouts.of(list(layouts)))


def dropped_by(*layouts: Layout, about: Facts | None = None) -> dict[str, int]:
    """Returns how many of the layouts each reason drops."""
    _, counts = propose(view(*layouts, about=about))
    return {name: count for name, count in counts.items() if count}


def partitions(units: int, stages: int) -> Iterator[list[slice]]:
    """Yields every way to cut units into non-empty stages."""
    for cuts in combinations(range(1, units), stages - 1):
        ends = [0, *cuts, units]
        yield [slice(ends[i], ends[i + 1]) for i in range(stages)]


UNITS = st.lists(st.floats(0.1, 10.0), min_size=6, max_size=6)


def seen(one: Layout, values: Sequence[Sequence[float]]) -> View:
    """Returns the view of one layout of a model with random units."""
    parameters, saved, seconds = values

    def random_tables(settings: Sequence[Setting]) -> list[UnitTable]:
        scaled = (np.array(parameters) * 1e8, np.array(saved) * 1e8)
        return [table(s, scaled[0].tolist(), scaled[1].tolist(), seconds) for s in settings]

    known = Bounds.of(problem(), CLUSTER, STACK, random_tables, 2.0)
    return known.look_at(Layouts.of([one]))


@given(parameters=UNITS, saved=UNITS, seconds=UNITS, stages=st.integers(1, 4),
       micro=st.sampled_from([1, 2, 4, 8]))  # fmt: skip
def test_memory_bound_holds_for_every_partition(
    parameters: list[float], saved: list[float], seconds: list[float], stages: int, micro: int
) -> None:
    """No partition's fullest stage needs less than the bound, under 1F1B's micro-batches held."""
    one = layout(1, stages, 1, micro_batch=micro, zero_stage=0)
    bound = seen(one, (parameters, saved, seconds)).lower_bytes[0]
    states, kept = np.array(parameters) * 1e8 * BYTES_EACH, np.array(saved) * 1e8 * micro
    held = [min(stages - s, 8 // micro) for s in range(stages)]
    least = min(
        max(states[part].sum() + kept[part].sum() * held[s] for s, part in enumerate(parts))
        for parts in partitions(6, stages)
    )
    assert bound <= (least + STACK.reserved_bytes) * (1 + 1e-9)
    if stages == 1:
        assert bound == pytest.approx(least + STACK.reserved_bytes)


@given(parameters=UNITS, saved=UNITS, seconds=UNITS, stages=st.integers(1, 4),
       micro=st.sampled_from([1, 2, 4, 8]))  # fmt: skip
def test_step_bound_holds_for_every_partition(
    parameters: list[float], saved: list[float], seconds: list[float], stages: int, micro: int
) -> None:
    """Every stage waits for the ones before it, works on all micro-batches, then updates."""
    one = layout(1, stages, 1, micro_batch=micro, zero_stage=0)
    step = seen(one, (parameters, saved, seconds)).step
    time_s = 3e-3 * micro * np.array(seconds)
    update_s = np.array(parameters) * 1e8 * 34 / (NEW.memory_bytes_per_s * 0.8)
    count = 8 // micro

    def step_s(parts: list[slice]) -> float:
        before_s = np.cumsum([0.0] + [time_s[part].sum() for part in parts])
        ends = [
            before_s[s] + count * time_s[part].sum() + update_s[part].sum()
            for s, part in enumerate(parts)
        ]
        return max(ends)

    least = min(step_s(parts) for parts in partitions(6, stages))
    assert step.lower_s[0] <= least * (1 + 1e-9)
    assert step.work_s[0] <= step.filled_s[0] <= step.layer_comm_s[0] <= step.lower_s[0]


def test_bounds_of_one_stage_are_exact() -> None:
    """4.2e9 parameters of 18 bytes, 5e9 bytes saved, 1e9 reserved; 8 x 4.6 x 3 ms and update."""
    one = view(layout(1, 1, 1, zero_stage=0))
    assert one.lower_bytes[0] == pytest.approx(4.2e9 * 18 + 5e9 + 1e9)
    assert one.step.filled_s[0] == pytest.approx(8 * 4.6 * 3e-3)
    assert one.step.lower_s[0] == pytest.approx(8 * 4.6 * 3e-3 + 4.2e9 * 34 / 1.6e12)


def test_one_micro_batch_fills_nothing() -> None:
    """With a single micro-batch the stages run one after the other, however many there are."""
    times = view(*(layout(1, stages, 1, micro_batch=8) for stages in (1, 2, 5))).step.filled_s
    assert times == pytest.approx([8 * 4.6 * 3e-3] * 3)


def test_bubble_is_counted_for_plain_schedules_alone() -> None:
    """8 micro-batches on 4 stages: work / 4 when interleaved, / (8 (1 - (7/8)^4)) x 8 in order."""
    chunked = layout(1, 4, 1, virtual_stages=2, schedule="interleaved_1f1b")
    plain, interleaved = view(layout(1, 4, 1), chunked).step.filled_s
    assert interleaved == pytest.approx(8 * 4.6 * 3e-3 / 4)
    assert plain == pytest.approx(4.6 * 3e-3 / (1 - (7 / 8) ** 4))


def test_slow_devices_count_when_all_are_needed() -> None:
    """With one device per stage, a cluster of one type gives the whole work over the stages."""
    mixed = facts(MODEL, cluster_of(1, 1, types="no"), batch=8, seq_len=64, precision="fp16")

    def two_types(settings: Sequence[Setting]) -> list[UnitTable]:
        plain = tables(settings)
        both = [np.concatenate([t.compute_s, 3 * t.compute_s], axis=1) for t in plain]
        return [
            replace(t, compute_s=c, device_types=("new", "old"), measured_s=0 * c[0])
            for t, c in zip(plain, both, strict=True)
        ]

    known = Bounds.of(mixed, cluster_of(1, 1, types="no"), STACK, two_types, 2.0)
    step = known.look_at(Layouts.of([layout(1, 2, 1), layout(1, 1, 1)])).step
    whole_s = 4.6 * 3e-3
    assert step.work_s == pytest.approx([8 * whole_s / (1 + 1 / 3), 8 * whole_s])


def test_memory_lower_bound_drops_what_cannot_fit() -> None:
    """4.2e9 x 18 bytes fill an 80 GB device with its margin; two tensor ranks halve that."""
    assert dropped_by(layout(1), layout(2)) == {"memory_lower_bound": 1}


def test_optimizer_is_sharded_where_it_can_be() -> None:
    """ZeRO 0 is dropped beside ZeRO 1, kept alone or where nothing is shared."""
    pair = [layout(4, 1, 2, zero_stage=stage) for stage in (0, 1)]
    assert dropped_by(*pair) == {"unsharded_optimizer": 1}
    assert dropped_by(pair[0]) == {}
    assert dropped_by(layout(4, zero_stage=0), pair[1]) == {}


def test_an_unsharded_optimizer_is_kept_where_more_of_its_gradients_are_hidden() -> None:
    """A stack that hides more of the reduction under ZeRO 0 may be faster with it."""
    stack = STACK.model_copy(update={"replica_exposed_fraction": 0.1})
    known = Bounds.of(problem(), CLUSTER, stack, tables, 2.0)
    rows = [layout(4, 1, 2, zero_stage=stage) for stage in (0, 1)]
    kept, _ = propose(known.look_at(Layouts.of(rows)))
    assert len(kept.layouts) == 2


def test_sharding_is_dropped_where_less_fits() -> None:
    """On 2 x 4 ranks ZeRO 1 surely fits, so 2 and, with 16 micro-batches, 3 only cost."""
    stages = [layout(4, 1, 2, zero_stage=stage) for stage in (1, 2, 3)]
    assert dropped_by(*stages, about=problem(batch=32)) == {"needless_sharding": 2}


def test_sharding_is_kept_where_less_does_not_fit() -> None:
    """4.2e9 x (6 + 12 / 2) bytes and 5 samples of 5 GB exceed 80 GB with its margin; x 9 do not."""
    stages = [layout(1, 1, 2, micro_batch=5, zero_stage=stage) for stage in (1, 3)]
    assert dropped_by(*stages, about=problem(batch=40)) == {"memory_lower_bound": 1}


@pytest.mark.parametrize("exposed", [0.1, 1.0])
def test_zero3_is_kept_where_it_may_be_faster(exposed: float) -> None:
    """One micro-batch: what is surely exposed of 2 x 2 + 4 bytes, against all of 4 + 2."""
    stack = STACK.model_copy(update={"gradient_exposed_fraction": exposed})
    known = Bounds.of(problem(), CLUSTER, stack, tables, 2.0)
    rows = [layout(4, 1, 2, micro_batch=4, zero_stage=stage) for stage in (1, 3)]
    kept, _ = propose(known.look_at(Layouts.of(rows)))
    assert len(kept.layouts) == (2 if exposed * (2 * 2 + 4) < 4 + 2 else 1)


def test_recomputation_is_dropped_where_none_fits() -> None:
    """Whatever fits without recomputation is not recomputed; selective saves nothing here."""
    kinds = [layout(4, 1, 1, recompute=kind) for kind in ("none", "selective", "full")]
    assert dropped_by(*kinds) == {"needless_recompute": 2}


def test_recomputation_is_kept_where_none_may_not_fit() -> None:
    """Two stages hold 37.8 GB of states each if even, and stage 0 twice 10 GB of activations."""
    kinds = [layout(1, 2, 1, micro_batch=4, recompute=kind) for kind in ("none", "full")]
    assert dropped_by(*kinds) == {}


def test_pinned_recomputation_is_kept() -> None:
    """Where no other recomputation is listed, nothing is needless."""
    assert dropped_by(layout(4, 1, 1, recompute="full")) == {}


def test_context_groups_give_way_to_whole_sequences() -> None:
    """Context 2 with an even micro-batch is data 2 with half of it; with an odd one it is not."""
    rows = [layout(4, context_parallel=2, micro_batch=size) for size in (2, 1)]
    assert dropped_by(*rows) == {"needless_context": 1}
    _, counts = propose(view(*rows), pinned=["micro_batch"])
    assert "needless_context" not in counts


def test_no_tables_are_made_for_what_is_dropped_without_them() -> None:
    """Tables are asked for after context groups that can give way are gone, and once a setting."""
    asked: list[Setting] = []

    def counted(settings: Sequence[Setting]) -> list[UnitTable]:
        asked.extend(settings)
        return tables(settings)

    known = Bounds.of(problem(), CLUSTER, STACK, counted, 2.0)
    rows = [layout(4, context_parallel=2, micro_batch=size) for size in (2, 1)]
    view = known.look_at(Layouts.of(rows))
    assert asked == []
    kept, _ = propose(view)
    assert [one.micro_batch for one in asked] == [1]
    assert np.all(kept.step.lower_s > 0)
    assert len(asked) == 1


def test_causes_of_being_beaten() -> None:
    """What cannot take 20 ms is told by the first cause that says so.

    The work of a step is 8 x 4.6 x 3 = 110.4 ms: 55.2 on two devices, 13.8 on eight. One
    micro-batch passes four stages in 55.2. Gradients cross the network in some 300, and the
    optimizer's update takes some 11 on each of two stages.
    """
    rows = [layout(2, 1, 1), layout(2, 4, 1, micro_batch=8), layout(4, 1, 2), layout(4, 2, 1)]
    causes = {name: mask.tolist() for name, mask in beaten(view(*rows), 0.02).items()}
    assert causes.pop("idle_devices") == [True, False, False, False]
    assert causes.pop("bubble") == [False, True, False, False]
    assert causes.pop("gradient_comm") == [False, False, True, True]
    assert not np.any(list(causes.values()))


def test_every_legal_layout_is_accounted_for() -> None:
    """Kept and dropped add up to the legal ones, and the policy keeps a part of them."""
    found = find_candidates(problem(), bounds())
    everything = all_candidates(problem())
    assert found.num_legal == everything.num_legal == len(everything.layouts)
    assert found.num_legal == len(found.layouts) + sum(found.dropped.values())
    assert 0 < len(found.layouts) < found.num_legal / 4
    assert set(found.layouts) <= set(everything.layouts)


def test_the_policy_keeps_its_pins() -> None:
    """With ZeRO 0 and full recomputation pinned, neither is dropped for being worse."""
    pins = {"zero_stage": 0, "recompute": "full"}
    found = find_candidates(problem(), bounds(), pins)
    assert len(found.layouts)
    assert not {"unsharded_optimizer", "needless_recompute"} & found.dropped.keys()


def test_nearest_misses_are_kept_when_nothing_fits() -> None:
    """On devices of 2 GB nothing fits: the 64 layouts that need least remain to be reported."""
    small = CLUSTER.model_copy(
        update={"device_types": {"new": NEW.model_copy(update={"memory_bytes": 2_000_000_000})}}
    )
    found = find_candidates(problem(cluster=small), bounds(problem(cluster=small), small))
    assert len(found.layouts) == NEAREST
    assert found.num_legal == NEAREST + sum(found.dropped.values())


def test_reasons_have_names_and_arguments() -> None:
    """Each reason says in its docstring why it drops."""
    assert all((reason.__doc__ or "").startswith("Drops") for reason in REASONS)
