"""`--megatron-args`: a launch of Megatron as a question and a layout."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from apss_jax.cli.question import Question
from apss_jax.schema.errors import mistake

if TYPE_CHECKING:
    from apss_jax.importers.megatron_arguments import MegatronArguments
    from apss_jax.importers.megatron_run import MegatronRun
    from apss_jax.schema.cluster import ClusterProfile
    from apss_jax.schema.plan import Estimate

FLAG = "--megatron-args"
STACK = "megatron"


@dataclass(frozen=True)
class MegatronLaunch:
    """A launch that was read: the run, and the question with what the run says filled in."""

    run: MegatronRun
    question: Question
    num_devices: int

    @staticmethod
    def read(source: str, question: Question, gpu: str | None) -> MegatronLaunch:
        """Returns the launch in a file or a line; raises `InputError`."""
        from apss_jax.importers.megatron_arguments import read_megatron_arguments
        from apss_jax.importers.megatron_run import run_of_arguments

        arguments = read_megatron_arguments(source)
        cluster = _cluster(question, arguments, gpu)
        run = run_of_arguments(arguments, cluster.num_devices)
        model = question.model or run.model
        if not model:
            remedy = "Add --num-layers, --hidden-size and the like, or --model config.json"
            raise mistake(FLAG, source, "does not describe a model", remedy)
        filled = replace(
            question,
            model=model,
            cluster=cluster,
            global_batch=question.global_batch or run.global_batch,
            seq_len=question.seq_len or run.seq_len,
            precision=question.precision or run.precision,
            stack=question.stack or STACK,
        )
        return MegatronLaunch(run, filled, cluster.num_devices)

    @property
    def split(self) -> tuple[int, ...] | None:
        """Returns the layers of each virtual stage where there is one count for each."""
        layout = self.run.layout
        pieces = layout.pipeline_parallel * layout.virtual_stages
        split = self.run.split
        return split if split is not None and len(split) == pieces else None

    def judged(self, estimate: Estimate) -> Estimate:
        """Returns the estimate with what Megatron itself would refuse, and what was assumed."""
        from apss_jax.legality.megatron_arguments import argument_violations

        found = argument_violations(self.run.arguments, self.num_devices)
        assumed = [f"{FLAG}: the data degree {self.run.layout.data_parallel} is what remains"]
        assumed += self.run.notes
        return estimate.model_copy(
            update={
                "legal": estimate.legal and not found,
                "violations": (*found, *estimate.violations),
                "assumptions": (*estimate.assumptions, *assumed),
            }
        )


def _cluster(question: Question, arguments: MegatronArguments, gpu: str | None) -> ClusterProfile:
    """Returns the cluster that is named, else as many nodes of --gpu as the launcher starts."""
    from apss_jax.importers.clusters import load_cluster
    from apss_jax.importers.megatron_run import nodes_of_arguments
    from apss_jax.schema.cluster import ClusterProfile

    if isinstance(question.cluster, ClusterProfile):
        return question.cluster
    if question.cluster:
        return load_cluster(question.cluster)
    nodes = nodes_of_arguments(arguments)
    if nodes is None or gpu is None:
        remedy = "Add --cluster; or --gpu where the text has --nproc-per-node and --nnodes"
        raise mistake("--cluster", "", "is missing", remedy)
    return load_cluster(f"{nodes[0]}x{nodes[1]}x{gpu}")
