"""The scan of prompts by Mamba-2, which computes a row's chunks one after another.

A program computes some lines of the state of one head of one row. The lines stay in registers,
transposed (N x lines), from the row's first token to its last. No other program reads or writes
these lines, so the new state may overwrite the old state in its slot.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.recurrence.decay import log_decay, time_step
from kernels.recurrence.mamba.ssd_inputs import CHUNK, SsdInputs, SsdShape
from kernels.recurrence.padding import write_padding
from kernels.recurrence.scan_tuning import ScanTuning, scan_tuning
from kernels.recurrence.state_rows import StateRows


@triton.jit(do_not_specialize=["first_row"])
def _ssd_scan_kernel(
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
    first_row: tl.tensor,
    xbc_stride: tl.tensor,
    dt_stride: tl.tensor,
    slot_stride: tl.tensor,
    HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    P: tl.constexpr,
    N: tl.constexpr,
    CHUNK: tl.constexpr,
    LINES: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    row_starts, context_lens, read_slots, write_slots, _, _ = rows
    row, head = first_row + tl.program_id(0), tl.program_id(1)
    start = tl.load(row_starts + row)
    new = tl.load(row_starts + row + 1) - start
    context = tl.load(context_lens + row)
    dtype: tl.constexpr = xbc.dtype.element_ty
    i, column = tl.arange(0, CHUNK), tl.arange(0, N)
    line = tl.program_id(2) * LINES + tl.arange(0, LINES)
    first = start.to(tl.int64)
    if context == 0:
        write_padding(out, first, new, head * P + line, HEADS * P, CHUNK)
    elif new > 0:
        group = head // (HEADS // GROUPS)
        place = head * P * N + line[None, :] * N + column[:, None]
        read = state + tl.load(read_slots + row).to(tl.int64) * slot_stride
        now = tl.load(read + place, mask=(place >= 0) & (context > new), other=0.0)
        rate = tl.exp(tl.load(a_log + head).to(tl.float32))
        bias = tl.load(dt_bias + head).to(tl.float32)
        skipped = tl.load(skip + head).to(tl.float32)
        is_before = i[:, None] >= i[None, :]
        for begin in tl.range(0, new, CHUNK, num_stages=STAGES):
            real = begin + i < new
            token = (first + begin + i)[:, None]
            of_group = xbc + token * xbc_stride + HEADS * P + group * N + column[None, :]
            x = tl.load(
                xbc + token * xbc_stride + head * P + line[None, :], mask=real[:, None], other=0.0
            )
            b = tl.load(of_group, mask=real[:, None], other=0.0)
            c = tl.load(of_group + GROUPS * N, mask=real[:, None], other=0.0)
            step = tl.load(dt + (first + begin + i) * dt_stride + head, mask=real, other=0.0)
            step = time_step(step.to(tl.float32) + bias, least_step, most_step)
            step = tl.where(real, step, 0.0)
            reached = tl.cumsum(tl.where(real, log_decay(rate, step), 0.0), axis=0)
            whole = tl.sum(tl.where(i == CHUNK - 1, reached, 0.0), axis=0)

            score = tl.dot(c, tl.trans(b), input_precision="tf32x3")
            between = tl.where(is_before, reached[:, None] - reached[None, :], 0.0)
            score = tl.where(is_before, score * tl.exp(between) * step[None, :], 0.0)
            wide = x.to(tl.float32)
            result = tl.dot(c, now.to(dtype), input_precision="tf32x3") * tl.exp(reached)[:, None]
            result = tl.dot(score.to(dtype), x, result, input_precision="tf32x3")
            result += skipped * wide
            place_out = token * (HEADS * P) + head * P + line[None, :]
            tl.store(out + place_out, result.to(dtype), mask=real[:, None])
            weighed = (wide * (tl.exp(whole - reached) * step)[:, None]).to(dtype)
            now = tl.dot(tl.trans(b), weighed, now * tl.exp(whole), input_precision="tf32x3")
        write = state + tl.load(write_slots + row).to(tl.int64) * slot_stride
        tl.debug_barrier()
        tl.store(write + place, now)


def launch(inputs: SsdInputs, shape: SsdShape, state: Tensor, rows: StateRows, out: Tensor) -> None:
    """Compute `ssd.reference` of the rows after the decodes, and write their part of `out`."""
    tuning = scan_tuning(inputs.xbc.dtype)
    launch_tuned(inputs, shape, state, rows, tuning, out)


def launch_tuned(
    inputs: SsdInputs,
    shape: SsdShape,
    state: Tensor,
    rows: StateRows,
    tuning: ScanTuning,
    out: Tensor,
) -> None:
    """Launch with `tuning`. The state's lines must be a multiple of the tuning's columns."""
    _ssd_scan_kernel[(rows.num_prompts, shape.heads, shape.head_dim // tuning.columns)](
        inputs.xbc,
        inputs.dt,
        inputs.a_log,
        inputs.dt_bias,
        inputs.skip,
        state,
        rows.tensors,
        out,
        *inputs.dt_limit,
        rows.num_decodes,
        inputs.xbc.stride(0),
        inputs.dt.stride(0),
        state.stride(0),
        HEADS=shape.heads,
        GROUPS=shape.groups,
        P=shape.head_dim,
        N=shape.state_size,
        CHUNK=CHUNK,
        LINES=tuning.columns,
        STAGES=tuning.stages,
        num_warps=tuning.warps,
    )
