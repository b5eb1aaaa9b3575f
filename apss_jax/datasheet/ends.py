"""The first and the last unit, the embedding and the head, and what runs beside them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from apss_jax.datasheet.collectives import LOSS_BYTES, CommValues, Traffic, all_reduces, stacked
from apss_jax.datasheet.elementwise import NORM_PASSES
from apss_jax.datasheet.grid import Grid, SettingColumn
from apss_jax.datasheet.layer_facts import facts_of
from apss_jax.datasheet.matmul import Product, TypeTimes, matmul_s, products_of, products_s
from apss_jax.datasheet.parameters import held, held_ends, padded_vocab
from apss_jax.datasheet.rates import Rates
from apss_jax.datasheet.unit_costs import PASSES_OF_TRAINING, UnitCosts, layer_costs
from apss_jax.datasheet.work import BACKWARD_PRODUCTS, Work
from apss_jax.schema.model import Embedding, Head, Model, Tower
from apss_jax.schema.weights import count, matrix, vector

# Vectors of hidden size that a look-up moves: the table's row in, its copy out, dropout in and out.
LOOKUP_PASSES = 4.0
# Bytes per logit in a forward pass: 16 bits written, read and made FP32, then the maximum, the
# exponentials and their sum (2 + 2 + 4 + 4 + 4).
LOGIT_TRAFFIC_BYTES = 16.0
TOKEN_ID_BYTES = 8
# What matrix units read at once: other rows are read in pieces ("Matrix Multiplication Background
# User's Guide", NVIDIA).
ALIGNED_BYTES = 16
MASK_BYTES = 1


def embedding_costs(
    hidden_size: int, embedding: Embedding, model: Model, grid: Grid, rates: Rates
) -> UnitCosts:
    """Returns the costs of the embedding, towers apart."""
    products = products_of(model.embedding_weights)
    hidden_bytes = grid.value_bytes * grid.tokens * hidden_size
    reduced = all_reduces(1, hidden_bytes).times(grid.tensor_parallel > 1)
    comm_bytes, comm_calls = stacked(forward=(reduced,), backward=(reduced.times(0.0),))
    return UnitCosts(
        work=_end_work(_embedding_s(products, hidden_bytes, grid, rates)),
        is_layer=False,
        comm_bytes=comm_bytes,
        comm_calls=comm_calls,
        held=held_ends(model.embedding_weights, embedding.vocab_size, grid),
        saved_bytes=_embedding_saved_bytes(products, hidden_size, grid, rates),
        working_bytes=np.zeros_like(grid.tokens),
        model_flops=_training_flops(products, grid.all_tokens),
    )


def head_costs(
    hidden_size: int, vocab_size: int, model: Model, grid: Grid, rates: Rates
) -> UnitCosts:
    """Returns the costs of the final norm, the output matrix and the loss; prediction apart."""
    head = model.head
    projections = _head_projections(model)
    width = head.width or hidden_size
    rows = grid.micro_batch if head.kind == "pooler" else grid.tokens
    forward_s = _head_s(projections, rows, hidden_size, grid, rates)
    flops = _training_flops(projections, rows * grid.context_parallel)
    comm_bytes, comm_calls = _head_traffic(head, hidden_size, vocab_size, grid, rates)
    kept_bytes = 2 * grid.value_bytes * grid.tokens * hidden_size / grid.sequence_divisor
    saved_bytes = rates.activation_factor * kept_bytes
    if head.kind == "language":
        forward_s = forward_s + _logits_s(width, vocab_size, grid, rates)
        flops = flops + PASSES_OF_TRAINING * 2.0 * grid.all_tokens * width * vocab_size
        saved_bytes = saved_bytes + rates.logit_bytes * _loss_logits(vocab_size, grid, rates)
    return UnitCosts(
        work=_end_work(forward_s),
        is_layer=False,
        comm_bytes=comm_bytes,
        comm_calls=comm_calls,
        held=held_ends(model.head_weights, vocab_size, grid),
        saved_bytes=saved_bytes,
        working_bytes=np.zeros_like(grid.tokens),
        model_flops=flops,
    )


def prediction_costs(
    hidden_size: int, head: UnitCosts, model: Model, grid: Grid, rates: Rates
) -> UnitCosts:
    """Returns what multi-token prediction adds to the head, its layers apart.

    Each layer looks the next tokens up, projects them together with the hidden state from twice
    the width, and has a loss of its own; table and output matrix are the model's (DeepSeek-V3,
    arXiv 2412.19437, section 2.2).
    """
    depth = model.num_mtp_layers
    joined = matrix("prediction", 2 * hidden_size, hidden_size, "column")
    norms = max(model.mtp_parameters - depth * count(joined), 0)
    products = products_of(joined)
    hidden_bytes = grid.value_bytes * grid.tokens * hidden_size
    kept = grid.value_bytes * sum(p.input_width + p.output_width for p in products)
    own = UnitCosts(
        work=_end_work(_embedding_s(products, hidden_bytes, grid, rates)),
        is_layer=False,
        comm_bytes=np.zeros_like(head.comm_bytes),
        comm_calls=np.zeros_like(head.comm_calls),
        held=held([*joined, vector("norms", -(-norms // depth))], grid),
        saved_bytes=rates.activation_factor * grid.tokens * kept / grid.sequence_divisor,
        working_bytes=np.zeros_like(grid.tokens),
        model_flops=_training_flops(products, grid.all_tokens),
    )
    nothing = _only_held(0, grid, len(rates.half_size))
    loss = replace(head, held=nothing.held)
    return nothing.plus(own, depth, grid).plus(loss, depth, grid)


def tied_parameters(hidden_size: int, vocab_size: int, model: Model, grid: Grid) -> SettingColumn:
    """Returns what the head's device holds again when the embedding is on another one.

    Multi-token prediction looks tokens up there, whether or not the output matrix is tied.
    """
    head = model.head
    if head.kind != "language" or not (head.tied or model.mtp_layers):
        return np.zeros_like(grid.tokens)
    return padded_vocab(vocab_size, grid) * (head.width or hidden_size) / grid.tensor_parallel


def _embedding_s(
    products: tuple[Product, ...], hidden_bytes: SettingColumn, grid: Grid, rates: Rates
) -> TypeTimes:
    forward_s = LOOKUP_PASSES * hidden_bytes / rates.memory_bytes_per_s
    return forward_s + products_s(products, grid.tokens, grid, rates)


def _embedding_saved_bytes(
    products: tuple[Product, ...], hidden_size: int, grid: Grid, rates: Rates
) -> SettingColumn:
    kept = TOKEN_ID_BYTES + MASK_BYTES * hidden_size / grid.sequence_divisor
    kept = kept + grid.value_bytes * sum(p.input_width + p.output_width for p in products)
    return rates.activation_factor * grid.tokens * kept


def tower_costs(tower: Tower, grid: Grid, rates: Rates) -> UnitCosts:
    """Returns the costs of a tower; one without tokens has parameters alone."""
    inside = grid.with_sequence(tower.tokens_per_sequence)
    total = _only_held(tower.other_parameters, inside, len(rates.half_size))
    for run in tower.layers:
        facts = facts_of(run.layer, tower.hidden_size)
        if tower.tokens_per_sequence:
            total = total.plus(layer_costs(facts, inside, rates), run.repeat, inside)
        else:
            parameters = held(facts.weights, grid).times(run.repeat)
            total = replace(total, held=total.held.plus(parameters))
    return total


def _only_held(num_parameters: int, grid: Grid, num_types: int) -> UnitCosts:
    zero = np.zeros_like(grid.tokens)
    nothing = all_reduces(0, zero)
    comm_bytes, comm_calls = stacked(forward=(nothing,), backward=(nothing,))
    return UnitCosts(
        work=_end_work(np.zeros((zero.shape[0], num_types))),
        is_layer=False,
        comm_bytes=comm_bytes,
        comm_calls=comm_calls,
        held=held([vector("other", num_parameters)], grid),
        saved_bytes=zero,
        working_bytes=zero,
        model_flops=zero,
    )


def _head_projections(model: Model) -> tuple[Product, ...]:
    return products_of(w for w in model.head_weights if w.name != "head")


def _head_s(
    projections: tuple[Product, ...],
    rows: SettingColumn,
    hidden_size: int,
    grid: Grid,
    rates: Rates,
) -> TypeTimes:
    moved_bytes = NORM_PASSES * grid.value_bytes * grid.tokens * hidden_size
    norm_s = moved_bytes / grid.sequence_divisor / rates.memory_bytes_per_s
    wide = replace(rates, layer_flops_per_s=rates.head_flops_per_s)
    return norm_s + products_s(projections, rows, grid, wide)


def _logits_s(width: int, vocab_size: int, grid: Grid, rates: Rates) -> TypeTimes:
    logits = _logits(vocab_size, grid)
    product_s = matmul_s(
        grid.tokens,
        np.full_like(grid.tokens, width),
        logits / grid.tokens,
        rates.head_flops_per_s,
        rates.half_size,
    )
    moved_bytes = LOGIT_TRAFFIC_BYTES * _loss_logits(vocab_size, grid, rates)
    traffic_s = moved_bytes / rates.memory_bytes_per_s
    whole_s = product_s * _unaligned_slowdown(vocab_size, grid, rates)
    return whole_s + rates.kernel_s + traffic_s


def _unaligned_slowdown(vocab_size: int, grid: Grid, rates: Rates) -> TypeTimes:
    """Returns how many times longer the output matrix takes for rows that are not whole.

    A vocabulary that no tensor rank divides keeps its odd size under stacks that do not pad.
    """
    is_whole = vocab_size * grid.value_bytes % ALIGNED_BYTES == 0
    is_padded = rates.pads_vocabulary | (grid.tensor_parallel > 1)
    return np.where(is_whole | is_padded, 1.0, rates.unaligned_slowdown)


def _end_work(forward_s: TypeTimes) -> Work:
    """Returns the work of an end, whose few launches no stack states."""
    zero = np.zeros_like(forward_s)
    return Work(forward_s, BACKWARD_PRODUCTS * forward_s, zero, zero, zero)


def _logits(vocab_size: int, grid: Grid) -> SettingColumn:
    return grid.tokens * padded_vocab(vocab_size, grid) / grid.tensor_parallel


def _loss_logits(vocab_size: int, grid: Grid, rates: Rates) -> SettingColumn:
    """Returns the logits whose loss one rank computes."""
    own = _logits(vocab_size, grid)
    return own * grid.tensor_parallel if rates.whole_logits else own


def _head_traffic(
    head: Head, hidden_size: int, vocab_size: int, grid: Grid, rates: Rates
) -> tuple[CommValues, CommValues]:
    """Returns (bytes, calls): the loss or all logits forward, the input's gradient backward."""
    is_split = (grid.tensor_parallel > 1) & (head.kind == "language")
    loss = all_reduces(1, LOSS_BYTES * grid.tokens)
    if rates.whole_logits:
        all_bytes = grid.value_bytes * _loss_logits(vocab_size, grid, rates)
        loss = Traffic(all_bytes, np.ones_like(all_bytes))
    loss = loss.times(is_split)
    gradient = all_reduces(1, grid.value_bytes * grid.tokens * hidden_size).times(is_split)
    return stacked(forward=(loss,), backward=(gradient,))


def _training_flops(products: tuple[Product, ...], tokens: SettingColumn) -> SettingColumn:
    return PASSES_OF_TRAINING * tokens * sum(p.flops_per_token for p in products)
