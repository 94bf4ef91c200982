"""The decodes by the gated delta rule, single or in runs, which read and write a state once.

A program computes COLUMNS columns of the state of one value head of one run. No other program
writes these columns, so the new state may overwrite the old state in its slot. The program reads
the state before it waits for the previous kernel, because no earlier kernel of the step writes the
state. The programs of a run's later rows do nothing.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl
from torch import Tensor

from kernels.launch.dependent_launch import dependent_launch, launch_dependents, wait_for_previous
from kernels.recurrence.decay import log_decay, softplus
from kernels.recurrence.delta.delta_inputs import NORM_EPS, DeltaInputs, DeltaShape
from kernels.recurrence.state_rows import StateRows

COLUMNS = 64  # number of columns of a program: 256 adjacent bytes of a state's row
WARPS = 2


@triton.jit
def _delta_step_kernel(
    qkv: tl.tensor,
    a: tl.tensor,
    b: tl.tensor,
    a_log: tl.tensor,
    dt_bias: tl.tensor,
    state: tl.tensor,
    rows: tl.tuple,
    out: tl.tensor,
    scale: tl.tensor,
    qkv_stride: tl.tensor,
    a_stride: tl.tensor,
    b_stride: tl.tensor,
    slot_stride: tl.tensor,
    HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    COLUMNS: tl.constexpr,
    EPS: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    launch_dependents(DEPENDENT)
    _, context_lens, read_slots, write_slots, runs, kept_after = rows
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    key = tl.arange(0, K)
    place = head * K * V + key[:, None] * V + column[None, :]
    context = tl.load(context_lens + row)
    read = state + tl.load(read_slots + row).to(tl.int64) * slot_stride
    run, kept = tl.load(runs + row), tl.load(kept_after + row)
    goes_on = (place >= 0) & (context > 1) & (run > 0)
    now = tl.load(read + place, mask=goes_on, other=0.0)
    rate = tl.exp(tl.load(a_log + head).to(tl.float32))
    bias = tl.load(dt_bias + head).to(tl.float32)
    wait_for_previous(DEPENDENT)

    target = out + (row * HEADS + head) * V + column
    if context == 0:
        tl.store(target, tl.zeros([COLUMNS], out.dtype.element_ty))
    else:
        group = head // (HEADS // GROUPS)
        write = state + tl.load(write_slots + row).to(tl.int64) * slot_stride
        for at in tl.range(0, run, num_stages=1):
            token = qkv + (row + at) * qkv_stride
            q = tl.load(token + group * K + key).to(tl.float32)
            k = tl.load(token + (GROUPS + group) * K + key).to(tl.float32)
            v = tl.load(token + 2 * GROUPS * K + head * V + column).to(tl.float32)
            q *= scale * tl.rsqrt(tl.sum(q * q, axis=0) + EPS)
            k *= tl.rsqrt(tl.sum(k * k, axis=0) + EPS)
            step = softplus(tl.load(a + (row + at) * a_stride + head).to(tl.float32) + bias)
            beta = tl.sigmoid(tl.load(b + (row + at) * b_stride + head).to(tl.float32))
            now *= tl.exp(log_decay(rate, step))
            added = beta * (v - tl.sum(now * k[:, None], axis=0))
            now += k[:, None] * added[None, :]
            result = tl.sum(now * q[:, None], axis=0)
            tl.store(target + at * HEADS * V, result.to(out.dtype.element_ty))
            if at + 1 == kept:
                tl.store(write + place, now)


def launch(
    inputs: DeltaInputs, shape: DeltaShape, state: Tensor, rows: StateRows, out: Tensor
) -> None:
    """Compute `gated_delta.reference` of the decodes, and write their part of `out`."""
    columns = math.gcd(COLUMNS, shape.values)
    _delta_step_kernel[(rows.num_decodes, shape.heads, shape.values // columns)](
        inputs.qkv,
        inputs.a,
        inputs.b,
        inputs.a_log,
        inputs.dt_bias,
        state,
        rows.tensors,
        out,
        1 / math.sqrt(shape.keys),
        inputs.qkv.stride(0),
        inputs.a.stride(0),
        inputs.b.stride(0),
        state.stride(0),
        HEADS=shape.heads,
        GROUPS=shape.key_heads,
        K=shape.keys,
        V=shape.values,
        COLUMNS=columns,
        EPS=NORM_EPS,
        num_warps=WARPS,
        **dependent_launch(inputs.qkv.device),
    )
