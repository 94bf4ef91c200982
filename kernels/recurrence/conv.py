"""A causal depthwise convolution with few taps, then SiLU. The state is a row's last inputs.

    y[t, c] = silu(bias[c] + sum_j weight[c, j] x[t - W + 1 + j, c])

Inputs before a row's first token are read from the row's state (W - 1 per channel, the oldest
first). At the sequence's start they are zeros. The result is computed in float32 and rounded once.
The state has the inputs' dtype, so the results are the same bits wherever a sequence is divided
into rows.

Sources: the layers of Gated DeltaNet (Yang et al. 2024) and Mamba-2 (Dao and Gu 2024).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch.dependent_launch import dependent_launch, launch_dependents, wait_for_previous
from kernels.launch.rounding import cdiv, next_power_of_2
from kernels.launch.row_blocks import count_row_blocks, first_row_block, row_of_block
from kernels.limits import check_conv
from kernels.recurrence.state_rows import StateRows, each_row

_CHANNELS = 256
_TOKENS = 8  # number of tokens of a program, at least the number of taps


def reference(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor, rows: StateRows
) -> Tensor:
    """Convolve x (T, C) with weight (C, W), add bias (C,), apply SiLU -> (T, C) of x's dtype.

    Plain PyTorch. state (S, C, W - 1) has x's dtype and any slot stride, and is updated in place.
    Raises UnsupportedShape.
    """
    check_conv(weight.shape[1])
    out = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    keep = weight.shape[1] - 1
    taps, shift = weight.float()[:, None], None if bias is None else bias.float()
    for row in each_row(rows):
        new = x[row.tokens].T
        before = (
            new.new_zeros((x.shape[1], keep)) if row.read_slot is None else state[row.read_slot]
        )
        inputs = torch.cat((before, new), 1)
        state[row.write_slot] = inputs[:, row.kept : row.kept + keep]
        for part in row.parts:
            window = inputs[:, part.start - row.tokens.start : part.stop - row.tokens.start + keep]
            summed = F.conv1d(window.float()[None], taps, shift, groups=x.shape[1])[0]
            out[part] = F.silu(summed).T.to(x.dtype)
    return out


@triton.jit
def _inputs(
    x: tl.tensor,
    state: tl.tensor,
    local: tl.tensor,
    channel: tl.tensor,
    inside: tl.tensor,
    goes_on: tl.tensor,
    x_stride: tl.tensor,
    KEEP: tl.constexpr,
) -> tl.tensor:
    """Load the inputs at positions `local` of the row.

    Inputs at negative positions are read from the state. They are 0 if the row starts at zero.
    """
    new = tl.load(
        x + local.to(tl.int64) * x_stride + channel, mask=inside & (local >= 0), other=0.0
    )
    kept = inside & (local < 0) & goes_on
    old = tl.load(state + channel * KEEP + KEEP + local, mask=kept, other=0.0)
    return tl.where(local >= 0, new, old)


@triton.jit
def _convolved(
    acc: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    state: tl.tensor,
    local: tl.tensor,
    channel: tl.tensor,
    inside: tl.tensor,
    goes_on: tl.tensor,
    x_stride: tl.tensor,
    C: tl.constexpr,
    W: tl.constexpr,
    AT_START: tl.constexpr,
) -> tl.tensor:
    """Add the products of all taps to acc (TOKENS, CHANNELS).

    Only programs that are AT_START of a row need the state.
    """
    KEEP: tl.constexpr = W - 1
    for tap in tl.static_range(W):
        taps = tl.load(weight + channel * W + tap, mask=channel < C, other=0.0)
        at = local - KEEP + tap
        if AT_START:
            given = _inputs(x, state, at, channel, inside, goes_on, x_stride, KEEP)
        else:
            given = tl.load(x + at.to(tl.int64) * x_stride + channel, mask=inside, other=0.0)
        acc += given.to(tl.float32) * taps.to(tl.float32)
    return acc


@triton.jit(do_not_specialize=["first_row", "end_row"])
def _conv_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    state: tl.tensor,
    rows: tl.tuple,
    out: tl.tensor,
    first_row: tl.tensor,
    end_row: tl.tensor,
    x_stride: tl.tensor,
    slot_stride: tl.tensor,
    C: tl.constexpr,
    W: tl.constexpr,
    KEEP_PADDED: tl.constexpr,
    TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    launch_dependents(DEPENDENT)
    row_starts, context_lens, read_slots, write_slots, runs, kept_after = rows
    KEEP: tl.constexpr = W - 1
    row, begin = tl.program_id(0), 0
    if TOKENS > 1:
        row = row_of_block(row_starts, tl.program_id(0), first_row, end_row, TOKENS)
        begin = tl.program_id(0) - first_row_block(row_starts, row, first_row, TOKENS)
        begin = begin * TOKENS
    start = tl.load(row_starts + row)
    new = tl.load(row_starts + row + 1) - start
    if TOKENS == 1:  # the previous rows have the earlier tokens of the run
        begin = tl.maximum(-tl.load(runs + row), 0)
        start, new = start - begin, new + begin
    context = tl.load(context_lens + row)
    goes_on = context > new
    read = state + tl.load(read_slots + row).to(tl.int64) * slot_stride
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    local = begin + tl.arange(0, TOKENS)[:, None]
    inside = (local < new) & (channel < C)
    place = (start + local).to(tl.int64) * C + channel
    acc = tl.zeros([TOKENS, CHANNELS], tl.float32)
    if bias is not None:
        acc += tl.load(bias + channel, mask=channel < C, other=0.0).to(tl.float32)
    wait_for_previous(DEPENDENT)
    if context == 0:
        tl.store(out + place, tl.zeros([TOKENS, CHANNELS], out.dtype.element_ty), mask=inside)
    elif begin < new:
        row_x = x + start.to(tl.int64) * x_stride
        if begin < KEEP:
            acc = _convolved(
                acc, row_x, weight, read, local, channel, inside, goes_on, x_stride, C, W, True
            )
        else:
            acc = _convolved(
                acc, row_x, weight, read, local, channel, inside, goes_on, x_stride, C, W, False
            )
        tl.store(out + place, (acc / (1.0 + tl.exp(-acc))).to(out.dtype.element_ty), mask=inside)
        if begin == 0:  # only this program uses this state, and reads before it writes
            kept = tl.arange(0, KEEP_PADDED)[:, None]
            is_kept = (kept < KEEP) & (channel < C)
            at_end = (tl.load(kept_after + row) if TOKENS == 1 else new) - KEEP + kept
            last = _inputs(row_x, read, at_end, channel, is_kept, goes_on, x_stride, KEEP)
            tl.debug_barrier()
            write = state + tl.load(write_slots + row).to(tl.int64) * slot_stride
            tl.store(write + channel * KEEP + kept, last, mask=is_kept)


def launch(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor, rows: StateRows
) -> Tensor:
    """Compute `reference` on the device. x may have any row stride.

    The outputs of tokens that are in no row are undefined.
    """
    check_conv(weight.shape[1])
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    decodes, prompts = rows.num_decodes, rows.num_prompts
    if decodes:
        _launch(x, weight, bias, state, rows, out, blocks=decodes, tokens=1)
    if prompts:
        blocks = count_row_blocks(x.shape[0] - decodes, prompts, _TOKENS)
        _launch(x, weight, bias, state, rows, out, blocks=blocks, tokens=_TOKENS)
    return out


def _launch(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    state: Tensor,
    rows: StateRows,
    out: Tensor,
    *,
    blocks: int,
    tokens: int,
) -> None:
    channels, width = weight.shape
    _conv_kernel[(blocks, cdiv(channels, _CHANNELS))](
        x,
        weight,
        bias,
        state,
        rows.tensors,
        out,
        rows.num_decodes,
        rows.num_rows,
        x.stride(0),
        state.stride(0),
        C=channels,
        W=width,
        KEEP_PADDED=next_power_of_2(width - 1),
        TOKENS=tokens,
        CHANNELS=_CHANNELS,
        **dependent_launch(x.device),
    )
