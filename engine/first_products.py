"""Computes products of all sizes once, before any step needs them.

The library takes one of many kernels by the number of rows, and loads it when it is first wanted.
Loading waits until the device has nothing to do: a step that is the first of its size would be held
up until those before it are over, 150 ms and more, and nothing be decided meanwhile.

    every number of rows that may sample    the last layer behind attention, and the head
    every 24th number beyond                the other layers of a step of prompts

A device that is slow at it gets no further than it does within MOST_S, smallest sizes first.

Knows: which products a model has, and of how many rows they may be. Does not know: the kernels, or
how one is chosen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch

from engine.model.decoder import Decoder
from engine.model.parameters import Linear
from kernels import linear

# Rows from one size to the next, where sizes are too many to compute them all. The library's tiles
# are some multiple of 8 wide; with 3 x 8 most of them fit some size best.
EVERY = 24
MOST_S = 3.0


@torch.inference_mode()
def compute_each_once(
    decoder: Decoder,
    *,
    max_rows: int,
    batch_tokens: int,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """All products of steps of up to `batch_tokens` tokens, of which `max_rows` sample.

    Keeps nothing. Waits for each size, so that the time it took is known.
    """
    device = decoder.parameters.head.device
    give_up = clock() + MOST_S
    for rows in row_counts(max_rows, batch_tokens):
        if clock() >= give_up:
            return
        compute_products(decoder, rows, sampling=rows <= max_rows)
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def compute_products(decoder: Decoder, rows: int, *, sampling: bool) -> None:
    """The products of a layer for `rows` tokens, and if they are sampling, that of the head."""
    for compute, weights in products_of_layer(decoder):
        _compute(compute, weights, rows)
    if sampling:
        _compute(decoder.ops.linear, Linear(decoder.parameters.head), rows)


def row_counts(max_rows: int, batch_tokens: int) -> Iterator[int]:
    """The numbers of rows, in ascending order."""
    yield from range(1, max_rows + 1)
    yield from range(max_rows + EVERY, batch_tokens + 1, EVERY)


def products_of_layer(decoder: Decoder) -> Iterator[tuple[linear.Linear, Linear]]:
    """What computes each product of a layer, and its weights: those of all layers are alike."""
    layer, ops = decoder.parameters.layers[0], decoder.ops
    for weights in (layer.qkv, layer.output, layer.down):
        yield ops.linear_in_parts, weights
    yield ops.linear, layer.gate_up


def _compute(compute: linear.Linear, weights: Linear, rows: int) -> None:
    weight = weights.weight
    x = torch.zeros((rows, weight.shape[1]), dtype=weight.dtype, device=weight.device)
    compute(x, weight, weights.bias)
