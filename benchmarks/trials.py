"""Plans that ran against what was predicted of them: `docs/trial.md` holds both tables.

Five uneven plans with emulated stages, then the small GPT in two processes (an argument, `emulated`
or `real`, runs one of the two). Prints a line for each plan: measured, predicted, and the errors.
"""

import sys
from collections.abc import Sequence
from statistics import median

from apss_jax.schema.plan import Chunk, Plan, Stage
from apss_jax.schema.trial import Trial
from apss_jax.trials.assignment import Sizes
from apss_jax.trials.running import Wish, try_plans

STEPS = {"emulated": 3, "real": 5}
EMULATED = (  # layers of each stage, and what each layer takes there
    ((3, 2, 2, 1), (1.0, 1.0, 1.0, 1.0)),
    ((2, 2, 2, 2), (1.0, 1.0, 1.0, 1.0)),
    ((1, 2, 2, 3), (1.0, 1.0, 1.0, 1.0)),
    ((3, 3, 1, 1), (1.0, 1.0, 2.0, 2.0)),
    ((5, 3), (0.7, 1.0)),
)
REAL = (((4, 4), (1.0, 1.0)), ((5, 3), (1.0, 1.0)))


def main() -> None:
    """Runs and prints both tables, or the one that is asked for."""
    asked = sys.argv[1:] or ["emulated", "real"]
    for kind in asked:
        cases = EMULATED if kind == "emulated" else REAL
        plans = [_plan(layers, layer_s, i + 1) for i, (layers, layer_s) in enumerate(cases)]
        wish = Wish(Sizes(), STEPS[kind], kind == "emulated", knows_model=False)
        _print(kind, try_plans(plans, wish, file=kind, tell=lambda text: None), cases)


def _plan(layers: Sequence[int], layer_s: Sequence[float], rank: int) -> Plan:
    """Returns a plan of eight micro-batches whose backward passes take twice as long as forward."""
    first = [sum(layers[:i]) for i in range(len(layers))]
    last = len(layers) - 1
    stages = tuple(
        Stage(
            chunks=(Chunk(first_layer=first[i], num_layers=n, embedding=i == 0, head=i == last),),
            forward_s=layer_s[i] * n,
            backward_s=2 * layer_s[i] * n,
        )
        for i, n in enumerate(layers)
    )
    return Plan(
        rank=rank, pipeline_parallel=len(layers), tensor_parallel=1, data_parallel=1,
        micro_batch=1, num_micro_batches=8, schedule="1f1b", stages=stages,
    )  # fmt: skip


def _print(kind: str, trial: Trial, cases: Sequence[tuple[Sequence[int], Sequence[float]]]) -> None:
    print(f"{kind}: load before {trial.load_before}, after {trial.load_after}, {trial.cores} cores")
    for one, (layers, layer_s) in zip(trial.plans, cases, strict=True):
        processor = min(stage.processor_fraction for stage in one.stages)
        print(
            f"  {layers} at {layer_s}: measured {one.measured_step_s:.2f} s, alone "
            f"{one.predicted_step_s:.2f} s, in step {one.predicted_from_step_s:.2f} s; schedule "
            f"{one.schedule_error_fraction:+.1%}, profile {one.profile_error_fraction:+.1%}, total "
            f"{one.total_error_fraction:+.1%}; processor {processor:.0%}"
        )
    errors = [abs(one.total_error_fraction) for one in trial.plans]
    print(f"  median {median(errors):.1%}; best {trial.best}, predicted {trial.predicted_best}")


if __name__ == "__main__":
    main()
