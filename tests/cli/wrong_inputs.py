"""Wrong input by kind: the files, the words of the command, and the key that must be named."""

import json
from pathlib import Path
from typing import Any, NamedTuple

DEVICE = {
    "memory_bytes": 80 * 10**9,
    "peak_flops_per_s": {"bf16": 1e15},
    "memory_bytes_per_s": 3e12,
    "rates": {
        "gemm_fraction": 0.7,
        "gemm_half_size": 64.0,
        "attention_fraction": 0.2,
        "memory_fraction": 0.8,
        "source": "made up for this test",
    },
}
LINK = {"bytes_per_s": 1e11, "latency_s": 1e-5}
NODES = [{"count": 2, "devices": 4, "device_type": "d", "intra_link": "l", "network": "l"}]
CLUSTER = {
    "schema": "apss.cluster_profile/1",
    "name": "c",
    "device_types": {"d": DEVICE},
    "links": {"l": LINK},
    "nodes": NODES,
}
GPT = {
    "model_type": "gpt2",
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
}
PLAN = {
    "tensor_parallel": 1,
    "pipeline_parallel": 2,
    "data_parallel": 2,
    "micro_batch": 1,
    "num_micro_batches": 16,
    "stages": [
        {"chunks": [{"first_layer": 0, "num_layers": 6, "embedding": True}]},
        {"chunks": [{"first_layer": 6, "num_layers": 6, "head": True}]},
    ],
}
SPARSE = 2**30  # bytes of a file that holds nothing

# name -> content; what is not text or bytes is written as JSON.
FILES: dict[str, Any] = {
    "truncated.json": '{"model_type": "gpt2", "n_embd": ',
    "nan.json": '{"model_type": "gpt2", "n_embd": NaN}',
    "nested.json": "[" * 100_000,
    "nested_object.json": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "duplicate.json": '{"model_type": "gpt2", "n_embd": 768, "n_embd": 1024}',
    "binary.json": bytes(range(256)),
    "utf16.json": json.dumps(GPT).encode("utf-16"),
    "empty.json": "",
    "array.json": [GPT],
    "null.json": None,
    "long_integer.json": '{"model_type": "gpt2", "n_embd": ' + "9" * 5000 + "}",
    "infinite.json": '{"model_type": "gpt2", "n_embd": 1e400}',
    "text_size.json": GPT | {"n_embd": "wide"},
    "bool_size.json": GPT | {"n_embd": True},
    "negative_layers.json": GPT | {"n_layer": -12},
    "no_heads.json": GPT | {"n_head": 0},
    "half_layer.json": GPT | {"n_layer": 1.5},
    "billion_layers.json": GPT | {"n_layer": 10**9},
    "huge_width.json": GPT | {"n_embd": 12 * 10**30},
    "unknown_type.json": GPT | {"model_type": "gtp2"},
    "no_type.json": {k: v for k, v in GPT.items() if k != "model_type"},
    "odd_model.json": {"schema": "apss.model/1", "name": "m", "hiden_size": 768},
    "no_layers.json": {"schema": "apss.model/1", "name": "m", "hidden_size": 768},
    "next_schema.json": {"schema": "apss.model/2", "name": "m"},
    "cluster.json": CLUSTER,
    "old_cluster.json": CLUSTER | {"schema": "apss.cluster_profile/0"},
    "next_cluster.json": CLUSTER | {"schema": "apss.cluster_profile/2"},
    "gpt.json": GPT,
    "negative_count.json": CLUSTER | {"nodes": [NODES[0] | {"count": -1}]},
    "no_gpus.json": CLUSTER | {"nodes": [NODES[0] | {"devices": 0}]},
    "no_nodes.json": CLUSTER | {"nodes": []},
    "many_devices.json": CLUSTER | {"nodes": [NODES[0] | {"count": 10**12}]},
    "unknown_link.json": CLUSTER | {"nodes": [NODES[0] | {"network": "carrier pigeon"}]},
    "still_link.json": CLUSTER | {"links": {"l": LINK | {"bytes_per_s": 0}}},
    "odd_cluster.json": CLUSTER | {"colour": "green"},
    "bool_memory.json": CLUSTER | {"device_types": {"d": DEVICE | {"memory_bytes": True}}},
    "infinite_link.json": json.dumps(CLUSTER).replace("100000000000.0", "1e999"),
    "odd_stack.json": {"schema": "apss.stack/1", "name": "s", "source": "s", "kernel_s": -1},
    "plan.json": PLAN,
    "no_tensor_plan.json": {k: v for k, v in PLAN.items() if k != "tensor_parallel"},
    "bool_plan.json": PLAN | {"tensor_parallel": True},
    "zero_plan.json": PLAN | {"micro_batch": 0},
    "huge_plan.json": PLAN | {"data_parallel": 10**30},
    "nobody.json": PLAN | {"model": "nobody", "cluster": "1x4xA100", "global_batch": 32},
    "odd_plan.json": PLAN | {"tensor_paralel": 2},
    "recompute_plan.json": PLAN | {"recompute": "some"},
    "next_plan.json": PLAN | {"schema": "apss.plan/2"},
    "infinite_plan.json": json.dumps(PLAN | {"micro_batch": "x"}).replace('"x"', "1e400"),
    "lost_chunks.json": PLAN | {"stages": [{"devices": [0]}]},
    "next_result.json": {"schema": "apss.search_result/2", "plans": [PLAN]},
    "old_estimate.json": {"schema": "apss.estimate/0", "plan": PLAN},
    "no_plans.json": {"schema": "apss.search_result/1", "plans": []},
    "odd_result.json": {"schema": "apss.search_result/1", "plans": [PLAN | {"data_parallel": -1}]},
    "taken/result.json": {},
    "taken/plan.json": {},
}


class Wrong(NamedTuple):
    """A wrong command line and the key that its error must name."""

    words: str  # split at spaces; '' is an empty word
    key: str


MODELS = [
    Wrong("--model missing.json", "(path)"),
    Wrong("--model truncated.json", "line 1, column 34"),
    Wrong("--model nan.json", "(whole file)"),
    Wrong("--model folder/", "(path)"),
    Wrong("--model sparse.json", "(file)"),
    Wrong("--model nested.json", "(whole file)"),
    Wrong("--model nested_object.json", "(whole file)"),
    Wrong("--model duplicate.json", "(whole file)"),
    Wrong("--model binary.json", "(file)"),
    Wrong("--model utf16.json", "(file)"),
    Wrong("--model empty.json", "line 1, column 1"),
    Wrong("--model array.json", "(whole file)"),
    Wrong("--model null.json", "(whole file)"),
    Wrong("--model long_integer.json", "(whole file)"),
    Wrong("--model infinite.json", "n_embd"),
    Wrong("--model text_size.json", "n_embd"),
    Wrong("--model bool_size.json", "n_embd"),
    Wrong("--model negative_layers.json", "n_layer"),
    Wrong("--model no_heads.json", "n_head"),
    Wrong("--model half_layer.json", "n_layer"),
    Wrong("--model billion_layers.json", "n_layer"),
    Wrong("--model huge_width.json", "n_embd"),
    Wrong("--model unknown_type.json", "model_type"),
    Wrong("--model no_type.json", "model_type"),
    Wrong("--model odd_model.json", "hiden_size"),
    Wrong("--model no_layers.json", "(whole file)"),
    Wrong("--model next_schema.json", "schema"),
    Wrong("--model cluster.json", "schema"),
    Wrong("--model lama-3.1-8b", "--model"),
    Wrong("--model ''", "--model"),
]
CLUSTERS = [
    Wrong("--cluster missing.json", "(path)"),
    Wrong("--cluster truncated.json", "line 1, column 34"),
    Wrong("--cluster folder/", "(path)"),
    Wrong("--cluster gpt.json", "schema"),
    Wrong("--cluster 2x8xH1000", "--cluster"),
    Wrong("--cluster 0x8xH100", "--cluster"),
    Wrong("--cluster 2x0xH100", "--cluster"),
    Wrong("--cluster -1x8xH100", "--cluster"),
    Wrong("--cluster 2x8x", "--cluster"),
    Wrong("--cluster 2x8xH100+", "--cluster"),
    Wrong("--cluster 9999999x8xH100", "--cluster"),
    Wrong("--cluster H100", "--cluster"),
    Wrong("--cluster ''", "--cluster"),
    Wrong("--cluster negative_count.json", "nodes.0.count"),
    Wrong("--cluster no_gpus.json", "nodes.0.devices"),
    Wrong("--cluster no_nodes.json", "(whole file)"),
    Wrong("--cluster many_devices.json", "(whole file)"),
    Wrong("--cluster unknown_link.json", "(whole file)"),
    Wrong("--cluster still_link.json", "links.l.bytes_per_s"),
    Wrong("--cluster odd_cluster.json", "colour"),
    Wrong("--cluster bool_memory.json", "device_types.d.memory_bytes"),
    Wrong("--cluster infinite_link.json", "links.l.bytes_per_s"),
]
FLAGS = [
    Wrong("--global-batch 0", "--global-batch"),
    Wrong("--global-batch -1", "--global-batch"),
    Wrong("--global-batch 1.5", "--global-batch"),
    Wrong("--global-batch 1e99", "--global-batch"),
    Wrong("--global-batch 99999999999999999999", "--global-batch"),
    Wrong("--global-batch ''", "--global-batch"),
    Wrong("--seq-len 0", "--seq-len"),
    Wrong("--seq-len many", "--seq-len"),
    Wrong("--top 0", "--top"),
    Wrong("--precision bf17", "--precision"),
    Wrong("--stack megatrn", "--stack"),
    Wrong("--stack odd_stack.json", "kernel_s"),
    Wrong("--solver exakt", "--solver"),
    Wrong("--pin tensor=8", "--pin"),
    Wrong("--pin tp", "--pin"),
    Wrong("--pin tp=", "--pin tp"),
    Wrong("--pin tp=wide", "--pin tp"),
    Wrong("--pin tp=2,0", "--pin tp"),
    Wrong("--pin tp=2 --pin tp=4", "--pin"),
    Wrong("--pin zero=4", "--pin zero"),
    Wrong("--pin recompute=all", "--pin recompute"),
    Wrong("--pin sp=maybe", "--pin sp"),
    Wrong("--modell gpt2", "--modell"),
    Wrong("--cluster", "--cluster"),
    Wrong("--force=yes", "--force"),
    Wrong("gpt2", "(command line)"),
    Wrong("--force", "--force"),
    Wrong("--out gpt.json", "--out"),
    Wrong("--out taken", "--out"),
    Wrong("--out gpt.json/deeper", "--out"),
]
GPT2 = "--model gpt2 --cluster 1x4xA100-SXM4-80GB --global-batch 32"
PLANS = [
    Wrong("", "--plan"),
    Wrong(GPT2, "--plan"),
    Wrong("--tp 2", "--model"),
    Wrong("--model gpt2 --tp 2", "--cluster"),
    Wrong("--model gpt2 --cluster 1x4xA100-SXM4-80GB --dp 2", "--global-batch"),
    Wrong("--plan plan.json --tp 2", "--plan"),
    Wrong("--plan plan.json --no-sequence-parallel", "--plan"),
    Wrong("--plan plan.json", "--model"),
    Wrong(f"{GPT2} --tp 0", "--tp"),
    Wrong(f"{GPT2} --tp two", "--tp"),
    Wrong(f"{GPT2} --tp 99999999999", "--tp"),
    Wrong(f"{GPT2} --zero 4", "--zero"),
    Wrong(f"{GPT2} --recompute some", "--recompute"),
    Wrong(f"{GPT2} --schedule dualpipe", "--schedule"),
    Wrong(f"{GPT2} --pp 2 --split 6,x", "--split"),
    Wrong(f"{GPT2} --pp 2 --split 4,4,4", "--split"),
    Wrong(f"{GPT2} --plan missing.json", "(path)"),
    Wrong(f"{GPT2} --plan ''", "(path)"),
    Wrong(f"{GPT2} --plan truncated.json", "line 1, column 34"),
    Wrong(f"{GPT2} --plan nested.json", "(whole file)"),
    Wrong(f"{GPT2} --plan array.json", "(whole file)"),
    Wrong(f"{GPT2} --plan gpt.json", "model_type"),
    Wrong(f"{GPT2} --plan cluster.json", "schema"),
    Wrong(f"{GPT2} --plan next_plan.json", "schema"),
    Wrong(f"{GPT2} --plan no_tensor_plan.json", "tensor_parallel"),
    Wrong(f"{GPT2} --plan bool_plan.json", "tensor_parallel"),
    Wrong(f"{GPT2} --plan zero_plan.json", "micro_batch"),
    Wrong(f"{GPT2} --plan huge_plan.json", "data_parallel"),
    Wrong("--plan nobody.json", "--model"),
    Wrong(f"{GPT2} --plan odd_plan.json", "tensor_paralel"),
    Wrong(f"{GPT2} --plan recompute_plan.json", "recompute"),
    Wrong(f"{GPT2} --plan infinite_plan.json", "micro_batch"),
    Wrong(f"{GPT2} --plan lost_chunks.json", "stages.0.chunks"),
    Wrong(f"{GPT2} --plan no_plans.json", "plans"),
    Wrong(f"{GPT2} --plan odd_result.json", "plans.0.data_parallel"),
]

# Well-formed values that no legal layout has: the phrase is part of the broken rule's words.
ILLEGAL = {
    "--pin dp=3": "32 cannot be divided",
    "--pin mbs=7": "32 cannot be divided",
    "--pin tp=8": "heads cannot be divided",
    "--pin tp=4 --pin pp=4": "the cluster has 4",
    "--pin pp=13": "the cluster has 4",
    "--pin ep=2": "the model has none",
    "--pin sp=on --pin tp=1": "tensor parallel of at least 2",
    "--pin vpp=2 --pin schedule=gpipe": "interleaved_1f1b",
    "--seq-len 2048": "1024 positions",
    "--precision fp8": "cannot compute in fp8",
}


def write_files(folder: Path) -> None:
    """Writes every wrong file, a folder, and a file of 1 GiB that takes no room."""
    for name, content in FILES.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content))
    (folder / "folder").mkdir()
    with (folder / "sparse.json").open("wb") as file:
        file.truncate(SPARSE)
