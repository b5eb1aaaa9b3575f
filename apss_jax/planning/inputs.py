"""The question as given: model, cluster, batch, software; and what was assumed where silent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import get_args

from apss_jax.datasheet.table import UnitTables
from apss_jax.importers.clusters import list_stacks, load_cluster, load_stack
from apss_jax.importers.fields import changed
from apss_jax.importers.load import load_model
from apss_jax.legality.frameworks import family_of
from apss_jax.schema.cluster import ClusterProfile, Precision
from apss_jax.schema.errors import mistake
from apss_jax.schema.model import Model
from apss_jax.schema.stack import Stack
from apss_jax.schema.topology import Topology
from apss_jax.schema.workload import Workload

DEFAULT_SEQ_LEN = 4096
DEFAULT_STACK = "generic"
PRECISIONS: tuple[Precision, ...] = ("bf16", "fp16", "fp32")  # tried in this order


@dataclass(frozen=True, eq=False)
class Inputs:
    """Everything that a search or an estimate starts from."""

    model: Model
    cluster: ClusterProfile
    workload: Workload
    stack: Stack
    assumptions: tuple[str, ...] = ()

    @cached_property
    def topology(self) -> Topology:
        """Returns the cluster as arrays."""
        return Topology.of(self.cluster)

    @property
    def unit_tables(self) -> UnitTables:
        """Returns what makes the tables of settings; nothing is computed yet."""
        measured = measured_stack(self.cluster, self.stack)
        return UnitTables(self.model, self.cluster, self.workload, self.stack, measured)

    def on(self, cluster: ClusterProfile) -> Inputs:
        """Returns the same question on another cluster."""
        return replace(self, cluster=cluster)

    def with_seq_len(self, tokens: int) -> Inputs:
        """Returns the same question with sequences of another length."""
        return replace(self, workload=self.workload.model_copy(update={"seq_len": tokens}))


def gather_inputs(
    model: Model | str,
    cluster: ClusterProfile | str,
    *,
    global_batch: int,
    seq_len: int | None = None,
    precision: str | None = None,
    stack: Stack | str | None = None,
) -> Inputs:
    """Returns the loaded inputs with defaults filled in and named; raises `InputError`."""
    trained = load_model(model) if isinstance(model, str) else model
    profile = load_cluster(cluster) if isinstance(cluster, str) else cluster
    _require_rows(trained, profile)
    assumptions = [*_notes(trained), *profile.notes]
    tokens = seq_len if seq_len is not None else _default_seq_len(trained, assumptions)
    _positive("--global-batch", global_batch, "sequences per step")
    _positive("--seq-len", tokens, "tokens per sequence")
    chosen = _precision(profile, precision, assumptions)
    software = _stack(profile, stack, assumptions)
    trained = _trained(trained, software, assumptions)
    workload = Workload(global_batch=global_batch, seq_len=tokens, precision=chosen)
    found = Inputs(trained, profile, workload, software)
    assumptions += found.unit_tables.carried_over
    return replace(found, assumptions=tuple(dict.fromkeys(assumptions)))


def _require_rows(model: Model, cluster: ClusterProfile) -> None:
    """Raises `InputError` where a table of layers has no times for a device of the cluster."""
    rows = model.table.rows if model.table else ()
    for name in cluster.used_types:
        row = next((row for row in rows if name not in row.forward_s), None)
        if row is not None:
            rule = (
                f"row {row.name!r} of {model.name} has times for {', '.join(row.forward_s)} alone"
            )
            raise mistake("--cluster", name, rule, "Choose such devices, or add times to the table")


def _trained(model: Model, stack: Stack, assumptions: list[str]) -> Model:
    """Returns the model as the software trains it: multi-token prediction is for some alone."""
    count = model.num_mtp_layers
    if not count:
        return model
    named = f"{count} layer{'s' * (count > 1)} of multi-token prediction"
    if family_of(stack.name).prediction:
        assumptions.append(f"{named} trained too, on the last stage with the head")
        return model
    assumptions.append(f"{named} left out: stack '{stack.name}' does not train them")
    return changed(model, mtp_layers=(), mtp_parameters=0)


def _notes(model: Model) -> tuple[str, ...]:
    return tuple(getattr(model, "notes", ()))


def _positive(flag: str, value: int, what: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 10**9:
        raise mistake(flag, value, f"must be a whole number of {what} from 1 to 1e9", "Correct it")


def _default_seq_len(model: Model, assumptions: list[str]) -> int:
    if model.table is not None:
        assumptions.append("a table of layers has no tokens: each sample counts as one")
        return 1
    longest = model.max_seq_len or DEFAULT_SEQ_LEN
    positions = model.embedding.num_positions if model.embedding else 0
    tokens = min(longest, DEFAULT_SEQ_LEN, positions or DEFAULT_SEQ_LEN)
    assumptions.append(f"sequence length {tokens}, as none was given")
    return tokens


def measured_stack(profile: ClusterProfile, chosen: Stack) -> Stack | None:
    """Returns the software that ran when a cluster was measured, None where it is the chosen one.

    A calibrated stack has the name of the one that it was calibrated from in its own, and is the
    same software. Of software that has no file nobody knows the constants; the chosen ones stand
    in, and what was measured still counts as another's.
    """
    name = profile.stack
    if name is None or not profile.measurements or name in chosen.name:
        return None
    if name in list_stacks():
        return load_stack(name)
    return chosen.model_copy(update={"name": name})


def _precision(cluster: ClusterProfile, precision: str | None, assumptions: list[str]) -> Precision:
    known: dict[str, Precision] = {name: name for name in get_args(Precision)}
    if precision in known:
        return known[precision]
    if precision is not None:
        raise mistake("--precision", precision, f"must be one of {', '.join(known)}", "Choose one")
    rates = [cluster.device_types[name].peak_flops_per_s for name in cluster.used_types]
    chosen: Precision = next((name for name in PRECISIONS if all(name in r for r in rates)), "bf16")
    if chosen != "bf16":
        assumptions.append(f"precision {chosen}, as not every device type has bf16")
    return chosen


def _stack(profile: ClusterProfile, stack: Stack | str | None, assumptions: list[str]) -> Stack:
    if stack is None:
        stack = profile.stack or DEFAULT_STACK
        assumptions.append(f"software stack '{stack}', as none was given")
    chosen = stack if isinstance(stack, Stack) else load_stack(stack)
    if measured_stack(profile, chosen) is not None:
        assumptions.append(
            f"layers were measured under stack '{profile.stack}': under '{chosen.name}' only the "
            "devices' speed, the links and the memory carry over"
        )
    if chosen.time_factor == 1.0 or not profile.measurements:
        return chosen
    # The factor makes up for what datasheets promise; measured layers do not promise it.
    assumptions.append(f"the time factor of stack '{chosen.name}' left out: layers are measured")
    return chosen.model_copy(update={"time_factor": 1.0})
