"""The command `python -m apss_jax.trial`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from apss_jax.cli.options import MODEL_HELP, AsJson, Text, Version
from apss_jax.cli.plan_file import read_plans
from apss_jax.cli.run import Answer, new_app, note, run_process
from apss_jax.cli.values import maybe_number, number_or
from apss_jax.schema.errors import mistake

if TYPE_CHECKING:
    from rich.console import Console

    from apss_jax.schema.plan import Plan
    from apss_jax.schema.trial import Trial
    from apss_jax.trials.running import Wish

MODULE: Final = "apss_jax.trial"
STEPS: Final = 5


def trial_command(
    *,
    plan: Annotated[
        str,
        typer.Option(
            "--plan", metavar="P.json", help="A plan, an estimate, or the result of a search."
        ),
    ] = "",
    top: Annotated[
        Text, typer.Option("--top", metavar="K", help="Run the first K plans of a search result.")
    ] = None,
    model: Annotated[
        Text,
        typer.Option(
            "--model",
            metavar="M",
            help=f"Train at this model's widths. {MODEL_HELP} Default: small.",
        ),
    ] = None,
    seq_len: Annotated[
        Text, typer.Option("--seq-len", metavar="S", help="Tokens per sequence of --model.")
    ] = None,
    steps: Annotated[
        Text, typer.Option("--steps", metavar="N", help=f"Steps to measure.  [default: {STEPS}]")
    ] = None,
    emulate: Annotated[
        bool,
        typer.Option(
            "--emulate",
            help="Stages sleep for what the plan says they take, in proportion: the schedule "
            "runs for real, the devices do not.",
        ),
    ] = False,
    as_json: AsJson = False,
    version: Version = False,
) -> Answer:
    """Run plans on the devices at hand: a process for each stage trains a GPT for a few steps.

    Says what each step took, what was predicted, which part of the error is the schedule's and
    which the profile's, and which plan was best. Exit codes: 0 answered, 2 the input is wrong.
    """
    if not plan:
        rule = "is needed: a trial runs a plan"
        raise mistake("--plan", "", rule, "Write one with: search --json > result.json")
    plans = read_plans(plan, number_or("--top", top, 1))
    count = number_or("--steps", steps, STEPS)
    wish = _wish(plans[0], model, maybe_number("--seq-len", seq_len), count, emulate=emulate)
    from apss_jax.trials.running import try_plans

    found = try_plans(plans, wish, file=plan, tell=note)
    return Answer(found.to_json(), partial(_show, found))


def main() -> None:
    """Runs the command and ends the process."""
    run_process(app)


def _wish(
    first: Plan, model: str | None, seq_len: int | None, steps: int, *, emulate: bool
) -> Wish:
    from apss_jax.trials.assignment import Sizes
    from apss_jax.trials.running import Wish

    if model is None:
        return Wish(Sizes(), steps, emulate, knows_model=False)
    from apss_jax.importers.load import load_model
    from apss_jax.trials.assigning import sizes_of

    found = load_model(model)
    sizes = sizes_of(found, seq_len or first.seq_len or Sizes().seq_len)
    return Wish(sizes, steps, emulate, knows_model=found.name == first.model)


def _show(found: Trial, console: Console) -> None:
    from apss_jax.cli.trial_text import show_trial

    show_trial(found, console)


EXAMPLE: Final = "--plan result.json --top 3"
app: Final = new_app(trial_command, MODULE, EXAMPLE)
