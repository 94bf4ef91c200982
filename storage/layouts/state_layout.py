"""The layout of a recurrent state: what a model's recurrent layers keep at one position.

    state    | conv, layer 0 | recurrence, layer 0 | conv, layer 1 | ...

Layers lie in the model's order, and each part begins at a multiple of 16 bytes. So a state is one
contiguous run, like a KV block (`kv_layout`). The size of a state does not depend on the sequence's
length. A state cannot be cut back to an earlier position.

This module needs no torch, because commands that only plan read it too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from storage.layouts.kv_layout import ALIGNMENT, ITEM_BYTES

RECURRENCE_DTYPE = "float32"  # float32, since a recurrence adds up thousands of tokens


@dataclass(frozen=True, slots=True)
class StateShape:
    """The shapes of one layer's recurrent state, in numbers.

    A state has the last `conv_inputs` inputs of a causal convolution of `conv_channels` channels. A
    state also has a matrix of `rows` x `columns` for each head.
    """

    conv_channels: int
    conv_inputs: int
    heads: int
    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class StateLayout:
    """The layout of a recurrent state, with the shapes of the recurrent layers in order.

    `conv_dtype` is the dtype of the convolution's inputs, in ITEM_BYTES. Recurrences are float32.
    `least_blocks` is the minimum number of blocks of a state. This minimum makes states equally
    large in all pipeline stages.
    """

    layers: tuple[StateShape, ...]
    conv_dtype: str
    least_blocks: int = 0

    def __post_init__(self) -> None:
        if not self.layers:
            raise ValueError("a state of no layers")

    @property
    def num_layers(self) -> int:
        """The number of recurrent layers."""
        return len(self.layers)

    @property
    def state_bytes(self) -> int:
        """The bytes of a recurrent state."""
        return sum(self._part_bytes())

    def blocks(self, block_bytes: int) -> int:
        """Return the number of blocks of `block_bytes` that a recurrent state takes."""
        return max(-(-self.state_bytes // block_bytes), self.least_blocks)

    def offsets(self) -> list[tuple[int, int]]:
        """Return the byte offsets of each layer's convolution and recurrence."""
        ends = [0, *accumulate(self._part_bytes())]
        return list(zip(ends[:-1:2], ends[1::2], strict=True))

    def _part_bytes(self) -> Iterator[int]:
        for one in self.layers:
            yield _aligned(one.conv_channels * one.conv_inputs * ITEM_BYTES[self.conv_dtype])
            yield _aligned(one.heads * one.rows * one.columns * ITEM_BYTES[RECURRENCE_DTYPE])


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT
