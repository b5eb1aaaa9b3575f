"""The cluster: devices, links, nodes, and what was measured on them. One file per cluster."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from apss_jax.schema.document import Document, Part
from apss_jax.schema.layers import Layer
from apss_jax.schema.link_measurements import LinkMeasurement, PairRate
from apss_jax.schema.machine import DeviceFacts, DeviceState, Machine, PairFacts

# In "tf32" values are FP32 and products round them to 19 bits on the tensor cores.
Precision = Literal["fp32", "tf32", "fp16", "bf16", "fp8"]
FULL: Final = ("fp32", "tf32")  # precisions whose values take 4 bytes
Provenance = Literal["measured", "analytic", "mocked", "imported"]
MAX_DEVICES: Final = 1_000_000  # beyond it a count is a typing error, not a cluster
Fraction = Annotated[float, Field(gt=0, le=1)]
# Names stand in hostfiles and scripts, where a space or a quote would mean something else.
HostName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,253}$")]


class DeviceRates(Part):
    """What share of its datasheet a device type reaches; the constants of the analytic model."""

    gemm_fraction: Fraction  # of peak, for large matrix products
    gemm_half_size: NonNegativeFloat  # a dimension this long costs twice its ideal time
    fp8_gemm_fraction: Fraction | None = None  # of the FP8 peak
    flash_attention_fraction: Fraction | None = None  # of peak; None: no such kernel
    # The same with the kernels of FlashAttention 1 (arXiv 2307.08691, section 4); None: no slower.
    first_flash_attention_fraction: Fraction | None = None
    # The same with kernels written for the device's own units, as FlashAttention 3 (arXiv
    # 2407.08608) and cuDNN are; None: no faster.
    tuned_flash_attention_fraction: Fraction | None = None
    attention_fraction: Fraction  # of peak, for the two batched products without flash attention
    memory_fraction: Fraction  # of the memory bandwidth, in memory-bound kernels
    elementwise_passes: PositiveFloat = 1.0  # memory traffic beside the minimum that is counted
    fused_expert_kernels: bool = False  # whether a stack's `fused_experts` can run
    score_passes: NonNegativeFloat = 6.9  # over the scores, forward, without flash attention
    # Of products whose rows are no multiple of 16 bytes, beside aligned ones.
    unaligned_gemm_slowdown: PositiveFloat = 3.0
    # Beside the stack's, half width of the 80 % interval: of types on which no step was timed.
    step_time_error_fraction: NonNegativeFloat = 0.0
    source: str


class DeviceType(Part):
    """A GPU type: datasheet figures and reachable rates."""

    memory_bytes: PositiveInt  # what an allocator can reach
    peak_flops_per_s: dict[Precision, PositiveFloat]  # dense, by precision; absent: not known
    unsupported: tuple[Precision, ...] = ()  # the hardware has no fast units for these
    memory_bytes_per_s: PositiveFloat
    rates: DeviceRates
    provenance: Provenance = "analytic"
    source: str | None = None

    @model_validator(mode="after")
    def _supports_what_it_rates(self) -> Self:
        both = sorted(set(self.unsupported) & set(self.peak_flops_per_s))
        if both:
            raise ValueError(f"unsupported and peak_flops_per_s both name {both}")
        return self

    def precision_problem(self, name: str, precision: Precision) -> str | None:
        """Returns in words why no time can be computed in this precision, or None."""
        if precision in self.peak_flops_per_s:
            return None
        if precision in self.unsupported:
            known = ", ".join(sorted(self.peak_flops_per_s)) or "nothing that is known"
            return f"{name} has no fast {precision} units; it has {known}"
        return f"the peak {precision} rate of {name} is not known; give it in a cluster file"


class Link(Part):
    """A way for bytes to travel. Figures are one way and reachable by one device alone."""

    bytes_per_s: PositiveFloat
    latency_s: NonNegativeFloat  # of one transfer or one-way collective; an all-reduce has two
    # Of each step that a collective's ring takes from node to node; None: `latency_s`.
    step_latency_s: NonNegativeFloat | None = None
    reached_fraction: Fraction = 1.0  # what collectives reach of `bytes_per_s`
    transfer_fraction: Fraction = 1.0  # what one sender to one receiver reaches of `bytes_per_s`
    shared_by_node: bool = False  # bytes_per_s is the node's; devices that send at once divide it
    provenance: Provenance = "analytic"
    source: str | None = None


class NodeGroup(Part):
    """Equal nodes that stand next to each other in rank order."""

    count: PositiveInt = 1
    devices: PositiveInt  # per node
    device_type: str
    intra_link: str  # between the devices of a node (or of a scale-up domain)
    network: str  # from a node to other nodes
    nodes_per_domain: PositiveInt = 1  # nodes that share one NVLink domain (18 on GB200 NVL72)


class Device(Document):
    """A device type of the library, with what shorthand assumes around it."""

    SCHEMA: ClassVar[str] = "apss.device/1"

    name: str
    aliases: tuple[str, ...] = ()
    device_type: DeviceType
    intra_link: str  # names of library links
    small_node_link: str | None = None  # instead of it, in nodes of at most 4 devices
    network: str
    devices_per_node: PositiveInt = 8
    nodes_per_domain: PositiveInt = 1  # nodes that share one NVLink domain
    domain_note: str | None = None  # what a person should know about the assumed links


class LinkFile(Document):
    """A link of the library."""

    SCHEMA: ClassVar[str] = "apss.link/1"

    name: str
    link: Link


class Bridge(Part):
    """A link between two node groups that differs from their own networks."""

    groups: tuple[int, int]  # 0-based indices in `nodes`
    link: str


class LayerShape(Part):
    """What was measured: a layer, the embedding or the head of a model of some width.

    A layer may be a part of one: a mixer or a feed-forward part alone. The optimizer's update is
    measured as a forward pass over some parameters.
    """

    part: Literal["embedding", "layer", "head", "optimizer"]
    hidden_size: PositiveInt
    layer: Layer | None = None  # for part "layer"
    vocab_size: PositiveInt | None = None  # for part "embedding" and "head"
    num_parameters: PositiveInt | None = None  # for part "optimizer"


class LayerMeasurement(Part):
    """The time of one shape on one device type for one micro-batch.

    The backward pass contains what recomputation repeats. Bytes are those of one device.
    """

    shape: str  # a key of `shapes`
    device_type: str
    tensor_parallel: PositiveInt
    micro_batch: PositiveInt
    seq_len: PositiveInt
    precision: Precision
    forward_s: PositiveFloat
    backward_s: PositiveFloat | None = None  # None: not measured
    tensor_comm_included: bool = False
    recompute: Literal["none", "selective", "full"] = "none"
    repeats: PositiveInt | None = None
    # Interquartile range of the repeats over their median, of the pass where it is larger.
    spread_fraction: NonNegativeFloat | None = None
    saved_bytes: NonNegativeInt | None = None  # kept from forward to backward pass
    workspace_bytes: NonNegativeInt | None = None  # beside inputs and outputs, for a moment
    peak_bytes: NonNegativeInt | None = None  # of a process that ran both passes and nothing else
    forward_flops: NonNegativeFloat | None = None  # as the compiler counts
    backward_flops: NonNegativeFloat | None = None
    attention_kernel: str | None = None
    state: DeviceState | None = None
    provenance: Provenance = "measured"


class ClusterProfile(Document):
    """A cluster as the planner sees it."""

    SCHEMA: ClassVar[str] = "apss.cluster_profile/1"

    name: str
    source: str | None = None
    stack: str | None = None  # the software that ran when it was measured
    device_types: dict[str, DeviceType]
    links: dict[str, Link]
    nodes: tuple[NodeGroup, ...]
    hosts: tuple[HostName, ...] = ()  # names of the nodes in order; empty: not known
    bridges: tuple[Bridge, ...] = ()
    shapes: dict[str, LayerShape] = Field(default_factory=dict)
    measurements: tuple[LayerMeasurement, ...] = ()
    link_measurements: tuple[LinkMeasurement, ...] = ()
    pair_rates: tuple[PairRate, ...] = ()
    device_facts: tuple[DeviceFacts, ...] = ()
    pair_facts: tuple[PairFacts, ...] = ()
    machine: Machine | None = None
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _has_devices(self) -> Self:
        if not self.nodes:
            raise ValueError("nodes must have at least one entry")
        if self.num_devices > MAX_DEVICES:
            raise ValueError(f"nodes hold {self.num_devices} devices, more than {MAX_DEVICES}")
        return self

    @model_validator(mode="after")
    def _every_node_has_a_host(self) -> Self:
        nodes = sum(group.count for group in self.nodes)
        if self.hosts and len(self.hosts) != nodes:
            raise ValueError(f"hosts has {len(self.hosts)} names for {nodes} nodes")
        return self

    @model_validator(mode="after")
    def _names_exist(self) -> Self:
        for i, group in enumerate(self.nodes):
            _known(f"nodes.{i}.device_type", group.device_type, self.device_types)
            _known(f"nodes.{i}.intra_link", group.intra_link, self.links)
            _known(f"nodes.{i}.network", group.network, self.links)
        for i, row in enumerate(self.measurements):
            _known(f"measurements.{i}.shape", row.shape, self.shapes)
            _known(f"measurements.{i}.device_type", row.device_type, self.device_types)
        return self

    @model_validator(mode="after")
    def _facts_are_of_devices(self) -> Self:
        named = [(f"device_facts.{i}", one.device) for i, one in enumerate(self.device_facts)]
        named += [(f"pair_facts.{i}", max(one.devices)) for i, one in enumerate(self.pair_facts)]
        for key, device in named:
            if device >= self.num_devices:
                raise ValueError(f"{key} names device {device} of {self.num_devices}")
        return self

    @model_validator(mode="after")
    def _measured_links_exist(self) -> Self:
        named = [
            (f"link_measurements.{i}", m.devices) for i, m in enumerate(self.link_measurements)
        ]
        ends = [(f"pair_rates.{i}", (p.sender, p.receiver)) for i, p in enumerate(self.pair_rates)]
        for key, devices in named + ends:
            if max(devices) >= self.num_devices or len(set(devices)) < len(devices):
                raise ValueError(f"{key} must name different devices below {self.num_devices}")
        for i, measurement in enumerate(self.link_measurements):
            if measurement.link is not None:
                _known(f"link_measurements.{i}.link", measurement.link, self.links)
        return self

    @model_validator(mode="after")
    def _bridges_join_two_groups(self) -> Self:
        for i, bridge in enumerate(self.bridges):
            _known(f"bridges.{i}.link", bridge.link, self.links)
            if not all(0 <= index < len(self.nodes) for index in bridge.groups):
                raise ValueError(f"bridges.{i}.groups names a node group that does not exist")
        pairs = [frozenset(bridge.groups) for bridge in self.bridges]
        if any(len(pair) < 2 for pair in pairs) or len(set(pairs)) < len(pairs):
            raise ValueError("bridges must each join two different groups, each pair once")
        return self

    @cached_property
    def num_devices(self) -> int:
        """Returns the number of devices in the cluster."""
        return sum(group.count * group.devices for group in self.nodes)

    @cached_property
    def num_domains(self) -> int:
        """Returns how many parts there are whose devices share a fast link."""
        return sum(-(-group.count // group.nodes_per_domain) for group in self.nodes)

    @cached_property
    def domain_devices(self) -> int:
        """Returns the devices of the smallest domain."""
        return min(g.devices * min(g.count, g.nodes_per_domain) for g in self.nodes)

    @cached_property
    def used_types(self) -> tuple[str, ...]:
        """Returns the device types that stand in nodes, in order of first use."""
        return tuple(dict.fromkeys(group.device_type for group in self.nodes))


def _known(key: str, name: str, names: Mapping[str, object]) -> None:
    if name not in names:
        raise ValueError(f"{key} names {name!r}, but the file has only {sorted(names)}")
