"""DeepSeek V2 and V3 and their relatives: latent attention, fine-grained experts."""

from __future__ import annotations

from collections.abc import Callable

from apss_jax.importers.decoders import Traits, decoder
from apss_jax.importers.experts import (
    after_first_dense,
    beside_dense,
    shared_beside,
    with_mtp,
)
from apss_jax.importers.fields import EXPERTS, HEADS, Fields
from apss_jax.schema.layers import LatentAttention, MoeMlp
from apss_jax.schema.model import Model

PLAIN = Traits()


def latent_attention(f: Fields, **extra: object) -> LatentAttention:
    """Returns the attention of a config with `kv_lora_rank`; a null `q_lora_rank` is a full one."""
    if "q_lora_rank" not in f.data:
        raise f.wrong("q_lora_rank", "is missing", "Add it; null means a full query projection")
    base = LatentAttention(
        num_heads=f.size(*HEADS),
        query_rank=f.optional_size("q_lora_rank"),
        kv_rank=f.size("kv_lora_rank"),
        nope_head_dim=f.size("qk_nope_head_dim"),
        rope_head_dim=f.count("qk_rope_head_dim"),
        value_head_dim=f.size("v_head_dim"),
        bias=f.flag("attention_bias", False),
    )
    return base.model_copy(update=extra)


def _indexed(f: Fields) -> LatentAttention:
    extra = {
        "index_heads": f.size("index_n_heads"),
        "index_head_dim": f.size("index_head_dim"),
    }
    return latent_attention(f, **extra)


def _model(f: Fields, mixer: LatentAttention, *, router_bias: bool) -> Model:
    moe = _experts(f, router_bias=router_bias)
    if moe is None:
        return decoder(f, PLAIN, mixer_of=lambda _: mixer)
    feed_forward_of = beside_dense(f, PLAIN, moe, after_first_dense(f))
    return decoder(f, PLAIN, mixer_of=lambda _: mixer, feed_forward_of=feed_forward_of)


def _experts(f: Fields, *, router_bias: bool) -> MoeMlp | None:
    if not f.has("moe_intermediate_size", *EXPERTS):
        return None
    return shared_beside(f, f.size("moe_intermediate_size"), router_bias=router_bias)


def deepseek_v2(f: Fields) -> Model:
    """Returns a DeepSeek-V2 (arXiv 2405.04434)."""
    corrected = f.text("topk_method") == "noaux_tc"
    return _model(f, latent_attention(f), router_bias=corrected)


def deepseek_v3(f: Fields) -> Model:
    """Returns a DeepSeek-V3 (arXiv 2412.19437), Kimi K2 or GLM-4.7-Flash.

    The correction bias that balances the experts is counted: training changes it.
    """
    return with_mtp(f, _model(f, latent_attention(f), router_bias=True))


def deepseek_v32(f: Fields) -> Model:
    """Returns a DeepSeek-V3.2: V3 with an indexer in every layer."""
    return with_mtp(f, _model(f, _indexed(f), router_bias=True))


FAMILIES: dict[str, Callable[[Fields], Model]] = {
    "deepseek_v2": deepseek_v2,
    "deepseek_v3": deepseek_v3,
    "kimi_k2": deepseek_v3,
    "glm4_moe_lite": deepseek_v3,
    "deepseek_v32": deepseek_v32,
}
