"""What the exports of Megatron's family have of the plans, worked out by hand."""

from typing import Any, Final

from fields_said import Fields
from planned import A100, H100

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
LATENT_FLAGS: Final = """
--num-layers 6 --seq-length 512 --micro-batch-size 5 --global-batch-size 120 --bf16
--fp8-format hybrid
--tensor-model-parallel-size 2 --pipeline-model-parallel-size 1 --context-parallel-size 1
--use-distributed-optimizer --overlap-param-gather --overlap-grad-reduce
--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads
--no-gradient-accumulation-fusion --ckpt-format fsdp_dtensor"""
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
        "ddp.num_distributed_optimizer_instances": 1,
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
ONE_STAGE_MODEL: Final = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 1}
BRIDGE_SHARDED: Final = {
    **bridged(**ONE_STAGE_MODEL, **FULL),
    **sharded(True, True, "optim_grads_params"),
}
BRIDGE_GRADIENTS: Final = {**bridged(**ONE_STAGE_MODEL), **sharded(True, True, "optim_grads")}
