"""The programmatic dependent launch (PDL) of CUDA: a kernel starts before the previous kernel ends.

    before    [ last programs ....]|                        [ last programs ....]
    after                          | launch | [ begins ]      launched [waits]   [ goes on ]

The kernel's own code waits for the previous kernel, with `griddepcontrol.wait`. GPUs support this
from compute capability 9.0 on. It hides the latency of a launch, which is most of a small kernel's
time. After the wait all earlier kernels have ended, and their results may be read.

Before its wait a kernel may run at the same time as earlier kernels, back to the last kernel
launched without PDL. Before its wait a kernel may therefore read only data written before all these
kernels: a model's tables and a step's inputs. A step begins with copies that are launched without
PDL.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.launch.capability import capability

_MIN_CAPABILITY = (9, 0)


@triton.jit
def launch_dependents_and_wait(DEPENDENT: tl.constexpr) -> None:
    """Allow the next kernel's launch, then wait for the previous kernel.

    Called in a kernel's first line.
    """
    launch_dependents(DEPENDENT)
    wait_for_previous(DEPENDENT)


@triton.jit
def launch_dependents(DEPENDENT: tl.constexpr) -> None:
    """Allow the next kernel's launch, without a wait. Called in a kernel's first line."""
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait_for_previous(DEPENDENT: tl.constexpr) -> None:
    """Wait for the previous kernel. Its results may be read or overwritten only afterwards."""
    if DEPENDENT:
        tl.extra.cuda.gdc_wait()


def dependent_launch(device: torch.device) -> dict[str, bool]:
    """Return the launch arguments of a kernel that begins with `launch_dependents...`."""
    if capability(device) < _MIN_CAPABILITY:
        return {"DEPENDENT": False}
    return {"DEPENDENT": True, "launch_pdl": True}
