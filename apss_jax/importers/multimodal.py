"""Models of a language part and a vision tower: Llama 4, Mistral 3, Qwen-VL."""

from __future__ import annotations

from collections.abc import Callable

from apss_jax.importers import decoders, experts, hybrids, latent, towers
from apss_jax.importers.decoders import ModelFrom
from apss_jax.importers.fields import HIDDEN, Fields
from apss_jax.schema.model import Model, Tower

TowerFrom = Callable[[Fields, int], Tower]

# What the configuration classes assume of a nested vision section that is silent.
LLAMA4_VISION = {"num_channels": 3, "vision_output_dim": 4096}
QWEN2_VISION = {"depth": 32, "embed_dim": 1280, "num_heads": 16, "mlp_ratio": 4, "patch_size": 14}
QWEN2_5_VISION = {
    "depth": 32, "hidden_size": 1280, "num_heads": 16, "intermediate_size": 3420, "patch_size": 14,
}  # fmt: skip
QWEN3_VISION = {
    "depth": 27, "hidden_size": 1152, "num_heads": 16, "intermediate_size": 4304, "patch_size": 16,
    "num_position_embeddings": 2304,
}  # fmt: skip
PIXTRAL = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
    "num_attention_heads": 16, "patch_size": 16,
}  # fmt: skip


def joined(text_from: ModelFrom, tower_from: TowerFrom, defaults: dict[str, int]) -> ModelFrom:
    """Returns the importer of a family with a language model and a vision tower."""

    def build(f: Fields) -> Model:
        text, vision = text_part(f), f.section("vision_config")
        model = text_from(text)
        if vision is None:
            f.note("no vision_config: the vision tower is not counted and not planned")
            return model
        return towers.with_tower(model, tower_from(vision.filled(defaults), text.size(*HIDDEN)))

    return build


def text_part(f: Fields) -> Fields:
    """Returns the language model's fields: nested, or (older files) beside `vision_config`."""
    text = f.section("text_config")
    if text is None:
        return f
    if not f.has("tie_word_embeddings"):
        return text
    return text.with_field("tie_word_embeddings", f.data["tie_word_embeddings"])


def llama4(f: Fields) -> Model:
    """Returns a Llama 4, with its vision tower where the config describes one."""
    vision = f.section("vision_config")
    if towers.described(vision):
        return joined(experts.llama4_text, towers.llama4_vision, LLAMA4_VISION)(f)
    f.note("vision_config gives no sizes: the vision tower is not counted and not planned")
    return experts.llama4_text(text_part(f))


def mistral3(f: Fields) -> Model:
    """Returns a Mistral Small 3.1 or Ministral 3, with its Pixtral tower."""
    text = f.section("text_config")
    kind = text.text("model_type", "mistral") if text else "mistral"
    families = {**decoders.FAMILIES, **latent.FAMILIES}
    if kind not in families or text is None:
        raise f.wrong("text_config", f"{kind!r} cannot be represented", "Use a mistral text model")
    merge = f.size("spatial_merge_size", default=2)
    biased = f.flag("multimodal_projector_bias", False)

    def tower(vision: Fields, hidden: int) -> Tower:
        return towers.pixtral(vision, hidden, merge, bias=biased)

    return joined(families[kind], tower, PIXTRAL)(f)


QWEN3_MOE = experts.FAMILIES["qwen3_moe"]

FAMILIES: dict[str, ModelFrom] = {
    "llama4": llama4,
    "mistral3": mistral3,
    "qwen2_vl": joined(decoders.FAMILIES["qwen2"], towers.qwen2_vision, QWEN2_VISION),
    "qwen2_5_vl": joined(decoders.FAMILIES["qwen2"], towers.qwen2_5_vision, QWEN2_5_VISION),
    "qwen3_vl": joined(decoders.FAMILIES["qwen3"], towers.qwen3_vision, QWEN3_VISION),
    "qwen3_vl_moe": joined(QWEN3_MOE, towers.qwen3_vision, QWEN3_VISION),
    "qwen3_5": joined(hybrids.qwen3_5_text, towers.qwen3_5_vision, QWEN3_VISION),
    "qwen3_5_moe": joined(hybrids.qwen3_next, towers.qwen3_5_vision, QWEN3_VISION),
}
