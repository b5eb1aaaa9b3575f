"""The heuristic policy: which legal layouts are not worth costing, each for a named reason.

Every reason is an argument that another layout, or none of its partitions, can be better under the
cost model. Where an argument rests on a partition that is not known yet, its docstring says what it
assumes; `benchmarks` and tests compare the policy with costing everything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
from jaxtyping import Bool, Int

from apss_jax.legality.facts import Facts
from apss_jax.planning.figures import SettingFigures, TablesFn, settings_of
from apss_jax.planning.memory_bounds import MemoryBounds, PerLayout
from apss_jax.planning.memory_risk import usable_bytes
from apss_jax.planning.time_bounds import StepBounds, TimeBounds
from apss_jax.schema.cluster import ClusterProfile
from apss_jax.schema.layout import RECOMPUTE, Layouts
from apss_jax.schema.stack import Stack

Mask = Bool[np.ndarray, " batch"]
Known = tuple[SettingFigures, Int[np.ndarray, " batch"]]
NONE, SELECTIVE, FULL = (RECOMPUTE.index(name) for name in ("none", "selective", "full"))


@dataclass(frozen=True)
class Bounds:
    """What is known of a problem's layouts before any is costed."""

    facts: Facts
    stack: Stack
    memory: MemoryBounds
    time: TimeBounds
    tables: TablesFn

    @staticmethod
    def of(
        facts: Facts, cluster: ClusterProfile, stack: Stack, tables: TablesFn, weight_bytes: float
    ) -> Bounds:
        """Returns the bounds of a problem; `tables` gives the unit tables of settings."""
        memory = MemoryBounds(stack, weight_bytes, facts.global_batch)
        return Bounds(facts, stack, memory, TimeBounds(facts, cluster, stack, weight_bytes), tables)

    def look_at(self, layouts: Layouts) -> View:
        """Returns some layouts with everything that bounds say of them."""
        return View(self, layouts)

    def figures_of(self, layouts: Layouts) -> Known:
        """Returns the figures of the settings of some layouts, and which are whose."""
        settings, index = settings_of(layouts, tells_pipelines=self.stack.tells_pipelines)
        return SettingFigures.of(self.tables(settings)), index

    @cached_property
    def largest_bytes(self) -> float:
        """Returns the largest predicted need that fits on any device."""
        return _usable_bytes(self.facts.largest_memory_bytes, self.stack)

    @cached_property
    def smallest_bytes(self) -> float:
        """Returns the largest predicted need that fits on every device."""
        return _usable_bytes(self.facts.smallest_memory_bytes, self.stack)


def _usable_bytes(memory_bytes: int, stack: Stack) -> float:
    return float(usable_bytes(np.array([memory_bytes], dtype=float), stack)[0])


@dataclass(frozen=True)
class View:
    """Layouts with their figures; a narrower view shares the figures.

    They are worked out when they are first asked for: most layouts are dropped without.
    """

    bounds: Bounds
    layouts: Layouts
    known: Known | None = None

    def take(self, chosen: Mask) -> View:
        """Returns the view of some of the layouts."""
        known = self.__dict__.get("_known", self.known)
        narrower = known and (known[0], known[1][chosen])
        return View(self.bounds, self.layouts.take(chosen), narrower)

    @property
    def figures(self) -> SettingFigures:
        """Returns the figures of settings."""
        return self._known[0]

    @property
    def index(self) -> Int[np.ndarray, " batch"]:
        """Returns which of the figures are each layout's."""
        return self._known[1]

    @cached_property
    def _known(self) -> Known:
        return self.known or self.bounds.figures_of(self.layouts)

    def surely_fits(self) -> Mask:
        """Returns which layouts fit on every device under every partition worth having."""
        share = self.bounds.time.longest_share(self.layouts, self.figures, self.index)
        upper = self.bounds.memory.upper_bytes(self.layouts, self.figures, self.index, share)
        return upper <= self.bounds.smallest_bytes

    @cached_property
    def lower_bytes(self) -> PerLayout:
        """Returns what the fullest stage needs at least."""
        return self.bounds.memory.lower_bytes(self.layouts, self.figures, self.index)

    @cached_property
    def step(self) -> StepBounds:
        """Returns the bounds on the step time."""
        return self.bounds.time.step_bounds(self.layouts, self.figures, self.index)


def memory_lower_bound(view: View) -> Mask:
    """Drops what cannot fit: under every partition some stage exceeds the largest device."""
    return view.lower_bytes > view.bounds.largest_bytes


def unsharded_optimizer(view: View) -> Mask:
    """Drops ZeRO 0 where ZeRO 1 is listed and shares the optimizer with someone.

    ZeRO 1 gathers parameters where ZeRO 0 gathers gradients, so it sends no more wherever a
    gradient is sent in at least as many bytes as a parameter; it updates less and holds less. Where
    a stack hides more of what ZeRO 0 sends, or has owners of whole tensors, it may be slower.
    """
    stack = view.bounds.stack
    whole, sharded, *_ = stack.exposed_fractions
    is_as_hidden = whole >= sharded and stack.owner_step_s == 0
    no_wider = stack.reduced_gradient_bytes >= view.bounds.memory.weight_bytes and is_as_hidden
    layouts = view.layouts
    shared = layouts.data_parallel * layouts.context_parallel > 1
    return (layouts.zero_stage == 0) & shared & no_wider & bool(np.any(layouts.zero_stage == 1))


def needless_recompute(view: View) -> Mask:
    """Drops recomputation where less of it surely fits, or where it saves nothing.

    The same partition with less recomputation takes no longer, and fits by the bound from above,
    which assumes that a best partition has no stage longer than an even one can afford.
    """
    kinds = np.unique(view.layouts.recompute)
    found = np.zeros(len(view.layouts), dtype=bool)
    for less in kinds[:-1].tolist():
        rows = (view.layouts.recompute > less) & ~found
        lighter = _with(view.take(rows), recompute=less)
        saved = view.figures.saved.total[view.index[rows]]
        fits = lighter.surely_fits()
        found[rows] = fits | (saved >= lighter.figures.saved.total[lighter.index])
    return found


def needless_sharding(view: View) -> Mask:
    """Drops ZeRO 2 and 3 where a lower stage is listed, surely fits and is no slower.

    ZeRO 2 takes the time of ZeRO 1. ZeRO 3 gathers weights for each pass of each micro-batch, of
    which a part is never hidden; where that part alone is at least what lower stages leave exposed
    once per step, it cannot be faster.
    """
    found = np.zeros(len(view.layouts), dtype=bool)
    for less in (1, 2):
        if not np.any(view.layouts.zero_stage == less):
            continue
        rows = (view.layouts.zero_stage > less) & ~found & _no_slower(view)
        found[rows] = _with(view.take(rows), zero_stage=less).surely_fits()
    return found


def _no_slower(view: View) -> Mask:
    """Returns where a lower ZeRO stage (1 or 2) is no slower than the layout's own 2 or 3."""
    stack, gather = view.bounds.stack, view.bounds.memory.weight_bytes
    scatter, exposed = stack.reduced_gradient_bytes, stack.gradient_exposed_fraction
    layouts = view.layouts
    counts = view.bounds.facts.global_batch // (layouts.data_parallel * layouts.micro_batch)
    in_bytes = scatter + gather <= exposed * (2 * counts * gather + scatter)
    in_calls = (exposed * (2 * counts + 1) >= 2) & (stack.owner_step_s == 0)
    return (layouts.zero_stage == 2) | (in_bytes & in_calls)


def needless_context(view: View) -> Mask:
    """Drops context groups where whole sequences could be given to their ranks instead.

    With a factor g common to the context degree and the micro-batch, g times fewer context ranks,
    g times more replicas and a micro-batch g times smaller put the same tokens, weights and shards
    on every device and exchange less. The layout that is better must be listed: nothing of it may
    be pinned.
    """
    return np.gcd(view.layouts.context_parallel, view.layouts.micro_batch) > 1


ReasonFn = Callable[[View], Mask]
"""Returns which layouts of a view to drop for this reason."""

BY_DEGREES: Final[tuple[ReasonFn, ...]] = (needless_context,)  # these ask for no figures
BY_FIGURES: Final[tuple[ReasonFn, ...]] = (
    memory_lower_bound,
    unsharded_optimizer,
    needless_sharding,
    needless_recompute,
)
REASONS: Final = BY_DEGREES + BY_FIGURES


# The layout that such a reason prefers differs in these columns.
NEEDS_FREE: Final[dict[ReasonFn, frozenset[str]]] = {
    needless_context: frozenset({"context_parallel", "data_parallel", "micro_batch"})
}


def propose(
    view: View, pinned: Collection[str] = (), reasons: Sequence[ReasonFn] = REASONS
) -> tuple[View, dict[str, int]]:
    """Returns the layouts that no reason drops, and how many each reason dropped, in order.

    A reason whose better layout may not be listed because of a pinned column is not applied.
    """
    counts: dict[str, int] = {}
    for reason in reasons:
        if NEEDS_FREE.get(reason, frozenset()) & set(pinned):
            continue
        dropped = reason(view)
        counts[reason.__name__] = int(dropped.sum())
        view = view.take(~dropped)
    return view, counts


def beaten(view: View, limit_s: float) -> Mapping[str, Mask]:
    """Returns which layouts cannot be as fast as `limit_s`, by the first cause that says so.

    * `idle_devices`: their share of the work alone takes longer, though all devices would do;
    * `slow_compute`: it takes longer, whichever devices are idle (recomputation, small products);
    * `bubble`: with the filling and draining of the pipeline it does;
    * `layer_comm`: with the collectives inside layers, on the fastest links there are, it does;
    * `gradient_comm`: with the reduction of gradients, or the optimizer's update, it does.
    """
    layouts, step = view.layouts, view.step
    used = layouts.tensor_parallel.astype(float) * layouts.pipeline_parallel
    used *= layouts.data_parallel * layouts.context_parallel
    busy = step.work_s * used / view.bounds.facts.num_devices
    slow = step.work_s > limit_s
    filled = (step.filled_s > limit_s) & ~slow
    exchanging = (step.layer_comm_s > limit_s) & ~slow & ~filled
    return {
        "idle_devices": slow & (busy <= limit_s),
        "slow_compute": slow & (busy > limit_s),
        "bubble": filled,
        "layer_comm": exchanging,
        "gradient_comm": (step.lower_s > limit_s) & ~slow & ~filled & ~exchanging,
    }


def _with(view: View, **changed: int) -> View:
    """Returns a view of the same layouts with some columns set to one value."""
    columns = {
        name: np.full_like(getattr(view.layouts, name), value) for name, value in changed.items()
    }
    layouts = replace(view.layouts, **columns)
    is_same_setting = not changed.keys() & {"recompute"} or not len(layouts)
    return View(view.bounds, layouts, (view.figures, view.index) if is_same_setting else None)
