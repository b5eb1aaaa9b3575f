"""Every field that an export has of a plan, by its name, for plans whose degrees all differ."""

from typing import Any, Final

import pytest
from field_plans import (
    BACKWARDS,
    CHUNKED,
    CUT,
    EQUAL,
    GRADIENTS,
    LINED,
    PIPED,
    PREDICTING,
    REPLICATED,
    SHARDED,
    SPREAD,
    TYPES,
    UNEVEN,
)
from fields_said import READERS, Fields
from planned import A100, H100

from apss_jax.exporters.formats import FORMATS, export_files
from apss_jax.legality.launch import Launch

UNEVEN_FLAGS: Final = """
--num-layers 10 --seq-length 512 --micro-batch-size 7 --global-batch-size 280 --bf16
--tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --context-parallel-size 3
--expert-model-parallel-size 15 --expert-tensor-parallel-size 2 --sequence-parallel
--pipeline-model-parallel-layout Et|t*2|t*3|t*4L
--use-distributed-optimizer --overlap-param-gather --overlap-grad-reduce
--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"""
CHUNKED_FLAGS: Final = """
--num-layers 16 --seq-length 512 --micro-batch-size 7 --global-batch-size 280 --fp16
--tensor-model-parallel-size 6 --pipeline-model-parallel-size 4 --context-parallel-size 3
--num-virtual-stages-per-pipeline-rank 2 --overlap-grad-reduce
--recompute-granularity selective"""
SHARDED_FLAGS: Final = """
--num-layers 6 --seq-length 512 --micro-batch-size 7 --global-batch-size 280 --bf16
--tensor-model-parallel-size 2 --pipeline-model-parallel-size 1 --context-parallel-size 3
--sequence-parallel --use-distributed-optimizer --overlap-param-gather --overlap-grad-reduce
--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params
--no-gradient-accumulation-fusion --ckpt-format fsdp_dtensor
--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"""
PREDICTING_FLAGS: Final = """
--num-layers 10 --mtp-num-layers 2 --seq-length 512 --micro-batch-size 7 --global-batch-size 280
--bf16 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --context-parallel-size 3
--expert-model-parallel-size 15 --expert-tensor-parallel-size 2 --sequence-parallel
--pipeline-model-parallel-layout Et|t*2|t*3|t*4m*2L
--use-distributed-optimizer --overlap-param-gather --overlap-grad-reduce"""
TYPES_FLAGS: Final = """
--num-layers 10 --seq-length 512 --micro-batch-size 2 --global-batch-size 80 --bf16
--tensor-model-parallel-size 2 --pipeline-model-parallel-size 3 --context-parallel-size 4
--expert-model-parallel-size 10 --expert-tensor-parallel-size 2 --sequence-parallel
--use-distributed-optimizer --overlap-param-gather --overlap-grad-reduce
--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"""
MESHES: Final = {
    "checkpoint.ckpt_format": "torch",
    "hetero.enable_hetero": True,
    "hetero.hetero_use_cpu_communication": False,
    "hetero.hetero_pipeline_layer_split": [2, 3, 5],
    # Tensor, context, expert, data, pipeline of the first type, then of the second.
    "hetero.hetero_process_meshes": [2, 4, 10, 5, 1, 2, 4, 10, 5, 2],
    "hetero.hetero_device_types": [A100, H100],
    "hetero.hetero_current_device_type": A100,
    "hetero.standalone_embedding_stage": False,
}


def flags(text: str) -> Fields:
    """Returns flags by name; a switch has no words."""
    pairs = (flag.partition(" ") for flag in " ".join(text.split()).split(" --"))
    return {f"--{name.removeprefix('--')}": words for name, _, words in pairs}


def as_yaml(text: str) -> Fields:
    """Returns flags as FlagScale has them: underscores, numbers, true for a switch."""
    found: Fields = {}
    for flag, words in flags(text).items():
        name = flag[2:].replace("-", "_")
        name = f"precision.{name}" if name in ("bf16", "fp16") else name
        found[name] = int(words) if words.isdigit() else words or True
    return found


def bridged(**model: Any) -> Fields:
    """Returns the fields of ConfigContainer: those of the model as given, all others as usual."""
    reset = ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage",
             "virtual_pipeline_model_parallel_size", "pipeline_model_parallel_layout",
             "expert_tensor_parallel_size", "recompute_method", "recompute_num_layers",
             "recompute_granularity", "mtp_num_layers")  # fmt: skip
    usual = {
        **dict.fromkeys(reset),
        "context_parallel_size": 3,
        "expert_model_parallel_size": 1,
        "sequence_parallel": True,
        "account_for_embedding_in_pipeline_split": False,
        "account_for_loss_in_pipeline_split": False,
        "seq_length": 512,
    }
    return {
        **{f"model.{name}": value for name, value in {**usual, **model}.items()},
        "dataset.sequence_length": 512,
        "train.micro_batch_size": 7,
        "train.global_batch_size": 280,
        "ddp.overlap_grad_reduce": True,
        "mixed_precision": "bf16_mixed",
    }


def sharded(zero: bool, fsdp: bool, strategy: str) -> Fields:
    """Returns the fields of Megatron-Bridge that shard over data ranks."""
    return {
        "ddp.use_distributed_optimizer": zero,
        "ddp.overlap_param_gather": zero,
        "ddp.use_megatron_fsdp": fsdp,
        "ddp.data_parallel_sharding_strategy": strategy,
    }


FULL: Final[Fields] = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}
BRIDGE_UNEVEN: Final = {
    **bridged(
        tensor_model_parallel_size=2,
        pipeline_model_parallel_size=4,
        expert_model_parallel_size=15,
        expert_tensor_parallel_size=2,
        pipeline_model_parallel_layout="Et|t*2|t*3|t*4L",
        **FULL,
    ),
    **sharded(True, False, "optim"),
}
BRIDGE_CHUNKED: Final = {
    **bridged(
        tensor_model_parallel_size=6,
        pipeline_model_parallel_size=4,
        virtual_pipeline_model_parallel_size=2,
        sequence_parallel=False,
        recompute_granularity="selective",
    ),
    **sharded(False, False, "no_shard"),
    "mixed_precision": "fp16_mixed",
}
BRIDGE_PREDICTING: Final = {
    **BRIDGE_UNEVEN,
    **{f"model.{name}": None for name in FULL},
    "model.mtp_num_layers": 2,
    "model.pipeline_model_parallel_layout": "Et|t*2|t*3|t*4m*2L",
}
PLAIN: Final = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 1}
BRIDGE_SHARDED: Final = {**bridged(**PLAIN, **FULL), **sharded(True, True, "optim_grads_params")}
BRIDGE_GRADIENTS: Final = {**bridged(**PLAIN), **sharded(True, True, "optim_grads")}

DEEPSPEED_PIPED: Final = {
    "train_batch_size": 120,
    "train_micro_batch_size_per_gpu": 5,
    "gradient_accumulation_steps": 8,
    "zero_optimization.stage": 1,
    "bf16.enabled": True,
    "fp16.enabled": False,
    "topology": {"num_pp": 4, "num_mp": 2, "num_dp": 3},
    "activation_checkpoint_interval": 1,
    "PARTS": [0, 2, 4, 7, 12],  # with the embedding before the layers and the head after them
}
DEEPSPEED_CUT: Final = {
    "train_batch_size": 120,
    "train_micro_batch_size_per_gpu": 5,
    "gradient_accumulation_steps": 8,
    "zero_optimization.stage": 2,
    "bf16.enabled": False,
    "fp16.enabled": True,
    "tensor_parallel.autotp_size": 2,
}


def recipe(local_batch: int, recompute: Any, **parallelism: Any) -> Fields:
    """Returns the fields of torchtitan's Trainer.Config."""
    return {
        "training.local_batch_size": local_batch,
        "training.global_batch_size": 280,
        "training.seq_len": 512,
        "training.mixed_precision_param": "bfloat16",
        "activation_checkpoint": recompute,
        "parallelism.context_parallel_degree": 3,
        **{f"parallelism.{name}": value for name, value in parallelism.items()},
    }


TITAN_SPREAD: Final = recipe(
    7 * 8,
    "FullAC",
    data_parallel_replicate_degree=1,
    data_parallel_shard_degree=5,
    fsdp_reshard_after_forward="always",
    tensor_parallel_degree=1,
    enable_sequence_parallel=False,
    expert_parallel_degree=15,
    pipeline_parallel_degree=4,
    pipeline_parallel_schedule="1F1B",
    pipeline_parallel_microbatch_size=7,
    module_fqns_per_model_part=[
        ["tok_embeddings", "layers.0"],
        ["layers.1", "layers.2"],
        ["layers.3", "layers.4", "layers.5"],
        ["layers.6", "layers.7", "layers.8", "layers.9", "norm", "lm_head"],
    ],
)
ONE_STAGE: Final[Fields] = {
    "tensor_parallel_degree": 2,
    "enable_sequence_parallel": True,
    "expert_parallel_degree": 1,
    "pipeline_parallel_degree": 1,
}
TITAN_REPLICATED: Final = recipe(
    7,
    "SelectiveAC",
    data_parallel_replicate_degree=5,
    data_parallel_shard_degree=1,
    fsdp_reshard_after_forward="never",
    **ONE_STAGE,
)
TITAN_GRADIENTS: Final = recipe(
    7,
    None,
    data_parallel_replicate_degree=1,
    data_parallel_shard_degree=5,
    fsdp_reshard_after_forward="never",
    **ONE_STAGE,
)
MAXTEXT_EQUAL: Final = {
    "base_num_decoder_layers": 16,
    "tensor_parallelism": 3,
    "context_parallelism": 7,
    "expert_parallelism": 5,
    "fsdp_parallelism": 4,  # data 20 less the experts' 5
    "pipeline_parallelism": 2,
    "per_device_batch_size": 8,  # 20 x 42 x 8 sequences on 840 devices
    "gradient_accumulation_steps": 1,
    "max_target_length": 512,
    "num_pipeline_microbatches": 8,
    "num_layers_per_pipeline_stage": 4,
    "num_pipeline_repeats": 2,
    "shard_optimizer_over_data": False,
    "remat_policy": "full",
    "dtype": "bfloat16",
    "scan_layers": False,
}
MAXTEXT_REPLICATED: Final = {
    "base_num_decoder_layers": 6,
    "tensor_parallelism": 2,
    "context_parallelism": 3,
    "expert_parallelism": 1,
    "data_parallelism": 5,
    "pipeline_parallelism": 1,
    "per_device_batch_size": pytest.approx(280 / 30 / 8),
    "gradient_accumulation_steps": 8,
    "max_target_length": 512,
    "shard_optimizer_over_data": False,
    "remat_policy": "minimal_with_context",
    "dtype": "bfloat16",
    "scan_layers": True,
}
MAXTEXT_LINED: Final = {
    **MAXTEXT_REPLICATED,
    "base_num_decoder_layers": 8,
    "pipeline_parallelism": 4,
    "per_device_batch_size": 24,  # 5 x 72 x 8 sequences on 120 devices
    "gradient_accumulation_steps": 1,
    "num_pipeline_microbatches": 8,
    "num_layers_per_pipeline_stage": 2,
    "num_pipeline_repeats": 1,
    "shard_optimizer_over_data": True,
    "scan_layers": False,
}
JAX_EQUAL: Final = {
    "AXES": ("stage", "data", "context", "tensor"),
    "SHAPE": (2, 20, 7, 3),
    "DEVICES": list(range(840)),
    "STAGES": [[(0, 4), (8, 4)], [(4, 4), (12, 4)]],
    "NUM_LAYERS": 16,
    "VOCAB_ROWS": 1002,  # three tensor ranks cut it
    "EXPERT_PARALLEL": 5,
    "MICRO_BATCH": 42,
    "NUM_MICRO_BATCHES": 8,
    "GLOBAL_BATCH": 6720,
    "SEQ_LEN": 512,
    "PRECISION": "bf16",
    "ZERO_STAGE": 3,
    "RECOMPUTE": "full",
    "SPECS": {
        "tokens": (None, "data", "context"),
        "activations": (None, "data", ("context", "tensor"), None),
        "embedding": ("tensor", "data"),
        "head": ("data", "tensor"),
        "column": ("stage", None, "data", "tensor"),
        "row": ("stage", None, "tensor", "data"),
        "vector": ("stage", None, None),
    },
}
JAX_BACKWARDS: Final = {
    **JAX_EQUAL,
    "SHAPE": (4, 5, 3, 2),
    "DEVICES": [30 * stage + rank for stage in (3, 2, 1, 0) for rank in range(30)],
    "STAGES": [[(0, 2)], [(2, 2)], [(4, 2)], [(6, 2)]],
    "NUM_LAYERS": 8,
    "VOCAB_ROWS": 1000,
    "EXPERT_PARALLEL": 1,
    "MICRO_BATCH": 72,
    "GLOBAL_BATCH": 2880,
    "ZERO_STAGE": 1,
    "RECOMPUTE": "selective",
    "SPECS": {
        "tokens": (None, "data", "context"),
        "activations": (None, "data", ("context", "tensor"), None),
        "embedding": ("tensor", None),
        "head": (None, "tensor"),
        "column": ("stage", None, None, "tensor"),
        "row": ("stage", None, "tensor", None),
        "vector": ("stage", None, None),
    },
}
CASES: Final[dict[str, tuple[Launch, Fields]]] = {
    "megatron, uneven": (UNEVEN, flags(UNEVEN_FLAGS)),
    "megatron, chunked": (CHUNKED, flags(CHUNKED_FLAGS)),
    "megatron, sharded": (SHARDED, flags(SHARDED_FLAGS)),
    "megatron, predicting": (PREDICTING, flags(PREDICTING_FLAGS)),
    "bridge, predicting": (PREDICTING, BRIDGE_PREDICTING),
    "flagscale, predicting": (PREDICTING, as_yaml(PREDICTING_FLAGS)),
    "bridge, uneven": (UNEVEN, BRIDGE_UNEVEN),
    "bridge, chunked": (CHUNKED, BRIDGE_CHUNKED),
    "bridge, sharded": (SHARDED, BRIDGE_SHARDED),
    "bridge, gradients": (GRADIENTS, BRIDGE_GRADIENTS),
    "deepspeed, piped": (PIPED, DEEPSPEED_PIPED),
    "deepspeed, cut": (CUT, DEEPSPEED_CUT),
    "flagscale, uneven": (UNEVEN, as_yaml(UNEVEN_FLAGS)),
    "flagscale, chunked": (CHUNKED, as_yaml(CHUNKED_FLAGS)),
    "flagscale, sharded": (SHARDED, as_yaml(SHARDED_FLAGS)),
    "flagscale, types": (TYPES, {**as_yaml(TYPES_FLAGS), **MESHES}),
    "torchtitan, spread": (SPREAD, TITAN_SPREAD),
    "torchtitan, replicated": (REPLICATED, TITAN_REPLICATED),
    "torchtitan, gradients": (GRADIENTS, TITAN_GRADIENTS),
    "maxtext, equal": (EQUAL, MAXTEXT_EQUAL),
    "maxtext, replicated": (REPLICATED, MAXTEXT_REPLICATED),
    "maxtext, lined": (LINED, MAXTEXT_LINED),
    "jax, equal": (EQUAL, JAX_EQUAL),
    "jax, backwards": (BACKWARDS, JAX_BACKWARDS),
}


@pytest.mark.parametrize("case", CASES)
def test_every_field_is_the_plans(case: str) -> None:
    """An export has the fields that are listed, with the plan's values, and no other field."""
    launch, expected = CASES[case]
    framework = case.partition(",")[0]
    files, refused = export_files(launch, framework)
    assert refused == ()
    assert READERS[framework](files) == expected


def test_degrees_of_these_plans_differ() -> None:
    """One degree in place of another, or none at all, is another value of its field."""
    for launch, _ in CASES.values():
        plan = launch.plan
        degrees = [plan.tensor_parallel, plan.context_parallel, plan.data_parallel,
                   plan.expert_parallel, plan.pipeline_parallel]  # fmt: skip
        used = [degree for degree in degrees if degree > 1]
        assert len(set(used)) == len(used) >= 2


def test_every_format_is_read() -> None:
    """No format is without such a plan."""
    assert {case.partition(",")[0] for case in CASES} == set(READERS) == set(FORMATS)
