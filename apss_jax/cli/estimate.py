"""The command `python -m apss_jax.estimate`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from apss_jax.cli import layout_flags as flags
from apss_jax.cli.layout_flags import LayoutTexts
from apss_jax.cli.megatron_launch import MegatronLaunch
from apss_jax.cli.options import (
    AsJson,
    GpuName,
    MaybeCluster,
    MaybeModel,
    PrecisionName,
    SeqLen,
    StackName,
    Text,
    Version,
)
from apss_jax.cli.plan_file import read_plan
from apss_jax.cli.question import Question
from apss_jax.cli.run import Answer, new_app, run_process
from apss_jax.cli.subject import Subject
from apss_jax.cli.values import maybe_number, precision_named
from apss_jax.schema.errors import mistake

if TYPE_CHECKING:
    from rich.console import Console

    from apss_jax.schema.cluster import ClusterProfile
    from apss_jax.schema.layout import Layout
    from apss_jax.schema.plan import Estimate, Plan


def estimate_command(
    *,
    model: MaybeModel = None,
    cluster: MaybeCluster = None,
    gpu: GpuName = None,
    global_batch: Annotated[
        Text, typer.Option("--global-batch", metavar="N", help="Sequences per step.")
    ] = None,
    seq_len: SeqLen = None,
    precision: PrecisionName = None,
    stack: StackName = None,
    plan: flags.PlanFile = None,
    tp: flags.Tensor = None,
    pp: flags.Pipeline = None,
    dp: flags.Data = None,
    cp: flags.Context = None,
    ep: flags.Expert = None,
    vpp: flags.Virtual = None,
    micro_batch: flags.MicroBatch = None,
    zero: flags.Zero = None,
    zero_shards: flags.ZeroShards = None,
    recompute: flags.RecomputeName = None,
    sequence_parallel: flags.SequenceParallel = None,
    schedule: flags.Schedule = None,
    split: flags.Split = None,
    megatron_args: flags.MegatronArgs = None,
    compare: flags.WhatIf = None,
    as_json: AsJson = False,
    version: Version = False,
) -> Answer:
    """Cost one plan: is it legal, does it fit in memory, how long does a step take.

    Exit codes: 0 answered, also for a plan that is illegal or too big; 2 the input is wrong.
    """
    question = Question(
        model=model or "",
        cluster=_cluster(cluster, gpu),
        global_batch=maybe_number("--global-batch", global_batch),
        seq_len=maybe_number("--seq-len", seq_len),
        precision=precision_named(precision),
        stack=stack,
    )
    texts = LayoutTexts(
        tp, pp, dp, cp, ep, vpp, micro_batch, zero, zero_shards, recompute, sequence_parallel,
        schedule, split,
    )  # fmt: skip
    if megatron_args is not None:
        _refuse_beside("--megatron-args", megatron_args, texts, plan)
        return _answer_megatron(question, megatron_args, gpu, compare is not False)
    if plan is not None:
        _refuse_beside("--plan", plan, texts, None)
        return _answer_plan(question, plan, bool(compare))
    return _answer_flags(question, texts, bool(compare))


def main() -> None:
    """Runs the command and ends the process."""
    run_process(app)


def _cluster(name: str | None, gpu: str | None) -> str | ClusterProfile:
    """Returns the cluster's name, or the cluster where only --gpu makes it one."""
    if not name or gpu is None:
        return name or ""
    from apss_jax.importers.clusters import load_cluster

    return load_cluster(name, gpu=gpu)


def _refuse_beside(flag: str, value: str, texts: LayoutTexts, plan: str | None) -> None:
    """Raises `InputError` where the layout is given in two ways."""
    others = [*texts.given(), *(["--plan"] if plan is not None else [])]
    if others:
        rule = f"cannot stand beside {', '.join(others)}"
        remedy = "Give a plan file, Megatron's arguments or the layout's flags, one of them"
        raise mistake(flag, value, rule, remedy)


def _answer_plan(question: Question, path: str, compare: bool) -> Answer:
    plan = read_plan(path)
    return _answer(question.filled_from(plan), plan, split=None, compare=compare)


def _answer_flags(question: Question, texts: LayoutTexts, compare: bool) -> Answer:
    if not texts.given():
        remedy = "Add --plan P.json, or the layout: for example --tp 2 --pp 2"
        raise mistake("--plan", "", "is missing, and so is every flag of a layout", remedy)
    split = texts.layers()
    layout = texts.layout(num_devices=1)  # wrong flags are told before a cluster is read
    question.refuse_gaps()
    if texts.dp is None:
        layout = texts.layout(question.subject().cluster.num_devices)
    if texts.sequence_parallel is None:
        layout = flags.with_usual_sequence_parallel(layout, question.inputs())
    return _answer(question, layout, split=split, compare=compare)


def _answer_megatron(question: Question, source: str, gpu: str | None, compare: bool) -> Answer:
    launch = MegatronLaunch.read(source, question, gpu)
    return _answer(
        launch.question, launch.run.layout, split=launch.split, compare=compare, launch=launch
    )


def _answer(
    question: Question,
    plan: Plan | Layout,
    *,
    split: tuple[int, ...] | None,
    compare: bool,
    launch: MegatronLaunch | None = None,
) -> Answer:
    question.refuse_gaps()
    subject = question.subject()
    from apss_jax.cost.compilation import keep_compiled_programs
    from apss_jax.planning.estimate import estimate_plan
    from apss_jax.planning.what_if import what_if

    keep_compiled_programs()

    estimate = estimate_plan(*subject, plan, split=split, **question.settings())
    if launch is not None:
        estimate = launch.judged(estimate)
    found = what_if(question.inputs(), estimate, compare=compare)
    estimate = estimate.model_copy(update={"what_if": found})
    return Answer(estimate.to_json(), partial(_show, estimate, subject))


def _show(estimate: Estimate, subject: Subject, console: Console) -> None:
    from apss_jax.cli.estimate_text import show_estimate

    show_estimate(estimate, subject.model, subject.cluster, console)


EXAMPLE: Final = "--plan plan.json --stack megatron"
app: Final = new_app(estimate_command, "apss_jax.estimate", EXAMPLE)
