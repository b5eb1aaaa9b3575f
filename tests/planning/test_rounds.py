"""What cuts tell before a schedule is followed, against the cost model."""

import numpy as np
import pytest

from apss_jax.planning.costing import Costs, cost_choices
from apss_jax.planning.cutting import Cut, Cutter
from apss_jax.planning.inputs import Inputs, gather_inputs
from apss_jax.planning.lineup import Placer
from apss_jax.planning.rounds import ROUNDING, Rounds
from apss_jax.planning.shortfall import excess_bytes
from apss_jax.planning.shortlist import shortlist
from apss_jax.planning.tables import CostTables, cost_tables

MIXED = "1x4xV100-SXM2-16GB+1x4xT4-16GB"


def cut_and_costed(
    model: str, cluster: str, size: int
) -> tuple[Inputs, CostTables, list[Cut], Costs]:
    """Returns some legal layouts, plain and interleaved, with exact cuts and simulated costs."""
    inputs = gather_inputs(model, cluster, global_batch=16, seq_len=1024)
    layouts = shortlist(inputs, {}, use_policy=False).layouts
    chosen = layouts.take(np.random.default_rng(0).choice(len(layouts), size, replace=False))
    tables = cost_tables(inputs, [layout.setting for layout in chosen])
    placer = Placer(inputs)
    placed = [one for layout in chosen for one in placer.candidates(layout)]
    cuts = Cutter(inputs.cluster, inputs.stack, tables.problem, "exact").cuts(placed, tables)
    costs = cost_choices(tables.problem, tables.index, [cut.choice for cut in cuts])
    return inputs, tables, cuts, costs


@pytest.mark.parametrize("cluster", ["2x4xT4-16GB", MIXED])
def test_no_schedule_is_faster_than_the_cuts_allow(cluster: str) -> None:
    """The least time is below the simulated one, and close to it in the middle."""
    _, _, cuts, costs = cut_and_costed("gpt2", cluster, 60)
    least_s = np.array([cut.least_s for cut in cuts])
    assert {cut.choice.layout.schedule for cut in cuts} == {"1f1b", "interleaved_1f1b"}
    assert np.all(least_s <= costs.step_time_s * (1 + ROUNDING))
    assert np.median(least_s / costs.step_time_s) > 0.8


def test_memory_of_cuts_is_the_cost_models() -> None:
    """Bytes above what fits agree to float32."""
    inputs, _, cuts, costs = cut_and_costed("gpt2", MIXED, 60)
    modelled = excess_bytes(inputs, [cut.choice for cut in cuts], costs)
    counted = np.array([cut.excess_bytes for cut in cuts])
    np.testing.assert_allclose(counted, modelled, atol=1e-6 * 16e9)


def test_what_is_left_out_could_not_win() -> None:
    """The three fastest plans of different degrees are those of costing all that fit."""
    inputs, tables, cuts, _ = cut_and_costed("gpt2", MIXED, 60)
    all_of_them, three = Rounds(inputs, tables, None), Rounds(inputs, tables, 3)
    all_of_them.play(cuts)
    dropped = three.play(cuts)
    assert dropped["cannot_win"] > 0
    assert len(three.choices) < len(all_of_them.choices)
    assert three.limit_s == sorted(all_of_them.fastest_s.values())[2]


def test_where_nothing_fits_the_nearest_miss_is_costed() -> None:
    """One choice, which does not fit, tells how much is missing."""
    inputs, tables, cuts, _ = cut_and_costed("gpt2-xl", "1x4xT4-16GB", 30)
    unfit = [cut for cut in cuts if cut.excess_bytes > 0]
    rounds = Rounds(inputs, tables, 3)
    assert rounds.play(unfit)["no_partition_fits"] == len({cut.choice.layout for cut in unfit})
    rounds.finish()
    assert len(rounds.choices) == 1
    assert not rounds.fits.any()
