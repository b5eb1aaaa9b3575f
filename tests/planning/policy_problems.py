"""Twenty questions on which the policy is held against costing everything."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Question:
    """One question of a search; pins keep the number of layouts that must be costed bearable."""

    model: str
    cluster: str
    global_batch: int
    seq_len: int | None = None
    stack: str | None = None
    pins: dict[str, tuple[object, ...]] = field(default_factory=dict)


PLAIN = {"virtual_stages": (1,)}
ONE_SAMPLE = {"micro_batch": (1, 2), "virtual_stages": (1, 2)}

QUESTIONS = (
    Question("gpt2-345m-amp", "amp-homogeneous", 32),
    Question("gpt2-345m-amp", "amp-het-cluster", 32),
    Question("transgan-amp", "amp-het-model", 64),
    Question("gpt2", "1x4xA100-SXM4-80GB", 16, 1024, "megatron"),
    Question("gpt2-xl", "1x8xT4-16GB", 16, 1024, "deepspeed"),
    Question("gpt2-xl", "2x4xV100-SXM2-16GB", 32, 1024, "megatron", PLAIN),
    Question("llama-3.2-1b", "1x7xA100-SXM4-40GB", 24, 2048, "megatron"),
    Question("llama-3.1-8b", "1x8xH100-SXM5-80GB", 16, 4096, "megatron", ONE_SAMPLE),
    Question("llama-3.1-8b", "1x8xA100-SXM4-40GB", 16, 4096, "fsdp", ONE_SAMPLE),
    Question("llama-2-7b", "1x5xA100-SXM4-80GB+1x3xA100-SXM4-80GB", 24, 4096, "megatron", PLAIN),
    Question("qwen2.5-7b", "1x4xH100-SXM5-80GB+1x4xA100-SXM4-80GB", 16, 4096, "megatron", PLAIN),
    Question("qwen3-4b", "2x4xL40S-48GB", 16, 4096, "generic", PLAIN),
    Question("mistral-7b-v0.1", "1x8xMI300X", 16, 8192, "generic", PLAIN),
    Question("mixtral-8x7b", "2x8xH100-SXM5-80GB", 16, 4096, "megatron", PLAIN),
    Question("qwen3-30b-a3b", "1x8xH200-SXM-141GB", 8, 4096, "megatron", PLAIN),
    Question("bert-large-uncased", "1x7xT4-16GB", 28, 512, "deepspeed"),
    Question("gemma-2b", "1x6xA10G-24GB", 12, 2048, "torchtitan", PLAIN),
    Question("bloom-560m", "1x3xV100-SXM2-32GB+1x2xT4-16GB", 12, 1024, "nanotron"),
    Question("llama-3.1-8b", "2x4xGB200-NVL72", 16, 8192, "nemo", PLAIN),
    Question("gpt2-xl", "1x4xA100-SXM4-40GB+2x2xV100-SXM2-16GB", 24, 1024, "megatron", PLAIN),
)
