"""The command `python -m apss_jax.estimate`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from apss_jax.cli import layout_flags as flags
from apss_jax.cli.layout_flags import LayoutTexts
from apss_jax.cli.options import (
    AsJson,
    MaybeCluster,
    MaybeModel,
    PrecisionName,
    SeqLen,
    StackName,
    Text,
    Version,
)
from apss_jax.cli.plan_file import read_plan
from apss_jax.cli.run import Answer, new_app, run_process
from apss_jax.cli.subject import Subject, load_subject
from apss_jax.cli.values import maybe_number, precision_named
from apss_jax.schema.errors import InputError, Mistake, mistake

if TYPE_CHECKING:
    from rich.console import Console

    from apss_jax.planning.inputs import Inputs
    from apss_jax.schema.layout import Layout
    from apss_jax.schema.plan import Estimate, Plan


@dataclass(frozen=True)
class Question:
    """The question apart from the layout; empty or None for a flag that is not there."""

    model: str
    cluster: str
    global_batch: int | None
    seq_len: int | None
    precision: str | None
    stack: str | None

    def missing(self) -> list[str]:
        """Returns the flags without which there is no question."""
        values = {
            "--model": self.model,
            "--cluster": self.cluster,
            "--global-batch": self.global_batch,
        }
        return [flag for flag, value in values.items() if not value]

    def subject(self) -> Subject:
        """Returns the model and the cluster; raises `InputError`."""
        return load_subject(self.model, self.cluster, self.stack)

    def inputs(self) -> Inputs:
        """Returns everything but the layout, with defaults filled in; raises `InputError`."""
        from apss_jax.planning.inputs import gather_inputs

        given = asdict(self)
        return gather_inputs(given.pop("model"), given.pop("cluster"), **given)

    def filled_from(self, plan: Plan) -> Question:
        """Returns the question with the plan's own answers where a flag is not there."""
        return Question(
            model=self.model or plan.model or "",
            cluster=self.cluster or plan.cluster or "",
            global_batch=self.global_batch or plan.global_batch,
            seq_len=self.seq_len or plan.seq_len,
            precision=self.precision or plan.precision,
            stack=self.stack or plan.stack,
        )


def estimate_command(
    *,
    model: MaybeModel = None,
    cluster: MaybeCluster = None,
    global_batch: Annotated[
        Text, typer.Option("--global-batch", metavar="N", help="Sequences per step.")
    ] = None,
    seq_len: SeqLen = None,
    precision: PrecisionName = None,
    stack: StackName = None,
    plan: Annotated[
        Text,
        typer.Option(
            "--plan",
            metavar="P.json",
            help="A plan, or a search result (its first plan), instead of the layout's flags; "
            "model, cluster and batch are then the plan's own unless given.",
        ),
    ] = None,
    tp: flags.Tensor = None,
    pp: flags.Pipeline = None,
    dp: flags.Data = None,
    cp: flags.Context = None,
    ep: flags.Expert = None,
    vpp: flags.Virtual = None,
    micro_batch: flags.MicroBatch = None,
    zero: flags.Zero = None,
    recompute: flags.RecomputeName = None,
    sequence_parallel: flags.SequenceParallel = None,
    schedule: flags.Schedule = None,
    split: flags.Split = None,
    as_json: AsJson = False,
    version: Version = False,
) -> Answer:
    """Cost one plan: is it legal, does it fit in memory, how long does a step take.

    Exit codes: 0 answered, also for a plan that is illegal or too big; 2 the input is wrong.
    """
    question = Question(
        model=model or "",
        cluster=cluster or "",
        global_batch=maybe_number("--global-batch", global_batch),
        seq_len=maybe_number("--seq-len", seq_len),
        precision=precision_named(precision),
        stack=stack,
    )
    texts = LayoutTexts(
        tp, pp, dp, cp, ep, vpp, micro_batch, zero, recompute, sequence_parallel, schedule, split
    )
    if plan is None:
        return _answer_flags(question, texts)
    return _answer_plan(question, plan, texts)


def main() -> None:
    """Runs the command and ends the process."""
    run_process(app)


def _answer_plan(question: Question, path: str, texts: LayoutTexts) -> Answer:
    if texts.given():
        rule = f"cannot stand beside {', '.join(texts.given())}"
        raise mistake("--plan", path, rule, "Give a plan file or the layout's flags, not both")
    plan = read_plan(path)
    return _answer(question.filled_from(plan), plan, split=None)


def _answer_flags(question: Question, texts: LayoutTexts) -> Answer:
    if not texts.given():
        remedy = "Add --plan P.json, or the layout: for example --tp 2 --pp 2"
        raise mistake("--plan", "", "is missing, and so is every flag of a layout", remedy)
    split = texts.layers()
    layout = texts.layout(num_devices=1)  # wrong flags are told before a cluster is read
    _refuse_gaps(question)
    if texts.dp is None:
        layout = texts.layout(question.subject().cluster.num_devices)
    if texts.sequence_parallel is None:
        layout = flags.with_usual_sequence_parallel(layout, question.inputs())
    return _answer(question, layout, split=split)


def _answer(question: Question, plan: Plan | Layout, *, split: tuple[int, ...] | None) -> Answer:
    _refuse_gaps(question)
    subject = question.subject()
    from apss_jax.cost.compilation import keep_compiled_programs
    from apss_jax.planning.estimate import estimate_plan

    keep_compiled_programs()

    given = asdict(question)
    estimate = estimate_plan(given.pop("model"), given.pop("cluster"), plan, split=split, **given)
    return Answer(estimate.to_json(), partial(_show, estimate, subject))


def _refuse_gaps(question: Question) -> None:
    missing = question.missing()
    if missing:
        remedies = [Mistake(None, flag, "", "is missing", f"Add {flag}") for flag in missing]
        raise InputError(remedies)


def _show(estimate: Estimate, subject: Subject, console: Console) -> None:
    from apss_jax.cli.estimate_text import show_estimate

    show_estimate(estimate, subject.model, subject.cluster, console)


app: Final = new_app(estimate_command, "apss_jax.estimate")
