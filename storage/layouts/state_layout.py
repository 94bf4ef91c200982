"""The layout of one recurrent state: what a model's recurrent layers keep at one position.

    state    | conv, layer 0 | recurrence, layer 0 | conv, layer 1 | ...

Layers lie in the model's order, and each part begins at a multiple of 16 bytes: so a state is one
contiguous run, as a block of KV is (`kv_layout`). It has one size, however long the sequence is,
and it cannot be cut back to an earlier position.

Knows: shapes and bytes. Does not know: tensors (`state_pool`), or how many states there are. No
torch: commands that only plan read it too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from storage.layouts.kv_layout import ALIGNMENT, ITEM_BYTES

RECURRENCE_DTYPE = "float32"  # a recurrence adds up thousands of tokens


@dataclass(frozen=True, slots=True)
class StateShape:
    """Shapes of one layer's recurrent state, in numbers.

    A state is the last `conv_inputs` inputs of a causal convolution of `conv_channels` channels,
    and for each head a matrix of `rows` x `columns`.
    """

    conv_channels: int
    conv_inputs: int
    heads: int
    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class StateLayout:
    """Layout of one recurrent state. `layers`: shapes of the recurrent layers, in order.

    `conv_dtype`: dtype of the convolution's inputs, a key of ITEM_BYTES. Recurrences are float32.
    `least_blocks`: minimum number of blocks that a state takes, so that it takes equally many in
    all pipeline stages.
    """

    layers: tuple[StateShape, ...]
    conv_dtype: str
    least_blocks: int = 0

    def __post_init__(self) -> None:
        if not self.layers:
            raise ValueError("a state of no layers")

    @property
    def num_layers(self) -> int:
        """Number of recurrent layers."""
        return len(self.layers)

    @property
    def state_bytes(self) -> int:
        """Bytes of one recurrent state."""
        return sum(self._part_bytes())

    def blocks(self, block_bytes: int) -> int:
        """Return the number of blocks, of `block_bytes` each, that one recurrent state takes."""
        return max(-(-self.state_bytes // block_bytes), self.least_blocks)

    def offsets(self) -> list[tuple[int, int]]:
        """Return the byte offsets of each layer's convolution and recurrence in a state."""
        ends = [0, *accumulate(self._part_bytes())]
        return list(zip(ends[:-1:2], ends[1::2], strict=True))

    def _part_bytes(self) -> Iterator[int]:
        for one in self.layers:
            yield _aligned(one.conv_channels * one.conv_inputs * ITEM_BYTES[self.conv_dtype])
            yield _aligned(one.heads * one.rows * one.columns * ITEM_BYTES[RECURRENCE_DTYPE])


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT
