"""What the exports of other frameworks have of the plans, worked out by hand."""

from typing import Any, Final

import pytest
from fields_said import Fields

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
DEEPSPEED_PLAIN: Final = {
    "train_batch_size": 120,
    "train_micro_batch_size_per_gpu": 5,
    "gradient_accumulation_steps": 8,
    "zero_optimization.stage": 0,
    "bf16.enabled": True,
    "fp16.enabled": False,
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
TITAN_HALVED: Final = {
    **recipe(
        7 * 8,
        None,
        data_parallel_replicate_degree=1,
        data_parallel_shard_degree=5,
        fsdp_reshard_after_forward="always",
        tensor_parallel_degree=3,
        enable_sequence_parallel=True,
        expert_parallel_degree=1,
        pipeline_parallel_degree=2,
        pipeline_parallel_schedule="1F1B",
        pipeline_parallel_microbatch_size=7,
        module_fqns_per_model_part=[
            ["tok_embeddings", "layers.0", "layers.1"],
            ["layers.2", "layers.3", "layers.4", "layers.5", "norm", "lm_head"],
        ],
    ),
    "parallelism.context_parallel_degree": 1,
}
MAXTEXT_BASE: Final[Fields] = {
    "base_config": "base.yml",
    "hardware": "gpu",
    "base_emb_dim": 64,
    "base_num_query_heads": 8,
    "head_dim": 8,
    "logits_via_embedding": False,
    "dtype": "bfloat16",
    "max_target_length": 512,
}
MAXTEXT_EQUAL: Final = {
    **MAXTEXT_BASE,
    "base_num_kv_heads": 8,
    "num_experts": 30,
    "num_experts_per_tok": 2,
    "base_moe_mlp_dim": 64,
    "vocab_size": 1002,  # three tensor ranks cut it
    "base_num_decoder_layers": 16,
    "tensor_parallelism": 3,
    "context_parallelism": 7,
    "expert_parallelism": 5,
    "fsdp_parallelism": 4,  # data 20 less the experts' 5
    "pipeline_parallelism": 2,
    "per_device_batch_size": 8,  # 20 x 42 x 8 sequences on 840 devices
    "gradient_accumulation_steps": 1,
    "num_pipeline_microbatches": 8,
    "num_layers_per_pipeline_stage": 4,
    "num_pipeline_repeats": 2,
    "shard_optimizer_over_data": False,
    "remat_policy": "full",
    "scan_layers": False,
}
MAXTEXT_REPLICATED: Final = {
    **MAXTEXT_BASE,
    "base_num_kv_heads": 4,
    "base_mlp_dim": 256,
    "vocab_size": 1000,
    "base_num_decoder_layers": 6,
    "tensor_parallelism": 2,
    "context_parallelism": 3,
    "expert_parallelism": 1,
    "data_parallelism": 5,
    "pipeline_parallelism": 1,
    "per_device_batch_size": pytest.approx(280 / 30 / 8),
    "gradient_accumulation_steps": 8,
    "shard_optimizer_over_data": False,
    "remat_policy": "minimal_with_context",
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
MAXTEXT_LATENT: Final = {
    **{name: v for name, v in MAXTEXT_BASE.items() if name not in ("head_dim",)},
    "base_num_decoder_layers": 6,
    "base_num_query_heads": 4,
    "attention_type": "mla",
    "q_lora_rank": 20,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 6,
    "v_head_dim": 14,
    "base_mlp_dim": 96,
    "vocab_size": 1000,
    "tensor_parallelism": 2,
    "context_parallelism": 1,
    "expert_parallelism": 1,
    "fsdp_parallelism": 3,
    "pipeline_parallelism": 1,
    "per_device_batch_size": 2.5,  # 3 x 5 sequences on 6 devices
    "gradient_accumulation_steps": 8,
    "shard_optimizer_over_data": False,
    "remat_policy": "minimal",
    "scan_layers": True,
    "quantization": "fp8",
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
