"""The memory that attention over latents takes in addition to its result."""

from __future__ import annotations

import torch

from kernels.latents.latent_shape import LatentShape

MOST_EXPANDED = 32_768  # maximum number of latents whose keys and values exist at one time


def most_scratch_bytes(shape: LatentShape, heads: int, dtype: torch.dtype) -> int:
    """Bound the bytes of one layer: keys and values of MOST_EXPANDED latents, and their product.

    Decodes take less memory.
    """
    numbers = shape.nope + shape.values + 2 * shape.padded_dim
    return MOST_EXPANDED * heads * numbers * max(dtype.itemsize, 2)
