"""What is measured is the layer that a model has: its weights, its work, its shards."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from builders import tiny_layer

from apss_jax.importers.load import load_model
from apss_jax.schema.cluster import LayerShape
from apss_jax.schema.layers import Attention, DenseMlp, Layer, MoeMlp, StateSpace
from apss_jax.schema.weights import count
from profiler.kernels import NotMeasurable, Shard, routed
from profiler.layers import unit_of
from profiler.meter import expected_flops
from profiler.points import Point, Subject
from profiler.programs import (
    flops_of,
    kept_bytes,
    pass_with_residuals,
    passes_of,
    scanned_bytes,
    update_passes,
)

EXPERTS = MoeMlp(num_experts=4, experts_per_token=2, expert_intermediate_size=16)
LAYERS = {
    "plain": tiny_layer(),
    "layer norm, biases": tiny_layer(norm="layer"),
    "grouped heads": tiny_layer(mixer=Attention(num_heads=4, num_kv_heads=2, head_dim=4)),
    "window": tiny_layer(mixer=Attention(num_heads=2, num_kv_heads=2, head_dim=4, window_tokens=4)),
    "gate": tiny_layer(
        mixer=Attention(num_heads=2, num_kv_heads=2, head_dim=4, output_gate=True, head_norm=True)
    ),
    "norms after": tiny_layer(num_norms=4),
    "side by side": tiny_layer(num_norms=1),
    "experts": tiny_layer(feed_forward=EXPERTS),
    "experts and shared": tiny_layer(
        feed_forward=EXPERTS.model_copy(update={"shared_intermediate_size": 8})
    ),
    "attention": Layer(mixer=tiny_layer().mixer, num_norms=1),
    "mlp": Layer(feed_forward=DenseMlp(intermediate_size=32), num_norms=1),
}
MODELS = ("gpt2", "llama-3.1-8b", "qwen3-0.6b", "mixtral-8x7b", "gemma-2-2b", "deepseek-v2-lite")


def shape_of(layer: Layer, hidden_size: int = 8) -> LayerShape:
    """Returns what a measurement of a layer names."""
    return LayerShape(part="layer", hidden_size=hidden_size, layer=layer)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_gives_values_of_its_inputs_shape(name: str) -> None:
    """Every kind of layer hands on what the next one takes, in 16 bits too."""
    for precision in ("fp32", "bf16"):
        unit = unit_of(shape_of(LAYERS[name]), precision, Shard(), 2, 16)
        y = jax.eval_shape(unit.apply, unit.weights(), unit.input())
        assert (y.shape, str(y.dtype)) == (unit.input_shape, unit.dtype)


@pytest.mark.parametrize("name", ["gate", "experts and shared"])
def test_a_layer_gives_numbers(name: str) -> None:
    """No value is infinite or none: arithmetic on those takes another time."""
    unit = unit_of(shape_of(LAYERS[name]), "fp32", Shard(), 1, 16)
    assert bool(jnp.isfinite(jax.jit(unit.apply)(unit.weights(), unit.input())).all())


@pytest.mark.parametrize("model", MODELS)
def test_weights_are_the_models(model: str) -> None:
    """A measured layer has exactly the parameters that the model's layer lists."""
    loaded = load_model(model)
    for layer in dict.fromkeys(run.layer for run in loaded.layers):
        unit = unit_of(shape_of(layer, loaded.hidden_size), "fp32", Shard(), 1, 8)
        held = sum(math.prod(shape) for shape in unit.weight_shapes.values())
        assert held == count(layer.weights(loaded.hidden_size))


@pytest.mark.parametrize("name", ["grouped heads", "experts"])
def test_a_shard_does_its_share(name: str) -> None:
    """Two tensor ranks halve the operations of the matrices that they cut."""
    point = Point(Subject(name, shape_of(LAYERS[name]), 0), seq_len=64, precision="fp32")
    whole, half = (unit_of(shape_of(LAYERS[name]), "fp32", Shard(t), 1, 64) for t in (1, 2))
    flops = [flops_of(jax.jit(u.apply).lower(u.weights(), u.input())) for u in (whole, half)]
    assert flops[0] > 0.9 * expected_flops(point)
    assert 0.45 < flops[1] / flops[0] < 0.6


def test_shards_add_up() -> None:
    """Two halves of a feed-forward part give together what the whole gives."""
    whole = unit_of(shape_of(LAYERS["mlp"]), "fp32", Shard(), 1, 8)
    half = unit_of(shape_of(LAYERS["mlp"]), "fp32", Shard(2), 1, 8)
    weights, x = whole.weights(), whole.input()

    def part(rank: int) -> dict[str, jax.Array]:
        own = slice(16 * rank, 16 * rank + 16)
        columns = {n: weights[n][:, own] for n in ("0.up", "0.gate")}
        return {**columns, "0.down": weights["0.down"][own], "norm": weights["norm"]}

    halves = [half.apply(part(rank), x) - x for rank in range(2)]
    np.testing.assert_allclose(sum(halves) + x, whole.apply(weights, x), rtol=1e-4, atol=1e-5)


def test_experts_get_their_tokens() -> None:
    """Grouped products give what each token's experts give one by one."""
    unit = unit_of(shape_of(LAYERS["experts"]), "fp32", Shard(), 1, 8)
    weights = {n.removeprefix("1."): w for n, w in unit.weights().items() if n.startswith("1.")}
    x = unit.input().reshape(8, 8)
    share = jax.nn.softmax(x @ weights["router"], axis=-1)
    best, chosen = jax.lax.top_k(share, 2)

    def expert(token: int, number: int) -> jax.Array:
        up, gate, down = (weights[f"expert.{n}"][number] for n in ("up", "gate", "down"))
        return (jax.nn.silu(x[token] @ gate) * (x[token] @ up)) @ down

    expected = jnp.stack(
        [sum(best[t, k] * expert(t, int(chosen[t, k])) for k in range(2)) for t in range(8)]
    )
    np.testing.assert_allclose(routed(EXPERTS, weights, x), expected, rtol=1e-4, atol=1e-5)


def test_the_loss_is_cross_entropy() -> None:
    """A head without preference pays the logarithm of its vocabulary."""
    shape = LayerShape(part="head", hidden_size=8, vocab_size=32)
    unit = unit_of(shape, "fp32", Shard(), 1, 4)
    flat = {**unit.weights(), "head": jnp.zeros((8, 32))}
    assert float(unit.apply(flat, unit.input())) == pytest.approx(math.log(32))


@pytest.mark.slow
def test_recomputation_keeps_less_and_repeats_more() -> None:
    """Full recomputation keeps the input alone; selective leaves out the scores."""
    found = {}
    for recompute in ("none", "selective", "full"):
        shard = Shard(recomputes_scores=recompute == "selective")
        found[recompute] = passes_of(
            unit_of(shape_of(tiny_layer()), "fp32", shard, 1, 64), recompute
        )
    assert found["full"].saved_bytes == 64 * 8 * 4
    assert found["none"].saved_bytes - found["selective"].saved_bytes > 2 * 64 * 64 * 4
    assert found["full"].backward_flops > 1.2 * found["none"].backward_flops


def test_kept_bytes_leave_weights_out() -> None:
    """Two matrices are there anyway; what is kept are the inputs of both products."""

    def apply(weights: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        return (x @ weights["a"]) @ weights["b"]

    weights = {name: jnp.ones((4, 4)) for name in "ab"}
    x = jnp.ones((6, 4))
    _, pullback = jax.eval_shape(lambda w, g: jax.vjp(apply, w, g), weights, x)
    assert kept_bytes(pullback, weights) == 2 * 6 * 4 * 4


@pytest.mark.slow
def test_a_scan_over_layers_tells_what_one_keeps() -> None:
    """The growth of a scan stays below what a pullback holds, and above the layer's input."""
    unit = unit_of(shape_of(tiny_layer()), "fp32", Shard(), 4, 64)
    _, pullback = jax.eval_shape(pass_with_residuals(unit, "none"), unit.weights(), unit.input())
    assert 4 * 64 * 8 * 4 < scanned_bytes(unit) <= kept_bytes(pullback, unit.weights())


def test_an_update_is_adams() -> None:
    """Weights move against the gradient, and state is handed on from call to call."""
    passes = update_passes(1000, "bfloat16")
    first, _ = passes.forward()
    moved = float(first[0][0])
    (weight, mean, square), copy = passes.forward()
    assert float(weight[0]) < moved < 1.0
    assert float(mean[0]) > 0 and float(square[0]) > 0
    assert str(copy.dtype) == "bfloat16"


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (tiny_layer(mixer=Attention(num_heads=3, num_kv_heads=3, head_dim=4)), "3 heads"),
        (
            tiny_layer(
                mixer=StateSpace(num_heads=2, head_dim=4, state_size=4, num_groups=1, conv_kernel=4)
            ),
            "state_space",
        ),
        (Layer(num_norms=1), "without parts"),
    ],
)
def test_what_cannot_be_run_is_named(layer: Layer, why: str) -> None:
    """A kind that has no kernel here, or a cut that does not divide, says so."""
    with pytest.raises(NotMeasurable, match=why):
        unit_of(shape_of(layer), "fp32", Shard(2), 1, 8)
