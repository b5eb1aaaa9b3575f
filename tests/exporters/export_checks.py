"""Whether an export says its plan: degrees, switches, batch, every layer, every device."""

from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate, groupby
from typing import Final

from fields_said import READERS, Fields

from apss_jax.importers.megatron_arguments import MegatronArguments
from apss_jax.importers.megatron_run import run_of_arguments
from apss_jax.importers.pipeline_layout import layout_stages
from apss_jax.importers.shell_words import flags_in
from apss_jax.legality.launch import Launch
from apss_jax.legality.megatron_arguments import argument_violations
from apss_jax.legality.plan_check import layout_of

Files = Mapping[str, str]
CheckFn = Callable[[Files, Launch], None]
REMAT: Final = {"none": "minimal", "selective": "minimal_with_context", "full": "full"}
CHECKPOINTING: Final = {"none": None, "selective": "SelectiveAC", "full": "FullAC"}
MIXED: Final = {"bf16": "bf16_mixed", "fp16": "fp16_mixed", "fp8": "bf16_with_fp8_hybrid"}
ORDERS: Final = {"1f1b": "1F1B", "interleaved_1f1b": "Interleaved1F1B", "gpipe": "GPipe"}


def same(found: Fields, expected: Fields) -> None:
    """The fields have the expected values; there may be others."""
    assert {name: found.get(name) for name in expected} == expected


def check_megatron(files: Files, launch: Launch) -> None:
    """The script says the layout and every virtual stage, and Megatron would refuse nothing."""
    _is_the_plan(MegatronArguments(flags_in(files["launch.sh"])), launch, launch.split)


def _is_the_plan(
    arguments: MegatronArguments, launch: Launch, split: tuple[int, ...] | None
) -> None:
    run, plan = run_of_arguments(arguments, launch.world), launch.plan
    assert run.layout == layout_of(plan)
    assert (run.global_batch, run.seq_len) == (plan.global_batch, plan.seq_len)
    assert run.precision == plan.precision
    assert run.split == split
    assert arguments.size("--num-layers", 0) == launch.num_layers
    assert (arguments.maybe_size("--mtp-num-layers") or 0) == launch.num_predictions
    assert argument_violations(arguments, launch.world) == ()


def check_bridge(files: Files, launch: Launch) -> None:
    """Every degree, switch and batch is the plan's, and the layout has every layer in its stage."""
    fields, plan = READERS["bridge"](files), launch.plan
    virtual = plan.virtual_stages if plan.virtual_stages > 1 else None
    granularity = None if plan.recompute == "none" else plan.recompute
    expected = {
        "model.tensor_model_parallel_size": plan.tensor_parallel,
        "model.pipeline_model_parallel_size": plan.pipeline_parallel,
        "model.virtual_pipeline_model_parallel_size": virtual,
        "model.context_parallel_size": plan.context_parallel,
        "model.expert_model_parallel_size": plan.expert_parallel,
        "model.sequence_parallel": plan.sequence_parallel,
        "model.recompute_granularity": granularity,
        "model.mtp_num_layers": launch.num_predictions or None,
        "mixed_precision": MIXED.get(plan.precision or ""),
        "model.seq_length": plan.seq_len,
        "dataset.sequence_length": plan.seq_len,
        "train.micro_batch_size": plan.micro_batch,
        "train.global_batch_size": plan.global_batch,
        "ddp.use_distributed_optimizer": plan.zero_stage > 0,
        "ddp.use_megatron_fsdp": plan.zero_stage > 1,
    }
    same(fields, expected)
    layout = fields["model.pipeline_model_parallel_layout"]
    if layout is None:
        assert len(set(launch.split)) == 1
        return
    ends = ("E", "m" * launch.num_predictions + "L")
    inner = ["t" * count for count in launch.split]
    inner[0], inner[-1] = ends[0] + inner[0], inner[-1] + ends[1]
    assert layout_stages(layout) == inner


def check_deepspeed(files: Files, launch: Launch) -> None:
    """Batch sizes multiply; every stage begins where the plan says, and the last one ends there."""
    fields, plan = READERS["deepspeed"](files), launch.plan
    expected: Fields = {
        "train_micro_batch_size_per_gpu": plan.micro_batch,
        "gradient_accumulation_steps": plan.num_micro_batches,
        "train_batch_size": plan.micro_batch * plan.num_micro_batches * plan.data_parallel,
        "zero_optimization.stage": plan.zero_stage,
        "fp16.enabled": plan.precision == "fp16",
        "bf16.enabled": plan.precision in ("bf16", "fp8"),
    }
    if plan.pipeline_parallel > 1:
        units = list(launch.split)
        units[0], units[-1] = units[0] + 1, units[-1] + 1  # the embedding and the head
        degrees = (plan.pipeline_parallel, plan.tensor_parallel, plan.data_parallel)
        expected["PARTS"] = [0, *accumulate(units)]
        expected["topology"] = dict(zip(("num_pp", "num_mp", "num_dp"), degrees, strict=True))
        expected["activation_checkpoint_interval"] = int(plan.recompute == "full")
    elif plan.tensor_parallel > 1:
        expected["tensor_parallel.autotp_size"] = plan.tensor_parallel
    same(fields, expected)


def check_flagscale(files: Files, launch: Launch) -> None:
    """Its fields are Megatron's, and the meshes of several device types the stages on them."""
    fields = READERS["flagscale"](files)
    hetero = {name[7:]: value for name, value in fields.items() if name.startswith("hetero.")}
    plain = {name.rpartition(".")[2]: v for name, v in fields.items() if "hetero" not in name}
    words: dict[str, tuple[str, ...]] = {
        f"--{name.replace('_', '-')}": () if value is True else (str(value),)
        for name, value in plain.items()
    }
    mixed = len(launch.device_types) > 1 and launch.plan.pipeline_parallel > 1
    assert bool(hetero) == mixed
    if not mixed:
        _is_the_plan(MegatronArguments(words), launch, launch.split)
        return
    run = run_of_arguments(MegatronArguments(words), launch.world)
    assert run.layout == layout_of(launch.plan)
    assert run.global_batch == launch.plan.global_batch
    assert tuple(hetero["hetero_pipeline_layer_split"]) == launch.split
    _meshes_are_stages(hetero, launch)


def _meshes_are_stages(hetero: Fields, launch: Launch) -> None:
    plan, flat = launch.plan, hetero["hetero_process_meshes"]
    degrees = [plan.tensor_parallel, plan.context_parallel, plan.expert_parallel,
               plan.data_parallel]  # fmt: skip
    runs = [(kind, len(list(run))) for kind, run in groupby(s.device_type for s in plan.stages)]
    assert hetero["hetero_device_types"] == [kind for kind, _ in runs]
    assert flat == [value for _, length in runs for value in (*degrees, length)]


def check_torchtitan(files: Files, launch: Launch) -> None:
    """Degrees and batch are the plan's; every module stands in the part of its stage."""
    fields, plan = READERS["torchtitan"](files), launch.plan
    replicated = plan.zero_stage == 0
    piped = plan.pipeline_parallel > 1
    degrees = {
        "data_parallel_replicate_degree": plan.data_parallel if replicated else 1,
        "data_parallel_shard_degree": 1 if replicated else plan.data_parallel,
        "tensor_parallel_degree": plan.tensor_parallel,
        "enable_sequence_parallel": plan.sequence_parallel,
        "context_parallel_degree": plan.context_parallel,
        "expert_parallel_degree": plan.expert_parallel,
        "pipeline_parallel_degree": plan.pipeline_parallel,
        "pipeline_parallel_schedule": ORDERS[plan.schedule] if piped else None,
        "module_fqns_per_model_part": [*_parts(launch.split)] if piped else None,
    }
    same(fields, {f"parallelism.{name}": value for name, value in degrees.items()})
    local = plan.micro_batch * (plan.num_micro_batches if piped else 1)
    batch = {
        "local_batch_size": local,
        "global_batch_size": plan.global_batch,
        "seq_len": plan.seq_len,
        "mixed_precision_param": "float32" if plan.precision == "fp32" else "bfloat16",
    }
    same(fields, {f"training.{name}": value for name, value in batch.items()})
    same(fields, {"activation_checkpoint": CHECKPOINTING[plan.recompute]})


def _parts(split: tuple[int, ...]) -> Iterable[list[str]]:
    starts = [0, *accumulate(split)]
    for index, count in enumerate(split):
        names = [f"layers.{starts[index] + i}" for i in range(count)]
        before = ["tok_embeddings"] if index == 0 else []
        yield [*before, *names, *(["norm", "lm_head"] if index == len(split) - 1 else [])]


def check_maxtext(files: Files, launch: Launch) -> None:
    """Axes are the plan's degrees, batches multiply, and stages hold the model's layers."""
    fields, plan = READERS["maxtext"](files), launch.plan
    same(fields, {
        "tensor_parallelism": plan.tensor_parallel,
        "context_parallelism": plan.context_parallel,
        "pipeline_parallelism": plan.pipeline_parallel,
        "expert_parallelism": min(plan.expert_parallel, plan.data_parallel),
        "max_target_length": plan.seq_len,
        "dtype": {"fp16": "float16", "fp32": "float32"}.get(plan.precision or "", "bfloat16"),
        "remat_policy": REMAT[plan.recompute],
        "shard_optimizer_over_data": plan.zero_stage == 1 and plan.data_parallel > 1,
    })  # fmt: skip
    axis = "fsdp_parallelism" if plan.zero_stage > 1 else "data_parallelism"
    assert fields[axis] * fields["expert_parallelism"] == plan.data_parallel
    piped = plan.pipeline_parallel > 1
    steps = 1 if piped else plan.num_micro_batches
    assert fields["gradient_accumulation_steps"] == steps
    assert round(fields["per_device_batch_size"] * launch.world * steps) == plan.global_batch
    if piped:
        pairs = (plan.model or "").startswith("gemma-2-")  # one of its layers is two of the model
        same(fields, {
            "num_pipeline_microbatches": plan.num_micro_batches,
            "num_pipeline_repeats": plan.virtual_stages,
            "num_layers_per_pipeline_stage": launch.split[0] // (2 if pairs else 1),
        })  # fmt: skip
        assert set(launch.split) == {launch.split[0]}
    if "base_num_decoder_layers" in fields:
        assert fields["base_num_decoder_layers"] == launch.num_layers


def check_jax(files: Files, launch: Launch) -> None:
    """Stages hold the plan's chunks, the mesh its devices in their order."""
    fields, plan = READERS["jax"](files), launch.plan
    shape = (plan.pipeline_parallel, plan.data_parallel, plan.context_parallel,
             plan.tensor_parallel)  # fmt: skip
    chunks = [[(c.first_layer, c.num_layers) for c in stage.chunks] for stage in plan.stages]
    same(fields, {
        "SHAPE": shape,
        "DEVICES": list(launch.ranks),
        "STAGES": chunks,
        "NUM_LAYERS": sum(launch.split),
        "EXPERT_PARALLEL": plan.expert_parallel,
        "MICRO_BATCH": plan.micro_batch,
        "NUM_MICRO_BATCHES": plan.num_micro_batches,
        "GLOBAL_BATCH": plan.data_parallel * plan.micro_batch * plan.num_micro_batches,
        "SEQ_LEN": plan.seq_len,
        "PRECISION": plan.precision,
        "ZERO_STAGE": plan.zero_stage,
        "RECOMPUTE": plan.recompute,
    })  # fmt: skip
    assert fields["GLOBAL_BATCH"] == plan.global_batch
    between = ("context", "tensor") if plan.sequence_parallel else "context"
    assert fields["SPECS"]["activations"][2] == between


CHECKS: Final[Mapping[str, CheckFn]] = {
    "megatron": check_megatron,
    "bridge": check_bridge,
    "deepspeed": check_deepspeed,
    "flagscale": check_flagscale,
    "torchtitan": check_torchtitan,
    "maxtext": check_maxtext,
    "jax": check_jax,
}
