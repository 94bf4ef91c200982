"""A kernel that is launched while the one before it still runs, and waits for it by itself.

    before    [ last programs ....]|                        [ last programs ....]
    after                          | launch | [ begins ]      launched [waits]   [ goes on ]

On a device that knows it (compute capability 9.0 on) this hides a launch's latency, which is most
of a small kernel's time. A kernel that waits here has all that was launched before it behind it,
and so may read it; what was launched without this keeps waiting for whole kernels.

Knows: devices. Does not know: which kernels follow each other.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_LEAST_CAPABILITY = (9, 0)


@triton.jit
def start_early(EARLY: tl.constexpr) -> None:
    """Let the next kernel be launched, then wait for the one before. A kernel's first line."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


def early_start(device: torch.device) -> dict[str, bool]:
    """What a kernel that begins with `start_early` is launched with."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < _LEAST_CAPABILITY:
        return {"EARLY": False}
    return {"EARLY": True, "launch_pdl": True}
