"""The memory that attention over latents needs in addition to its result."""

from __future__ import annotations

import torch

from kernels.latents.latent_shape import LatentShape

MOST_EXPANDED = 32_768  # maximum number of latents whose keys and values exist at one time


def most_scratch_bytes(shape: LatentShape, heads: int, dtype: torch.dtype) -> int:
    """Return the maximum bytes of one layer.

    They hold MOST_EXPANDED latents, and the keys and values of these latents. Decodes need less
    memory.
    """
    numbers = shape.latent + 2 * heads * shape.padded_dim
    return MOST_EXPANDED * numbers * max(dtype.itemsize, 2)
