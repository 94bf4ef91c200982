"""The merge of a row's partial attention outputs, weighted by the log-sum-exp of their scores.

    out = sum_i exp2(lse_i - max lse) partial_i / sum_i exp2(lse_i - max lse)      lse is in base 2

Partial outputs do not include a sink's score. It is added here, once, to the divisor.
`merge_splits` is a kernel for partial outputs at equal distances in memory. `merge_row` is device
code for a program that merges the partial outputs of other programs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention.attention_tile import average, average_with_sink
from kernels.launch.rounding import cdiv, next_power_of_2

PARTS_AT_ONCE = tl.constexpr(8)
_ROWS_AT_ONCE = 4


@triton.jit
def add_partials(
    m: tl.tensor,
    total: tl.tensor,
    acc: tl.tensor,
    partial: tl.tensor,
    partial_lse: tl.tensor,
    first: tl.tensor,
    step: tl.tensor,
    count: tl.tensor,
    member: tl.tensor,
    inside: tl.tensor,
    D: tl.constexpr,
    D_PADDED: tl.constexpr,
    MEMBERS: tl.constexpr,
    AT_ONCE: tl.constexpr,
) -> tl.tensor:
    """Add `count` partial outputs of MEMBERS rows to acc (MEMBERS, D), m and total (MEMBERS,).

    Partial output i of member j is row `first` + i * `step` + `member[j]` of `partial` (rows, D).
    `member` and `inside` (true for members that exist) are repeated AT_ONCE times: (AT_ONCE *
    MEMBERS,). The loads bypass the L1 cache (.cg), because another program may have just written
    the data.
    """
    index = tl.arange(0, AT_ONCE * MEMBERS) // MEMBERS
    column = tl.arange(0, D_PADDED)
    for base in tl.range(0, count, AT_ONCE):
        real = inside & (base + index < count)
        row = first.to(tl.int64) + (base + index).to(tl.int64) * step + member
        lse = tl.load(partial_lse + row, mask=real, other=float("-inf"), cache_modifier=".cg")
        # Loaded even if the weight is 0, so that this load need not wait for the load of the
        # weight.
        place = partial + row[:, None] * D + column[None, :]
        wanted = real[:, None] & (column < D)[None, :]
        parts = tl.load(place, mask=wanted, other=0.0, cache_modifier=".cg")
        lse = tl.reshape(lse, [AT_ONCE, MEMBERS])
        m_new = tl.maximum(m, tl.max(lse, axis=0))
        anchor = tl.where(m_new == float("-inf"), 0.0, m_new)
        weight, shrink = tl.exp2(lse - anchor[None, :]), tl.exp2(m - anchor)
        weighted = tl.reshape(parts, [AT_ONCE, MEMBERS, D_PADDED]) * weight[:, :, None]
        acc = acc * shrink[:, None] + tl.sum(weighted, axis=0)
        total = total * shrink + tl.sum(weight, axis=0)
        m = m_new
    return m, total, acc


@triton.jit
def merge_row(
    partial: tl.tensor,
    partial_lse: tl.tensor,
    spans: tl.tensor,
    out: tl.tensor,
    sinks: tl.tensor,
    row: tl.tensor,
    rows: tl.tensor,
    first_slot: tl.tensor,
    splits: tl.tensor,
    kv_head: tl.tensor,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    MEMBERS: tl.constexpr,
    D: tl.constexpr,
    D_PADDED: tl.constexpr,
    SHARED: tl.constexpr,
    AT_ONCE: tl.constexpr,
) -> None:
    """Merge the partial outputs of a row, of its own keys and of SHARED levels of shared keys.

    A program merges the outputs for the query heads of one KV head. `sinks` is (Hq,) or None.
    """
    heads = KV_HEADS * GROUP
    member = tl.arange(0, AT_ONCE * MEMBERS) % MEMBERS
    inside = member < GROUP
    head = kv_head * GROUP + member
    m = tl.full([MEMBERS], float("-inf"), dtype=tl.float32)
    total = tl.zeros([MEMBERS], dtype=tl.float32)
    acc = tl.zeros([MEMBERS, D_PADDED], dtype=tl.float32)
    m, total, acc = add_partials(
        m, total, acc, partial, partial_lse, first_slot * heads, heads, splits, head, inside,
        D, D_PADDED, MEMBERS, AT_ONCE,
    )  # fmt: skip
    for level in tl.static_range(SHARED):
        span = spans + (level * rows + row) * 4
        first, step, count = tl.load(span), tl.load(span + 1), tl.load(span + 2)
        m, total, acc = add_partials(
            m, total, acc, partial, partial_lse, first * heads, step * heads, count, head, inside,
            D, D_PADDED, MEMBERS, AT_ONCE,
        )  # fmt: skip
    index, column = tl.arange(0, MEMBERS), tl.arange(0, D_PADDED)
    if sinks is not None:
        sink = tl.load(sinks + kv_head * GROUP + index, mask=index < GROUP, other=0.0)
        result = average_with_sink(acc, m, total, sink)
    else:
        result = average(acc, total)
    into = out + ((row.to(tl.int64) * heads + kv_head * GROUP + index) * D)[:, None]
    wanted = (index < GROUP)[:, None] & (column < D)[None, :]
    tl.store(into + column[None, :], result.to(out.dtype.element_ty), mask=wanted)


@triton.jit(do_not_specialize=["rows", "splits"])
def _merge_kernel(
    partial: tl.tensor,
    partial_lse: tl.tensor,
    out: tl.tensor,
    sinks: tl.tensor,
    rows: tl.tensor,
    splits: tl.tensor,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    D_PADDED: tl.constexpr,
    MEMBERS: tl.constexpr,
    AT_ONCE: tl.constexpr,
) -> None:
    member = tl.program_id(0) * MEMBERS + tl.arange(0, AT_ONCE * MEMBERS) % MEMBERS
    m = tl.full([MEMBERS], float("-inf"), dtype=tl.float32)
    total = tl.zeros([MEMBERS], dtype=tl.float32)
    acc = tl.zeros([MEMBERS, D_PADDED], dtype=tl.float32)
    m, total, acc = add_partials(
        m, total, acc, partial, partial_lse, rows * 0, rows, splits, member, member < rows,
        D, D_PADDED, MEMBERS, AT_ONCE,
    )  # fmt: skip
    row, column = tl.program_id(0) * MEMBERS + tl.arange(0, MEMBERS), tl.arange(0, D_PADDED)
    if sinks is not None:
        result = average_with_sink(acc, m, total, tl.load(sinks + row % HEADS))
    else:
        result = average(acc, total)
    into = out + row[:, None].to(tl.int64) * D + column[None, :]
    inside = (row < rows)[:, None] & (column < D)[None, :]
    tl.store(into, result.to(out.dtype.element_ty), mask=inside)


def merge_splits(partial: Tensor, lse: Tensor, out: Tensor, sinks: Tensor | None = None) -> None:
    """Merge `partial` (splits, rows, heads, D) by `lse` (splits, rows, heads), both float32.

    `out` (rows, heads, D) is contiguous. `lse` is in base 2, but `sinks` (heads,) are natural.
    """
    splits, head_dim = partial.shape[0], out.shape[2]
    rows = out.shape[0] * out.shape[1]
    _merge_kernel[(cdiv(rows, _ROWS_AT_ONCE),)](
        partial,
        lse,
        out,
        sinks,
        rows,
        splits,
        HEADS=out.shape[1],
        D=head_dim,
        D_PADDED=next_power_of_2(head_dim),
        MEMBERS=_ROWS_AT_ONCE,
        AT_ONCE=min(next_power_of_2(splits), PARTS_AT_ONCE.value),
        num_warps=2 if head_dim <= 256 else 4,
    )


def reference(partial: Tensor, lse: Tensor) -> Tensor:
    """Merge partial (splits, ..., D) by lse (splits, ...) -> (..., D). Plain PyTorch."""
    anchor = lse.amax(0).nan_to_num(neginf=0.0)
    weight = torch.exp2(lse - anchor)
    parts = torch.where(weight[..., None] > 0, partial * weight[..., None], 0.0)
    return parts.sum(0) / weight.sum(0).clamp(min=torch.finfo(lse.dtype).tiny)[..., None]
