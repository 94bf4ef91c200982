"""CUDA's programmatic dependent launch (PDL): a kernel is launched before the last one has ended.

    before    [ last programs ....]|                        [ last programs ....]
    after                          | launch | [ begins ]      launched [waits]   [ goes on ]

The kernel waits by itself for the one before, with `griddepcontrol.wait`. From compute capability
9.0 on this hides the latency of a launch, which is most of a small kernel's time. Behind the wait
all kernels launched before have ended, and their results may be read. Kernels that are launched
without it wait for whole kernels, as always.

Ahead of its wait a kernel may run beside any kernel that was launched early before it, back to the
last one that was not. There it may read what was written before all of those: a model's tables, and
what a step's inputs say, since a step begins with copies that are not launched early.

Knows: devices. Does not know: which kernels follow each other.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.capability import capability

_MIN_CAPABILITY = (9, 0)


@triton.jit
def start_early(EARLY: tl.constexpr) -> None:
    """Let the next kernel be launched, then wait for the one before. A kernel's first line."""
    let_next_start(EARLY)
    wait_for_last(EARLY)


@triton.jit
def let_next_start(EARLY: tl.constexpr) -> None:
    """Let the next kernel be launched; this one waits later. A kernel's first line."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait_for_last(EARLY: tl.constexpr) -> None:
    """Wait for the kernel before, whose results are read from here on, and overwritten."""
    if EARLY:
        tl.extra.cuda.gdc_wait()


def early_start(device: torch.device) -> dict[str, bool]:
    """The launch arguments of a kernel that begins with `start_early` or `let_next_start`."""
    if capability(device) < _MIN_CAPABILITY:
        return {"EARLY": False}
    return {"EARLY": True, "launch_pdl": True}
