"""DeepSeek V2 and V3 and their relatives: latent attention, fine-grained experts."""

from __future__ import annotations

from apss_jax.importers.decoders import MixerOf, ModelFrom, Traits, decoder, layer_types
from apss_jax.importers.experts import (
    after_first_dense,
    beside_dense,
    num_layers,
    shared_beside,
    with_mtp,
)
from apss_jax.importers.fields import EXPERTS, HEADS, Fields, changed
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
    return changed(base, **extra)


def _model(f: Fields, mixer_of: MixerOf, *, router_bias: bool) -> Model:
    moe = _experts(f, router_bias=router_bias)
    if moe is None:
        return decoder(f, PLAIN, mixer_of=mixer_of)
    feed_forward_of = beside_dense(f, PLAIN, moe, after_first_dense(f))
    return decoder(f, PLAIN, mixer_of=mixer_of, feed_forward_of=feed_forward_of)


def _experts(f: Fields, *, router_bias: bool) -> MoeMlp | None:
    if not f.has("moe_intermediate_size", *EXPERTS):
        return None
    return shared_beside(f, f.size("moe_intermediate_size"), router_bias=router_bias)


def deepseek_v2(f: Fields) -> Model:
    """Returns a DeepSeek-V2 (arXiv 2405.04434)."""
    corrected = f.text("topk_method") == "noaux_tc"
    mixer = latent_attention(f)
    return _model(f, lambda _: mixer, router_bias=corrected)


def mistral4(f: Fields) -> Model:
    """Returns a Mistral 4: V3's layout without the bias that balances the experts."""
    mixer = latent_attention(f)
    return _model(f, lambda _: mixer, router_bias=False)


def deepseek_v3(f: Fields) -> Model:
    """Returns a DeepSeek-V3 (arXiv 2412.19437), Kimi K2 or GLM-4.7-Flash.

    The correction bias that balances the experts is counted: training changes it.
    """
    mixer = latent_attention(f)
    return with_mtp(f, _model(f, lambda _: mixer, router_bias=True))


def deepseek_v32(f: Fields) -> Model:
    """Returns a DeepSeek-V3.2 or GLM-5: V3 with indexers, which layers may share."""
    plain = latent_attention(f)
    changes = {
        "index_heads": f.size("index_n_heads"),
        "index_head_dim": f.size("index_head_dim"),
    }
    indexed = changed(plain, **changes)
    own = _has_indexer(f)
    model = _model(f, lambda i: indexed if own[i] else plain, router_bias=True)
    return with_mtp(f, model)


def _has_indexer(f: Fields) -> list[bool]:
    """Returns which layers have an indexer: as listed, else every n-th after the first few."""
    count = num_layers(f)
    kinds = layer_types(f, count, ("full", "shared"), "indexer_types")
    if kinds is not None:
        return [kind == "full" for kind in kinds]
    if f.has("index_topk_pattern"):
        raise f.wrong("index_topk_pattern", "cannot be read", "Write it out as indexer_types")
    period = f.size("index_topk_freq", default=1)
    offset = f.count("index_skip_topk_offset", default=2)
    return [max(i - offset + 1, 0) % period == 0 for i in range(count)]


FAMILIES: dict[str, ModelFrom] = {
    "deepseek_v2": deepseek_v2,
    "deepseek_v3": deepseek_v3,
    "kimi_k2": deepseek_v3,
    "mistral4": mistral4,
    "glm4_moe_lite": deepseek_v3,
    "deepseek_v32": deepseek_v32,
    "glm_moe_dsa": deepseek_v32,
}
