"""The main job: from a question to a ranked list of plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from apss_jax.planning.beginning import Begun, begin_search
from apss_jax.planning.candidates import Candidates
from apss_jax.planning.clock import Clock
from apss_jax.planning.cutting import Cutter
from apss_jax.planning.documents import PlanWriter
from apss_jax.planning.explain import explain_ranked
from apss_jax.planning.figures import settings_of
from apss_jax.planning.inputs import Inputs, gather_inputs
from apss_jax.planning.lineup import Lineup
from apss_jax.planning.loading import load_compiled
from apss_jax.planning.neighbours import neighbour_sentences, neighbours_of
from apss_jax.planning.refinement import Found, Shown, refined
from apss_jax.planning.rounds import Rounds
from apss_jax.planning.shortfall import find_shortfall
from apss_jax.planning.shortlist import require_legal, shortlist
from apss_jax.planning.tables import CostTables, cost_tables
from apss_jax.schema.cluster import ClusterProfile
from apss_jax.schema.detail import Neighbour
from apss_jax.schema.model import Model
from apss_jax.schema.plan import Plan, SearchCounts, SearchResult
from apss_jax.schema.stack import Stack

ROUND = 64  # layouts between two looks at what can still win
MAX_COSTED = 8192  # candidates; what lies beyond is counted as dropped
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Effort:
    """How candidates are cut, how many plans are wanted, how many are costed; None for all."""

    solver: str
    shown: int | None
    most: int | None


def search_plans(
    model: Model | str,
    cluster: ClusterProfile | str,
    *,
    global_batch: int,
    seq_len: int | None = None,
    precision: str | None = None,
    stack: Stack | str | None = None,
    solver: str = "dpsn",
    pins: Mapping[str, Sequence[object]] | None = None,
    top: int = 5,
    progress: Progress = lambda _: None,
) -> SearchResult:
    """Returns the best plans, or what is missing where none fits; raises `InputError`."""
    clock = Clock()
    inputs = gather_inputs(
        model,
        cluster,
        global_batch=global_batch,
        seq_len=seq_len,
        precision=precision,
        stack=stack,
    )
    return finish_search(begin_search(inputs, clock, solver=solver, pins=pins, top=top), progress)


def search_inputs(
    inputs: Inputs,
    solver: str,
    pins: Mapping[str, Sequence[object]],
    top: int,
    clock: Clock,
    *,
    use_policy: bool = True,
) -> SearchResult:
    """Returns the answer to a loaded question.

    Without the policy every legal layout is costed, whatever its bound: what the policy is held
    against.
    """

    def chosen() -> Candidates:
        return shortlist(inputs, pins, use_policy=use_policy)

    return finish_search(Begun(inputs, solver, pins, top, clock, chosen, use_policy))


def finish_search(begun: Begun, progress: Progress = lambda _: None) -> SearchResult:
    """Returns the answer to a question whose layouts are being looked at."""
    inputs, pins, clock, top = begun.inputs, begun.pins, begun.clock, begun.top
    load_compiled()
    chosen = begun.chosen()
    require_legal(inputs, pins, chosen)
    progress(f"{chosen.num_legal} layouts are legal; costing the fastest of {len(chosen.layouts)}")
    tables = cost_tables(inputs, settings_of(chosen.layouts, tells_pipelines=True)[0])
    lineup = Lineup.of(inputs, chosen, tables)
    clock.lap("candidates")
    limits = (top, MAX_COSTED) if begun.use_policy else (None, None)
    effort = Effort(begun.solver, *limits)
    found = cost_lineup(inputs, tables, lineup, effort, clock, progress)
    progress(f"{len(found.choices)} placed layouts are costed; refining the leading plans")
    shown = refined(inputs, tables, found, top, begun.solver)
    clock.lap("refine")
    plans = _plans(PlanWriter(inputs, tables), shown, inputs)
    missing = None if plans else find_shortfall(inputs, pins, found.choices, found.costs)
    clock.lap("explain")
    return SearchResult(
        plans=tuple(plans),
        search=_counts(chosen, found, clock),
        assumptions=inputs.assumptions,
        warnings=_warnings(inputs, plans),
        shortfall=missing,
    )


def cost_lineup(
    inputs: Inputs,
    tables: CostTables,
    lineup: Lineup,
    effort: Effort,
    clock: Clock,
    progress: Progress = lambda _: None,
) -> Found:
    """Costs layouts in rounds until no remaining one can be among the plans that are shown."""
    cutter = Cutter(inputs.cluster, inputs.stack, tables.problem, effort.solver)
    played = Rounds(inputs, tables, effort.shown)
    for rows in lineup.rounds(ROUND):
        if effort.most is not None and len(played.choices) >= effort.most:
            lineup.leave_out(rows, played.limit_s)
            continue
        cuts = cutter.cuts(lineup.hopeful(rows, played.limit_s), tables)
        clock.lap("partition")
        lineup.dropped.update(played.play(cuts))
        if clock.lap("cost"):
            progress(f"{len(played.choices)} placed layouts are costed")
    played.finish()
    dropped = {name: count for name, count in lineup.dropped.items() if count}
    return Found(played.choices, played.costs, played.fits, dropped)


def _plans(writer: PlanWriter, shown: Shown, inputs: Inputs) -> list[Plan]:
    bare = [
        writer.plan(choice, shown.costs, row, rank=row + 1)
        for row, choice in enumerate(shown.choices)
    ]
    beside = neighbours_of(inputs, bare)
    return [_explained(plan, bare, beside, inputs) for plan in bare]


def _explained(
    plan: Plan, plans: Sequence[Plan], beside: Sequence[Neighbour], inputs: Inputs
) -> Plan:
    said = explain_ranked(plan, plans, inputs) + neighbour_sentences(beside, plan.rank)
    return plan.model_copy(update={"explanation": said})


def _counts(chosen: Candidates, found: Found, clock: Clock) -> SearchCounts:
    return SearchCounts(
        candidates=chosen.num_legal,
        legal=chosen.num_legal,
        fits=int(found.fits.sum()),
        dropped={**chosen.dropped, **found.dropped},
        elapsed_s=clock.elapsed(),
    )


def _warnings(inputs: Inputs, plans: Sequence[Plan]) -> tuple[str, ...]:
    said = []
    if plans and plans[0].provenance.get("measured", 0.0) < 1.0:
        said.append("times that no profile measured are computed from datasheets")
    if "mocked" in {row.provenance for row in inputs.cluster.measurements}:
        said.append("the cluster profile holds mocked figures")
    return tuple(said)
