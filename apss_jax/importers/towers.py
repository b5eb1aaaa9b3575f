"""Vision towers and the projectors that join them to the language model."""

from __future__ import annotations

from apss_jax.importers.fields import HEADS, INTERMEDIATE, LAYERS, Fields, changed
from apss_jax.schema.layers import Attention, DenseMlp, Layer, NormKind
from apss_jax.schema.model import LayerRun, Model, Tower
from apss_jax.schema.weights import MAX_LAYERS

RGB = 3


def vision_layers(
    f: Fields, *, norm: NormKind, num_norms: int = 2, bias: bool = True, gated: bool = False,
    head_norm: bool = False,
) -> tuple[LayerRun, ...]:  # fmt: skip
    """Returns the layers of a vision transformer, which attends to the whole picture."""
    hidden, heads = f.size("hidden_size", "embed_dim"), f.size(*HEADS)
    if hidden % heads and not f.has("head_dim"):
        raise f.wrong(HEADS[0], f"must divide the hidden size {hidden}", "Correct one of the two")
    mixer = Attention(
        num_heads=heads,
        num_kv_heads=f.size("num_key_value_heads", default=heads),
        head_dim=f.size("head_dim", default=hidden // heads),
        causal=False,
        qkv_bias=bias,
        output_bias=bias,
        head_norm=head_norm,
    )
    dense = DenseMlp(intermediate_size=f.size(*INTERMEDIATE), gated=gated, bias=bias)
    layer = Layer(mixer=mixer, feed_forward=dense, norm=norm, num_norms=num_norms)
    return (LayerRun(repeat=f.size(*LAYERS, "depth", most=MAX_LAYERS), layer=layer),)


def described(f: Fields | None) -> bool:
    """Returns whether a vision section says enough to count its parameters."""
    return f is not None and f.has("hidden_size") and f.has(*LAYERS, "depth")


def with_tower(model: Model, tower: Tower) -> Model:
    """Returns the model with one more tower."""
    return changed(model, towers=(*model.towers, tower))


def siglip(f: Fields, text_hidden: int, tokens: int) -> Tower:
    """Returns Gemma 3's tower: SigLIP, a norm and one projection.

    Without `vision_use_head` there is no pooling head; its absence means there is one, but the
    multimodal model never uses it and sets it to false.
    """
    hidden, patch = f.size("hidden_size"), f.size("patch_size")
    pixels = f.size("num_channels", default=RGB) * patch * patch
    positions = (f.size("image_size") // patch) ** 2
    ends = pixels * hidden + hidden + positions * hidden + 2 * hidden
    projector = hidden * text_hidden + hidden
    return Tower(
        name="vision",
        hidden_size=hidden,
        tokens_per_sequence=tokens,
        layers=vision_layers(f, norm="layer"),
        other_parameters=ends + projector,
    )


def gemma4_vision(f: Fields, text_hidden: int) -> Tower:
    """Returns Gemma 4's tower: two tables of positions, gated layers with four norms."""
    hidden, patch = f.size("hidden_size"), f.size("patch_size")
    table = 2 * f.size("position_embedding_size", default=10240) * hidden
    ends = RGB * patch * patch * hidden + table
    return Tower(
        name="vision",
        hidden_size=hidden,
        layers=vision_layers(
            f, norm="rms", num_norms=4, bias=f.flag("attention_bias", False), gated=True,
            head_norm=True,
        ),
        other_parameters=ends + hidden * text_hidden,
    )  # fmt: skip


def gemma4_audio(f: Fields, text_hidden: int) -> Tower:
    """Returns Gemma 4's audio tower: convolutions, then conformer layers."""
    hidden, out = f.size("hidden_size"), f.size("output_proj_dims")
    first, second = f.counts("subsampling_conv_channels") or (0, 0)
    kernel = 9
    subsampling = kernel * (first + first * second) + first + second
    ends = subsampling + first // 4 * second * hidden + hidden * out + out + out * text_hidden
    square = hidden * hidden
    feed_forward = 2 * (8 * square + 2 * hidden)
    attention = 5 * square + hidden // f.size(*HEADS)  # queries, keys, values, output, positions
    convolution = 3 * square + f.size("conv_kernel_size") * hidden + 2 * hidden
    layer = feed_forward + attention + convolution + 3 * hidden
    layers = f.size(*LAYERS, most=MAX_LAYERS)
    return Tower(name="audio", hidden_size=hidden, other_parameters=ends + layers * layer)


def llama4_vision(f: Fields, text_hidden: int) -> Tower:
    """Returns Llama 4's tower: a class token, pixel shuffle, two projections and the projector."""
    hidden, patch = f.size("hidden_size"), f.size("patch_size")
    cells = (f.size("image_size") // patch) ** 2 + 1
    unfold = f.size("num_channels", default=RGB) * patch * patch * hidden
    ends = unfold + hidden + cells * hidden + 4 * hidden
    shuffled = hidden * 4  # a pixel-shuffle ratio of one half joins 2 x 2 patches
    wide, out = f.size("projector_input_dim"), f.size("projector_output_dim")
    adapter = shuffled * wide + out * out
    projector = f.size("vision_output_dim") * text_hidden
    return Tower(
        name="vision",
        hidden_size=hidden,
        layers=vision_layers(f, norm="layer"),
        other_parameters=ends + adapter + projector,
    )


def qwen2_vision(f: Fields, text_hidden: int) -> Tower:
    """Returns Qwen2-VL's tower: plain layers of its own width and a merger of 2 x 2 patches."""
    hidden = f.size("embed_dim")
    inner = Fields(
        {**f.data, "hidden_size": hidden, "intermediate_size": hidden * f.size("mlp_ratio")},
        file=f.file, path=f.path,
    )  # fmt: skip
    return Tower(
        name="vision",
        hidden_size=hidden,
        layers=vision_layers(inner, norm="layer"),
        other_parameters=_patches(f, hidden) + _merger(f, hidden, text_hidden, 2 * hidden),
    )


def qwen2_5_vision(f: Fields, text_hidden: int) -> Tower:
    """Returns Qwen2.5-VL's tower: gated layers with one vector per norm."""
    hidden = f.size("hidden_size")
    return Tower(
        name="vision",
        hidden_size=hidden,
        layers=vision_layers(f, norm="rms", gated=True),
        other_parameters=_patches(f, hidden) + _merger(f, hidden, text_hidden, hidden),
    )


def qwen3_vision(f: Fields, text_hidden: int) -> Tower:
    """Returns Qwen3-VL's tower: that of Qwen3.5 with a merger for each deep-stacked layer."""
    hidden, out = f.size("hidden_size"), f.size("out_hidden_size", default=text_hidden)
    deep = len(f.counts("deepstack_visual_indexes") or ())
    merged = hidden * f.size("spatial_merge_size", default=2) ** 2
    tower = qwen3_5_vision(f, text_hidden)
    parameters = tower.other_parameters + deep * _merger(f, hidden, out, 2 * merged)
    return changed(tower, other_parameters=parameters)


def qwen3_5_vision(f: Fields, text_hidden: int) -> Tower:
    """Returns Qwen3.5's tower: learned positions and one merger."""
    hidden, out = f.size("hidden_size"), f.size("out_hidden_size", default=text_hidden)
    f.counts("deepstack_visual_indexes")
    table = f.size("num_position_embeddings") * hidden
    return Tower(
        name="vision",
        hidden_size=hidden,
        layers=vision_layers(f, norm="layer"),
        other_parameters=(
            _patches(f, hidden) + hidden + table + _merger(f, hidden, out, 2 * hidden)
        ),
    )


def _patches(f: Fields, hidden: int) -> int:
    pixels = f.size("in_channels", "in_chans", "num_channels", default=RGB)
    frames = f.size("temporal_patch_size", default=2)
    return pixels * frames * f.size("patch_size") ** 2 * hidden


def _merger(f: Fields, hidden: int, out: int, norm: int) -> int:
    merged = hidden * f.size("spatial_merge_size", default=2) ** 2
    return norm + merged * merged + merged + merged * out + out


def pixtral(f: Fields, text_hidden: int, merge: int, *, bias: bool) -> Tower:
    """Returns Mistral 3's tower: Pixtral, a norm, a patch merger and two projections."""
    hidden = f.size("hidden_size")
    pixels = f.size("num_channels", default=RGB) * f.size("patch_size") ** 2
    projector = hidden + merge * merge * hidden * hidden + (hidden + text_hidden) * text_hidden
    return Tower(
        name="vision",
        hidden_size=hidden,
        layers=vision_layers(f, norm="rms", bias=False, gated=True),
        other_parameters=pixels * hidden + hidden + projector + (2 * text_hidden if bias else 0),
    )
