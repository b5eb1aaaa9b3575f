"""Small valid inputs of every kind that has no file of its own in the library."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any, Final

import numpy as np
from import_graph import ROOT
from safetensors.numpy import save

from apss_jax.importers.library import LIBRARY

HOSTS: Final = (
    "# the rack on the left\ngpu-01 slots=8\ngpu-02 slots=16   # repaired\n\n10.0.0.7  slots=8\n",
    "a:4 type=H100\nb 8 max_slots=8\n",
)
SLURM: Final = (
    "SLURM_JOB_NODELIST=gpu[01-04,07],login1\nSLURM_NNODES=6\nSLURM_GPUS_PER_NODE=h100:8\n",
    'export SLURM_NNODES="2"\nSLURM_GPUS_ON_NODE=4\nSLURM_TASKS_PER_NODE=4(x2)\n',
)
SMI: Final = (
    "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-1)\nGPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-2)\n",
    "name, memory.total [MiB]\n" + 2 * "NVIDIA H100 80GB HBM3, 81559 MiB\n",
)
TOPOLOGY: Final = (
    "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV18\tPIX\t0-31\t0\n"
    "GPU1\tNV18\t X \tSYS\t32-63\t1\nNIC0\tPIX\tSYS\t X \t\t\n",
)
MEGATRON: Final = (
    "#!/bin/bash\nTP=${TP:-2}\nMODEL_ARGS=(\n  --num-layers 32 --hidden-size 4096  # sizes\n"
    "  --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention \\\n"
    "  --num-query-groups 8 --swiglu --untie-embeddings-and-output-weights --seq-length 8192\n)\n"
    'torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py "${MODEL_ARGS[@]}" \\\n'
    "  --tensor-model-parallel-size $TP --pipeline-model-parallel-size 2 --bf16 \\\n"
    "  --num-layers-per-virtual-pipeline-stage 4 --micro-batch-size 1 --global-batch-size 256\n",
    "--num-layers 61 --mtp-num-layers 1 --hidden-size 64 --num-attention-heads 4 --num-experts 8 "
    "--moe-layer-freq '([0]*3+[1]*58)' --pipeline-model-parallel-size 16 "
    "--pipeline-model-parallel-layout 'Et*4|(t*4|)*14,tmL' --rampup-batch-size 16 16 1000",
    "--num-layers 30 --pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 7 "
    "--decoder-last-pipeline-num-layers 7 --context-parallel-size 2 --recompute-granularity full",
)
RUNS: Final = (
    "run_id,gpu_model,num_gpus,num_layers,hidden,num_heads,seq_len,global_batch,micro_batch,tp,pp,"
    "dp,framework,step_time_s\na-0001,A100-SXM4-80GB,16,32,4096,32,2048,64,1,4,2,2,megatron,5.1\n"
    'b-0002,"V100-SXM2-32GB",8,24,1024,16,1024,32,4,1,1,8,,0.9\n',
)
NCCL: Final = (
    "# nThread 1 nGpus 8 minBytes 1048576 maxBytes 67108864 step: 8(factor) warmup iters: 5\n"
    "#  Rank  0 Group  0 Pid   100 on     node1 device  0 [0x07] NVIDIA A100-SXM4-80GB\n"
    "#  Rank  1 Group  0 Pid   100 on     node2 device  0 [0x07] NVIDIA A100-SXM4-80GB\n"
    "#     size     count    type  redop  root    time  algbw  busbw #wrong   time  algbw  busbw\n"
    "#      (B) (elements)                        (us) (GB/s) (GB/s)          (us) (GB/s) (GB/s)\n"
    "   1048576    262144   float    sum    -1   107.3   9.77   9.77      0  107.0   9.80   9.80\n"
    "  67108864  16777216   float    sum    -1  6713.3  10.00  10.00      0 6713.0  10.00  10.00\n",
)
ACESO: Final = (
    "op_name,forward-compute,backward-compute\nencoder-embedding,400.0,700.0\n"
    "enc-attention-qkv,2000.0,4000.0\nenc-MLP-GEMM-1,3000.0,6000.0\nfinal-layernorm,40.0,90.0\n"
    "gpt-post-process,4000.0,3000.0\n",
)
LAYOUTS: Final = ("Et*3|(tt|)*29,m|L", "E|(t|)*3,m|m||L", "Et*6|t*8|t*9|t*9L", "EttL")
SHORTHAND: Final = ("4x8xH100-SXM5-80GB", "1x2xA100+3x4xV100-SXM2-32GB", "8xH100", "gb200-nvl72")
PINS: Final = ("tp=8", "pp=1,2,4", "recompute=full", "sp=on", "schedule=1f1b,gpipe", "zero=0,3")


def as_json(*values: Any) -> tuple[bytes, ...]:
    """Returns values as JSON files."""
    return tuple(json.dumps(value).encode() for value in values)


def texts(values: tuple[str, ...]) -> tuple[bytes, ...]:
    """Returns texts as files."""
    return tuple(value.encode() for value in values)


def library(folder: str, *names: str) -> tuple[bytes, ...]:
    """Returns files of the library, all of a folder where none is named."""
    paths = [LIBRARY / folder / f"{n}.json" for n in names] or (LIBRARY / folder).glob("*.json")
    return tuple(path.read_bytes() for path in sorted(paths))


def configs() -> tuple[bytes, ...]:
    """Returns published configurations of Hugging Face, one of each family."""
    folder = ROOT / "tests" / "importers"
    rows = [row for name in ("known_counts.json", "transformers_counts.json")
            for row in json.loads((folder / name).read_text())]  # fmt: skip
    kinds = {row["config"]["model_type"]: row["config"] for row in rows}
    return as_json(*kinds.values())


def metis() -> tuple[bytes, ...]:
    """Returns a profile of Metis."""
    times = {"layer_compute_total_ms": [0.3, *[9.0] * 24, 0.4], "forward_backward_time_ms": 220.0}
    sizes = {"total_parameters_bytes": 260, "parameters_per_layer_bytes": [10] * 26}
    return as_json({"model": {"parameters": sizes}, "execution_time": times})


def sailor() -> tuple[bytes, ...]:
    """Returns a profile of Sailor."""
    rows = {"0": [1e-3, 3e-6, 0.1], **{str(i): [5e-3, 9e-3, 0.1] for i in range(1, 25)}}
    return as_json({batch: {"1": {**rows, "25": [8e-3, 9e-3, 0.1]}} for batch in ("1", "4")})


def piper() -> tuple[bytes, ...]:
    """Returns a profile of Piper."""
    times = [0.0, 1e-3, *[9e-3] * 24, 2e-3]
    kinds = [{"id": "vanilla", "memoryUsageA": 1000.0}, {"id": "again", "memoryUsageA": 1.0}]
    nodes = [{"id": i, "TMPCs": {"1": [{**kind, "timePerSample": time_s} for kind in kinds]}}
             for i, time_s in enumerate(times)]  # fmt: skip
    return as_json({"nodes": nodes})


def vectors() -> tuple[bytes, ...]:
    """Returns a file of AMP, which is one array of numpy."""
    file = io.BytesIO()
    np.save(file, np.array([3e-4, 1e-4, *[5e-3] * 24, 1e-4, 2e-3]))
    return (file.getvalue(),)


def tensors() -> tuple[bytes, ...]:
    """Returns a small file of safetensors."""
    return (save({"a": np.ones((2, 3), dtype=np.float32), "b": np.zeros(4, dtype=np.int32)}),)


def policy_config() -> tuple[bytes, ...]:
    """Returns the sizes of the shipped network."""
    return ((ROOT / "checkpoints" / "dpsn" / "config.json").read_bytes(),)


def beside(folder: Path) -> None:
    """Puts the shipped weights where a configuration is read."""
    (folder / "weights.safetensors").symlink_to(ROOT / "checkpoints" / "dpsn/weights.safetensors")
