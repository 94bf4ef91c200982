"""The decodes by Mamba-2, single or in runs, which read and write a state once.

A program computes some of the P lines of the state of one head of one run. No other program writes
these lines, so the new state may overwrite the old state in its slot. The program reads the state
before it waits for the previous kernel, because no earlier kernel of the step writes the state. The
programs of a run's later rows do nothing.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.launch.dependent_launch import dependent_launch, launch_dependents, wait_for_previous
from kernels.recurrence.decay import log_decay, time_step
from kernels.recurrence.mamba.ssd_inputs import SsdInputs, SsdShape
from kernels.recurrence.state_rows import StateRows

LINES = 16


@triton.jit
def _ssd_step_kernel(
    xbc: tl.tensor,
    dt: tl.tensor,
    a_log: tl.tensor,
    dt_bias: tl.tensor,
    skip: tl.tensor,
    state: tl.tensor,
    rows: tl.tuple,
    out: tl.tensor,
    least_step: tl.tensor,
    most_step: tl.tensor,
    xbc_stride: tl.tensor,
    dt_stride: tl.tensor,
    slot_stride: tl.tensor,
    HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    P: tl.constexpr,
    N: tl.constexpr,
    LINES: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    launch_dependents(DEPENDENT)
    _, context_lens, read_slots, write_slots, runs, kept_after = rows
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    line = tl.program_id(2) * LINES + tl.arange(0, LINES)
    column = tl.arange(0, N)
    place = head * P * N + line[:, None] * N + column[None, :]
    context = tl.load(context_lens + row)
    read = state + tl.load(read_slots + row).to(tl.int64) * slot_stride
    run, kept = tl.load(runs + row), tl.load(kept_after + row)
    now = tl.load(read + place, mask=(place >= 0) & (context > 1) & (run > 0), other=0.0)
    rate = tl.exp(tl.load(a_log + head).to(tl.float32))
    bias = tl.load(dt_bias + head).to(tl.float32)
    skipped = tl.load(skip + head).to(tl.float32)
    wait_for_previous(DEPENDENT)

    target = out + (row * HEADS + head) * P + line
    if context == 0:
        tl.store(target, tl.zeros([LINES], out.dtype.element_ty))
    else:
        group = head // (HEADS // GROUPS)
        write = state + tl.load(write_slots + row).to(tl.int64) * slot_stride
        for at in tl.range(0, run, num_stages=1):
            token = xbc + (row + at) * xbc_stride
            x = tl.load(token + head * P + line).to(tl.float32)
            b = tl.load(token + HEADS * P + group * N + column).to(tl.float32)
            c = tl.load(token + HEADS * P + (GROUPS + group) * N + column).to(tl.float32)
            step = tl.load(dt + (row + at) * dt_stride + head).to(tl.float32) + bias
            step = time_step(step, least_step, most_step)
            now = now * tl.exp(log_decay(rate, step)) + (step * x)[:, None] * b[None, :]
            result = tl.sum(now * c[None, :], axis=1) + skipped * x
            tl.store(target + at * HEADS * P, result.to(out.dtype.element_ty))
            if at + 1 == kept:
                tl.store(write + place, now)


def launch(inputs: SsdInputs, shape: SsdShape, state: Tensor, rows: StateRows, out: Tensor) -> None:
    """Compute `ssd.reference` of the decodes, and write their part of `out`."""
    _ssd_step_kernel[(rows.num_decodes, shape.heads, shape.head_dim // LINES)](
        inputs.xbc,
        inputs.dt,
        inputs.a_log,
        inputs.dt_bias,
        inputs.skip,
        state,
        rows.tensors,
        out,
        *inputs.dt_limit,
        inputs.xbc.stride(0),
        inputs.dt.stride(0),
        state.stride(0),
        HEADS=shape.heads,
        GROUPS=shape.groups,
        P=shape.head_dim,
        N=shape.state_size,
        LINES=LINES,
        **dependent_launch(inputs.xbc.device),
    )
