"""Zeroed memory on a device. On a CPU, a page is taken only when it is written."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def zeroed(num_bytes: int, device: torch.device) -> Tensor:
    """Allocate `num_bytes` zeros, (num_bytes,) uint8."""
    if device.type != "cpu":
        return torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    # numpy's zeros take no memory before they are written (calloc). torch writes zeros at once,
    # which takes seconds, and gigabytes that may never be used.
    return torch.from_numpy(np.zeros(num_bytes, dtype=np.uint8))
