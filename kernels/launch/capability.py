"""The compute capability of a device, looked up once.

Some ten launches of a layer need it, and torch looks it up anew each time.
"""

from __future__ import annotations

from functools import cache

import torch

HOPPER = (9, 0)


@cache
def capability(device: torch.device) -> tuple[int, int]:
    """Return CUDA's compute capability (major, minor); (0, 0) for a device without CUDA.

    A CUDA device must be named by its number, as tensors' devices are: "cuda" alone changes
    meaning.
    """
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)
