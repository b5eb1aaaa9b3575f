"""The flags of `estimate` that spell a layout out, and the layout that they mean."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal, cast, get_args

import typer

from apss_jax.cli.options import Text
from apss_jax.cli.pins import zero_stage
from apss_jax.cli.values import number_or, one_of, whole_number, whole_numbers

if TYPE_CHECKING:
    from apss_jax.planning.inputs import Inputs
    from apss_jax.schema.layout import Layout
    from apss_jax.schema.plan import Recompute, ScheduleName

MOST = 1_000_000  # of a degree: no cluster has more devices
ONE = "[default: 1]"
Tensor = Annotated[Text, typer.Option("--tp", metavar="N", help=f"Tensor degree.  {ONE}")]
Pipeline = Annotated[Text, typer.Option("--pp", metavar="N", help=f"Pipeline degree.  {ONE}")]
Data = Annotated[
    Text,
    typer.Option("--dp", metavar="N", help="Data degree.  [default: all devices that remain]"),
]
Context = Annotated[Text, typer.Option("--cp", metavar="N", help=f"Context degree.  {ONE}")]
Expert = Annotated[Text, typer.Option("--ep", metavar="N", help=f"Expert degree.  {ONE}")]
Virtual = Annotated[
    Text, typer.Option("--vpp", metavar="N", help=f"Virtual stages of a device.  {ONE}")
]
MicroBatch = Annotated[
    Text, typer.Option("--micro-batch", metavar="N", help=f"Sequences per micro-batch.  {ONE}")
]
Zero = Annotated[Text, typer.Option("--zero", metavar="N", help=f"ZeRO stage, 0 to 3.  {ONE}")]
ZeroShards = Annotated[
    Text,
    typer.Option(
        "--zero-shards",
        metavar="N",
        help="Ranks that ZeRO shards over, as many groups of them holding the same as it takes "
        "(HSDP).  [default: all data x context ranks]",
    ),
]
RecomputeName = Annotated[
    Text,
    typer.Option("--recompute", metavar="HOW", help="none, selective or full.  [default: none]"),
]
SequenceParallel = Annotated[
    bool | None,
    typer.Option(
        "--sequence-parallel/--no-sequence-parallel",
        help="Split activations between collectives over the tensor group too.  [default: where "
        "it is legal and the stack has it]",
        show_default=False,
    ),
]
Schedule = Annotated[
    Text,
    typer.Option(
        "--schedule",
        metavar="NAME",
        help="gpipe, 1f1b or interleaved_1f1b.  [default: 1f1b; interleaved_1f1b with --vpp]",
    ),
]
Split = Annotated[
    Text,
    typer.Option(
        "--split",
        metavar="LAYERS",
        help="Layers of each stage in order, as in 10,8,8,6; with --vpp of each virtual stage."
        "  [default: chosen by the exact solver]",
    ),
]
PlanFile = Annotated[
    Text,
    typer.Option(
        "--plan",
        metavar="P.json",
        help="A plan, or a search result (its first plan), instead of the layout's flags; "
        "model, cluster and batch are then the plan's own unless given.",
    ),
]
MegatronArgs = Annotated[
    Text,
    typer.Option(
        "--megatron-args",
        metavar="FILE",
        help="A launch script or file of arguments of Megatron, or the line itself, instead of the "
        "layout's flags; model, batch and nodes are then its own unless given.",
    ),
]
WhatIf = Annotated[
    bool | None,
    typer.Option(
        "--what-if/--no-what-if",
        help="Search too, and say what the best plan would gain. What would make a plan legal and "
        "fit is said in any case.  [default: with --megatron-args]",
        show_default=False,
    ),
]


def with_usual_sequence_parallel(layout: Layout, inputs: Inputs) -> Layout:
    """Returns the layout with sequence parallelism where a search would use it."""
    from apss_jax.legality.check import violations
    from apss_jax.legality.facts import facts_of

    facts = facts_of(inputs.model, inputs.cluster, inputs.workload, inputs.stack)
    split = replace(layout, sequence_parallel=True)
    legal = set(violations(split, facts)) <= set(violations(layout, facts))
    return split if legal and facts.family.sequence_parallel else layout


@dataclass(frozen=True)
class LayoutTexts:
    """The flags as text, None for one that is not there."""

    tp: Text
    pp: Text
    dp: Text
    cp: Text
    ep: Text
    vpp: Text
    micro_batch: Text
    zero: Text
    zero_shards: Text
    recompute: Text
    sequence_parallel: bool | None
    schedule: Text
    split: Text

    def given(self) -> list[str]:
        """Returns the flags that are there."""
        return [
            f"--{name.replace('_', '-')}"
            for name, value in asdict(self).items()
            if value is not None
        ]

    def layout(self, num_devices: int) -> Layout:
        """Returns the layout; the data degree takes what remains where none is given."""
        from apss_jax.schema.layout import Layout

        tensor, pipeline, context = (
            number_or("--tp", self.tp, 1, most=MOST),
            number_or("--pp", self.pp, 1, most=MOST),
            number_or("--cp", self.cp, 1, most=MOST),
        )
        virtual = number_or("--vpp", self.vpp, 1, most=MOST)
        data = None if self.dp is None else whole_number("--dp", self.dp, most=MOST)
        return Layout(
            tensor_parallel=tensor,
            pipeline_parallel=pipeline,
            data_parallel=data or max(1, num_devices // (tensor * pipeline * context)),
            context_parallel=context,
            expert_parallel=number_or("--ep", self.ep, 1, most=MOST),
            virtual_stages=virtual,
            micro_batch=number_or("--micro-batch", self.micro_batch, 1),
            zero_stage=1 if self.zero is None else zero_stage("--zero", self.zero),
            zero_shards=self._zero_shards(),
            recompute=self._recompute(),
            sequence_parallel=bool(self.sequence_parallel),
            schedule=self._schedule(virtual),
        )

    def _zero_shards(self) -> int | None:
        given = self.zero_shards
        return None if given is None else whole_number("--zero-shards", given, most=MOST)

    def layers(self) -> tuple[int, ...] | None:
        """Returns the layers of each virtual stage, None where the solver shall choose."""
        return None if self.split is None else whole_numbers("--split", self.split, least=0)

    def _recompute(self) -> Recompute:
        from apss_jax.schema.plan import Recompute

        named = one_of("--recompute", self.recompute or "none", get_args(Recompute))
        return cast(Literal["none", "selective", "full"], named)

    def _schedule(self, virtual_stages: int) -> ScheduleName:
        from apss_jax.schema.plan import ScheduleName

        usual = "interleaved_1f1b" if virtual_stages > 1 else "1f1b"
        named = usual if self.schedule is None else self.schedule
        allowed = get_args(ScheduleName)
        return cast(
            Literal["gpipe", "1f1b", "interleaved_1f1b"], one_of("--schedule", named, allowed)
        )
