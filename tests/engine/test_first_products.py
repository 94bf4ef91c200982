"""Products before the first step: of which sizes there are some, and that nothing is left out."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace

import pytest
from torch import Tensor

from engine.first_products import EVERY, MOST_S, compute_each_once, row_counts
from engine.model.decoder import Decoder
from kernels.ops import torch_ops
from tests.engine.conftest import MakeCheckpoint
from tests.engine.hand_driven import build_runner


@dataclass
class Computed:
    """A linear layer that remembers how many rows there were for each weight."""

    rows: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        self.rows[weight.data_ptr()].append(x.shape[0])
        return torch_ops().linear(x, weight, bias)


def decoder_of(checkpoint: MakeCheckpoint, name: str, whole: Computed, parts: Computed) -> Decoder:
    ops = replace(torch_ops(), linear=whole, linear_in_parts=parts)
    return build_runner(checkpoint(name).model_dir, ops=ops).decoder


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_every_product_of_a_step_is_computed_in_all_sizes(
    checkpoint: MakeCheckpoint, name: str
) -> None:
    whole, parts = Computed(), Computed()
    decoder = decoder_of(checkpoint, name, whole, parts)
    compute_each_once(decoder, max_rows=12, batch_tokens=60)
    sizes = [*range(1, 13), 36, 60]
    layer, head = decoder.parameters.layers[0], decoder.parameters.head
    assert dict(whole.rows) == {layer.gate_up.weight.data_ptr(): sizes, head.data_ptr(): sizes[:12]}
    in_parts = (layer.qkv, layer.output, layer.down)
    assert dict(parts.rows) == {one.weight.data_ptr(): sizes for one in in_parts}


def test_a_slow_device_is_left_alone_after_a_while(checkpoint: MakeCheckpoint) -> None:
    whole, parts = Computed(), Computed()
    decoder = decoder_of(checkpoint, "llama", whole, parts)
    times = iter([0.0, MOST_S / 2, MOST_S * 0.9, MOST_S])
    compute_each_once(decoder, max_rows=12, batch_tokens=60, clock=lambda: next(times))
    assert whole.rows[decoder.parameters.head.data_ptr()] == [1, 2]
    assert set(map(tuple, parts.rows.values())) == {(1, 2)}


def test_whatever_samples_is_among_them() -> None:
    """A step has at most as many rows that sample as may run."""
    counts = set(row_counts(256, 8_192))
    assert set(range(1, 257)) <= counts
    assert 8_192 - EVERY < max(counts) <= 8_192
    assert len(counts) == 256 + (8_192 - 256) // EVERY


@pytest.mark.parametrize(("max_rows", "tokens"), [(1, 1), (8, 8), (8, 31), (300, 100)])
def test_small_bounds_have_few_sizes(max_rows: int, tokens: int) -> None:
    assert list(row_counts(max_rows, tokens)) == list(range(1, max_rows + 1))
