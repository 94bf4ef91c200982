"""The unpacking of the weights in a GGUF file."""

from __future__ import annotations

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from engine.models.errors import UnsupportedModel
from engine.models.gguf.header import StoredTensor


def read_numbers(
    content: NDArray[np.uint8], stored: StoredTensor, expert: int | None = None
) -> NDArray[np.float32]:
    """Return a tensor of the file `content`, or one expert's part, as float32.

    Raises UnsupportedModel for packed weights that cannot be read.
    """
    begin, num_bytes, shape = stored.begin, stored.num_bytes, stored.shape
    if expert is not None:
        num_bytes, shape = num_bytes // shape[0], shape[1:]
        begin += expert * num_bytes
    packed = np.ascontiguousarray(content[begin : begin + num_bytes]).reshape(*shape[:-1], -1)
    if stored.kind == GGMLQuantizationType.F64:
        return packed.view(np.float64).astype(np.float32)
    try:
        numbers: NDArray[np.float32] = dequantize(packed, stored.kind)
    except NotImplementedError as error:
        raise UnsupportedModel(f"weights of type {stored.kind.name} in GGUF") from error
    return numbers
