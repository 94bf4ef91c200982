"""The scan of prompts by the gated delta rule, which computes a row's chunks one after another.

A program computes some columns of the state of one value head of one row. The columns stay in
registers, transposed (columns x K), from the row's first token to its last. The parts that need no
state are computed before (`delta_chunks`). No other program reads or writes these columns, so the
new state may overwrite the old state in its slot.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.launch.row_blocks import count_row_blocks, first_row_block
from kernels.recurrence.delta import delta_chunks
from kernels.recurrence.delta.delta_inputs import CHUNK, DeltaInputs, DeltaShape
from kernels.recurrence.padding import write_padding
from kernels.recurrence.scan_tuning import ScanTuning, delta_scan_tuning
from kernels.recurrence.state_rows import StateRows


@triton.jit
def _rounded(x: tl.tensor, DTYPE: tl.constexpr) -> tl.tensor:
    """Round x to DTYPE. Numbers beyond the range of fp16 become its largest number."""
    if DTYPE.is_fp16():
        x = tl.where(x > 65504.0, 65504.0, tl.where(x < -65504.0, -65504.0, x))
    return x.to(DTYPE)


@triton.jit(do_not_specialize=["first_row"])
def _delta_scan_kernel(
    qkv: tl.tensor,
    transform: tl.tensor,
    scores: tl.tensor,
    factors: tl.tensor,
    state: tl.tensor,
    rows: tl.tuple,
    out: tl.tensor,
    first_row: tl.tensor,
    qkv_stride: tl.tensor,
    slot_stride: tl.tensor,
    HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    CHUNK: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    row_starts, context_lens, read_slots, write_slots, _, _ = rows
    row, head = first_row + tl.program_id(0), tl.program_id(1)
    start = tl.load(row_starts + row)
    new = tl.load(row_starts + row + 1) - start
    context = tl.load(context_lens + row)
    dtype: tl.constexpr = qkv.dtype.element_ty
    i, key = tl.arange(0, CHUNK), tl.arange(0, K)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    first = start.to(tl.int64)
    if context == 0:
        write_padding(out, first, new, head * V + column, HEADS * V, CHUNK)
    elif new > 0:
        group = head // (HEADS // GROUPS)
        place = head * K * V + key[None, :] * V + column[:, None]
        read = state + tl.load(read_slots + row).to(tl.int64) * slot_stride
        goes_on = (place >= 0) & (context > new)
        now = tl.load(read + place, mask=goes_on, other=0.0)
        number = first_row_block(row_starts, row, first_row, CHUNK).to(tl.int64)
        square = i[:, None] * CHUNK + i[None, :]
        for begin in tl.range(0, new, CHUNK, num_stages=STAGES):
            real = begin + i < new
            token = first + begin + i
            at = ((number + begin // CHUNK) * HEADS + head) * CHUNK
            keys = qkv + token[:, None] * qkv_stride + group * K + key[None, :]
            q = tl.load(keys, mask=real[:, None], other=0.0)
            k = tl.load(keys + GROUPS * K, mask=real[:, None], other=0.0)
            values = qkv + token[None, :] * qkv_stride + 2 * GROUPS * K + head * V + column[:, None]
            v = tl.load(values, mask=real[None, :], other=0.0)
            solve = tl.load(transform + at * CHUNK + square)
            score = tl.load(scores + at * CHUNK + square)
            of_head = factors + at * 4 + i
            key_factor = tl.load(of_head)
            query_factor = tl.load(of_head + CHUNK)
            left = tl.load(of_head + 2 * CHUNK)
            decay = tl.load(factors + at * 4 + 4 * CHUNK - 1)

            rounded = now.to(dtype)
            known = tl.dot(rounded, tl.trans(k), input_precision="tf32x3") * key_factor[None, :]
            unknown = _rounded(v.to(tl.float32) - known, dtype)
            added = tl.dot(unknown, tl.trans(solve), input_precision="tf32x3")
            result = tl.dot(rounded, tl.trans(q), input_precision="tf32x3") * query_factor[None, :]
            weighed = _rounded(added * left[None, :], dtype)
            now = tl.dot(weighed, k, now * decay, input_precision="tf32x3")
            added = _rounded(added, dtype)
            result = tl.dot(added, tl.trans(score), result, input_precision="tf32x3")
            place_out = token[None, :] * (HEADS * V) + head * V + column[:, None]
            tl.store(out + place_out, result.to(dtype), mask=real[None, :])
        write = state + tl.load(write_slots + row).to(tl.int64) * slot_stride
        tl.debug_barrier()
        tl.store(write + place, now)


def launch(
    inputs: DeltaInputs, shape: DeltaShape, state: Tensor, rows: StateRows, out: Tensor
) -> None:
    """Compute `gated_delta.reference` of the rows after the decodes. Write their part of `out`."""
    tuning = delta_scan_tuning(inputs.qkv, shape.keys, shape.values)
    launch_tuned(inputs, shape, state, rows, tuning, out)


def launch_tuned(
    inputs: DeltaInputs,
    shape: DeltaShape,
    state: Tensor,
    rows: StateRows,
    tuning: ScanTuning,
    out: Tensor,
) -> None:
    """Launch with `tuning`. The state's columns must be a multiple of the tuning's columns."""
    tokens = inputs.qkv.shape[0] - rows.num_decodes
    num_chunks = count_row_blocks(tokens, rows.num_prompts, CHUNK)
    chunks = delta_chunks.prepare(inputs, shape, rows, num_chunks)
    _delta_scan_kernel[(rows.num_prompts, shape.heads, shape.values // tuning.columns)](
        inputs.qkv,
        chunks.transform,
        chunks.scores,
        chunks.factors,
        state,
        rows.tensors,
        out,
        rows.num_decodes,
        inputs.qkv.stride(0),
        state.stride(0),
        HEADS=shape.heads,
        GROUPS=shape.key_heads,
        K=shape.keys,
        V=shape.values,
        CHUNK=CHUNK,
        COLUMNS=tuning.columns,
        STAGES=tuning.stages,
        num_warps=tuning.warps,
    )
