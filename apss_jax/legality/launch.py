"""A plan as a launcher sees it: layers of each virtual stage, ranks, and the hosts they run on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from apss_jax.importers.load import list_models, load_model
from apss_jax.legality.frameworks import family_of
from apss_jax.schema.cluster import ClusterProfile
from apss_jax.schema.layers import Layer, MoeMlp
from apss_jax.schema.model import Model
from apss_jax.schema.plan import Chunk, Plan


@dataclass(frozen=True)
class Agent:
    """Neighbouring ranks on one host: its name, and the GPUs of it that they use, in rank order."""

    host: str
    gpus: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Launch:
    """A plan with its model and cluster; None where they are not known."""

    plan: Plan
    model: Model | None = None
    cluster: ClusterProfile | None = None
    notes: tuple[str, ...] = ()  # what was changed for a framework, and what that costs

    @cached_property
    def chunks(self) -> tuple[Chunk, ...]:
        """Returns the virtual stages in the order in which a micro-batch passes them."""
        most = max((len(stage.chunks) for stage in self.plan.stages), default=0)
        return tuple(
            stage.chunks[c]
            for c in range(most)
            for stage in self.plan.stages
            if c < len(stage.chunks)
        )

    @cached_property
    def split(self) -> tuple[int, ...]:
        """Returns the layers of every virtual stage."""
        return tuple(chunk.num_layers for chunk in self.chunks)

    @property
    def num_layers(self) -> int:
        """Returns the layers of all stages together."""
        return sum(self.split)

    @property
    def num_predictions(self) -> int:
        """Returns the layers of multi-token prediction that the plan has on its last stage.

        They are there where the stack that it was made for trains them.
        """
        if self.model is None or not family_of(self.plan.stack or "").prediction:
            return 0
        return self.model.num_mtp_layers

    @property
    def is_even(self) -> bool:
        """Returns whether every virtual stage has equally many layers."""
        return len(set(self.split)) <= 1

    @cached_property
    def world(self) -> int:
        """Returns how many ranks there are."""
        plan = self.plan
        per_stage = plan.tensor_parallel * plan.context_parallel * plan.data_parallel
        return per_stage * plan.pipeline_parallel

    @property
    def replicas(self) -> int:
        """Returns how many groups of ranks each hold all that ZeRO shards."""
        shared = self.plan.data_parallel * self.plan.context_parallel
        return shared // (self.plan.zero_shards or shared)

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Returns the device of every rank: tensor fastest, context, data, pipeline slowest."""
        return tuple(device for stage in self.plan.stages for device in stage.devices)

    @cached_property
    def device_types(self) -> tuple[str, ...]:
        """Returns the device types of the stages, each once, those of mixed stages apart."""
        named = [stage.device_type for stage in self.plan.stages if stage.device_type]
        return tuple(dict.fromkeys(name for text in named for name in text.split("+")))

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """Returns the model's different layers; none where it is not known."""
        return tuple(dict.fromkeys(run.layer for run in self.model.layers)) if self.model else ()

    @cached_property
    def experts(self) -> MoeMlp | None:
        """Returns the first routed part of the model, None without one."""
        parts = [layer.feed_forward for layer in self.layers]
        return next((part for part in parts if isinstance(part, MoeMlp)), None)

    @cached_property
    def library_name(self) -> str | None:
        """Returns the library's name of the model, None where it is another one of that name."""
        name = (self.plan.model or "").lower()
        if name not in list_models():
            return None
        same = self.model is None or self.model.num_parameters == load_model(name).num_parameters
        return name if same else None

    @cached_property
    def agents(self) -> tuple[Agent, ...]:
        """Returns who starts which ranks, in rank order; none where the cluster is not known."""
        if self.cluster is None or max(self.ranks, default=0) >= self.cluster.num_devices:
            return ()
        places = _places(self.cluster)
        names = self.cluster.hosts or tuple(f"node{i}" for i in range(places[-1][0] + 1))
        runs = groupby((places[device] for device in self.ranks), key=lambda place: place[0])
        return tuple(Agent(names[node], tuple(gpu for _, gpu in run)) for node, run in runs)

    @property
    def one_agent_per_host(self) -> bool:
        """Returns whether no host starts ranks that do not follow each other."""
        return len({agent.host for agent in self.agents}) == len(self.agents)


def _places(cluster: ClusterProfile) -> list[tuple[int, int]]:
    """Returns the node and the GPU in it of every device."""
    sizes = [group.devices for group in cluster.nodes for _ in range(group.count)]
    return [(node, gpu) for node, size in enumerate(sizes) for gpu in range(size)]
