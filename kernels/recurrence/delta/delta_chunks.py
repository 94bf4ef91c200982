"""The parts of the gated delta rule that need no state, for all chunks of all prompts together.

A program computes one chunk of one value head. The names are those of `gated_delta`. In this module
Q and K are not yet normed, and r_q = 1 / (|q| sqrt(K)) and r_k = 1 / |k|.

    transform   inv(I + L) diag(beta)
    scores      r_q (Q K^T * D) r_k
    factors     exp(G) r_k, exp(G) r_q, exp(G_last - G) r_k, exp(G)

The products of rows are multiplied by float32 factors. Scaled rows would have to be rounded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch.row_blocks import first_row_block, row_of_block
from kernels.recurrence.decay import log_decay, softplus
from kernels.recurrence.delta.delta_inputs import CHUNK, NORM_EPS, DeltaInputs, DeltaShape
from kernels.recurrence.delta.unit_inverse import unit_inverse
from kernels.recurrence.state_rows import StateRows

# With two warps 8,192 tokens of Qwen3.5-27B take 0.30 ms on an H200, with four warps 0.40 ms.
WARPS = 2


@dataclass(frozen=True, slots=True)
class Chunks:
    """The parts of N chunks. A chunk's number is that of its block in `row_blocks`.

    `transform` and `scores` (N, Hv, CHUNK, CHUNK) have the dtype of the inputs. `factors` (N, Hv,
    4, CHUNK) are float32.
    """

    transform: Tensor
    scores: Tensor
    factors: Tensor


@triton.jit(do_not_specialize=["first_row", "end_row"])
def _delta_chunks_kernel(
    qkv: tl.tensor,
    a: tl.tensor,
    b: tl.tensor,
    a_log: tl.tensor,
    dt_bias: tl.tensor,
    row_starts: tl.tensor,
    transform: tl.tensor,
    scores: tl.tensor,
    factors: tl.tensor,
    scale: tl.tensor,
    first_row: tl.tensor,
    end_row: tl.tensor,
    qkv_stride: tl.tensor,
    a_stride: tl.tensor,
    b_stride: tl.tensor,
    HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    K: tl.constexpr,
    CHUNK: tl.constexpr,
    EPS: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    block, head = tl.program_id(0), tl.program_id(1)
    row = row_of_block(row_starts, block, first_row, end_row, CHUNK)
    start = tl.load(row_starts + row)
    new = tl.load(row_starts + row + 1) - start
    begin = (block - first_row_block(row_starts, row, first_row, CHUNK)) * CHUNK
    if begin < new:
        i, key = tl.arange(0, CHUNK), tl.arange(0, K)
        real, is_before = begin + i < new, i[:, None] >= i[None, :]
        token = (start + begin + i).to(tl.int64)
        rate = tl.exp(tl.load(a_log + head).to(tl.float32))
        step = tl.load(a + token * a_stride + head, mask=real, other=0.0).to(tl.float32)
        step = softplus(step + tl.load(dt_bias + head).to(tl.float32))
        beta = tl.load(b + token * b_stride + head, mask=real, other=0.0).to(tl.float32)
        beta = tl.where(real, tl.sigmoid(beta), 0.0)
        decay = tl.where(real, log_decay(rate, step), 0.0)
        reached = tl.cumsum(decay, axis=0)
        left = tl.sum(decay, axis=0) - reached
        between = tl.where(is_before, reached[:, None] - reached[None, :], 0.0)
        between = tl.where(is_before, tl.exp(between), 0.0)

        place = qkv + token[:, None] * qkv_stride + head // (HEADS // GROUPS) * K + key[None, :]
        q = tl.load(place, mask=real[:, None], other=0.0)
        k = tl.load(place + GROUPS * K, mask=real[:, None], other=0.0)
        wide_q, wide_k = q.to(tl.float32), k.to(tl.float32)
        q_scale = scale * tl.rsqrt(tl.sum(wide_q * wide_q, axis=1) + EPS)
        k_scale = tl.rsqrt(tl.sum(wide_k * wide_k, axis=1) + EPS)
        between *= k_scale[None, :]
        at = (block.to(tl.int64) * HEADS + head) * CHUNK
        square = at * CHUNK + i[:, None] * CHUNK + i[None, :]
        score = tl.dot(q, tl.trans(k), input_precision="tf32x3") * between * q_scale[:, None]
        tl.store(scores + square, score.to(scores.dtype.element_ty))
        lower = tl.dot(k, tl.trans(k), input_precision="tf32x3") * between
        lower = tl.where(i[:, None] > i[None, :], lower * (beta * k_scale)[:, None], 0.0)
        solved = unit_inverse(lower, CHUNK, PRECISION) * beta[None, :]
        tl.store(transform + square, solved.to(transform.dtype.element_ty))
        grown = tl.exp(reached)
        of_head = factors + at * 4 + i
        tl.store(of_head, grown * k_scale)
        tl.store(of_head + CHUNK, grown * q_scale)
        tl.store(of_head + 2 * CHUNK, tl.exp(left) * k_scale)
        tl.store(of_head + 3 * CHUNK, grown)


def prepare(inputs: DeltaInputs, shape: DeltaShape, rows: StateRows, num_chunks: int) -> Chunks:
    """Compute the parts of `num_chunks` chunks. Parts of chunks that no row has are undefined."""
    dtype, device = inputs.qkv.dtype, inputs.qkv.device
    square = (num_chunks, shape.heads, CHUNK, CHUNK)
    chunks = Chunks(
        torch.empty(square, dtype=dtype, device=device),
        torch.empty(square, dtype=dtype, device=device),
        torch.empty((*square[:2], 4, CHUNK), dtype=torch.float32, device=device),
    )
    _delta_chunks_kernel[(num_chunks, shape.heads)](
        inputs.qkv,
        inputs.a,
        inputs.b,
        inputs.a_log,
        inputs.dt_bias,
        rows.row_starts,
        chunks.transform,
        chunks.scores,
        chunks.factors,
        1 / math.sqrt(shape.keys),
        rows.num_decodes,
        rows.num_rows,
        inputs.qkv.stride(0),
        inputs.a.stride(0),
        inputs.b.stride(0),
        HEADS=shape.heads,
        GROUPS=shape.key_heads,
        K=shape.keys,
        CHUNK=CHUNK,
        EPS=NORM_EPS,
        PRECISION="tf32x3" if dtype == torch.float32 else "tf32",
        num_warps=WARPS,
    )
    return chunks
