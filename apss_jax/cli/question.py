"""What `estimate` is asked, apart from the layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from apss_jax.cli.subject import Subject, load_subject
from apss_jax.schema.errors import InputError, Mistake

if TYPE_CHECKING:
    from apss_jax.planning.inputs import Inputs
    from apss_jax.schema.cluster import ClusterProfile
    from apss_jax.schema.model import Model
    from apss_jax.schema.plan import Plan


@dataclass(frozen=True)
class Question:
    """The question apart from the layout; empty or None for a flag that is not there.

    Model and cluster are names, or were found elsewhere.
    """

    model: str | Model
    cluster: str | ClusterProfile
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

        return gather_inputs(self.model, self.cluster, **self.settings())

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

    def settings(self) -> dict[str, Any]:
        """Returns what is neither model nor cluster, by its name in Python."""
        return {
            "global_batch": self.global_batch,
            "seq_len": self.seq_len,
            "precision": self.precision,
            "stack": self.stack,
        }

    def refuse_gaps(self) -> None:
        """Raises `InputError` that names each flag which is missing."""
        missing = self.missing()
        if missing:
            remedies = [Mistake(None, flag, "", "is missing", f"Add {flag}") for flag in missing]
            raise InputError(remedies)
