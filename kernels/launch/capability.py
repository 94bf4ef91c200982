"""The compute capability of a device, looked up once.

About ten launches of a layer need the capability, and torch looks it up again each time.
"""

from __future__ import annotations

from functools import cache

import torch

HOPPER = (9, 0)


@cache
def capability(device: torch.device) -> tuple[int, int]:
    """Return CUDA's compute capability (major, minor), or (0, 0) for a device without CUDA.

    `device` must have a number if it is a CUDA device. The devices of tensors have one. "cuda"
    without a number means the current device, which may change.
    """
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)
