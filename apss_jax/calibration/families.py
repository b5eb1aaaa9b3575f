"""What a family of models has in common, for runs that state only the sizes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from apss_jax.schema.layers import NormKind


@dataclass(frozen=True)
class ModelFamily:
    """The parts of an architecture that no column of a runs table gives."""

    pattern: str  # of the model's name, in any case
    norm: NormKind
    gated: bool
    bias: bool
    learned_positions: bool
    tied: bool
    vocab_size: int
    embedding_norm: bool = False


# Vocabularies are those of each family's first release.
GPT: Final = ModelFamily("", "layer", False, True, True, True, 50_257)
LLAMA: Final = ModelFamily("", "rms", True, False, False, False, 32_000)
FAMILIES: Final = (
    ModelFamily(r"bloom", "layer", False, True, False, True, 250_880, embedding_norm=True),
    ModelFamily(r"\bmpt\b", "layer_no_bias", False, False, True, True, 50_368),
    ModelFamily(r"\bopt\b", "layer", False, True, True, True, 50_272),
    ModelFamily(r"nemotron", "layer", False, False, False, False, 256_000),
    ModelFamily(r"falcon", "layer", False, False, False, True, 65_024),
    ModelFamily(r"internlm", "rms", True, True, False, False, 103_168),
    ModelFamily(
        r"llama|mi[sx]tral|qwen|deepseek|kimi|grok|\byi\b|gemma|olmo|phi|glm",
        "rms", True, False, False, False, 32_000,
    ),
    ModelFamily(r"gpt|megatron|mt-nlg|bert", "layer", False, True, True, True, 50_257),
)  # fmt: skip


def family_named(name: str | None, hidden: int, ffn_hidden: int | None) -> ModelFamily:
    """Returns the family that a model's name tells, else the one that its sizes suggest."""
    for family in FAMILIES:
        if re.search(family.pattern, name or "", re.IGNORECASE):
            return family
    plain = ffn_hidden is None or ffn_hidden == 4 * hidden  # two matrices of four times the width
    return GPT if plain else LLAMA
