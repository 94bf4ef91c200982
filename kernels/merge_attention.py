"""Brings the partial outputs of one row together, each with the log-sum-exp of its keys.

    out = sum_i exp2(lse_i - max lse) partial_i / sum_i exp2(lse_i - max lse)

Partial rows lie in slots (slots, heads, D) float32. A row's are found by spans, or, when all
rows have as many, at equal distances. Does not know keys, queries or who wrote the parts.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_SLOTS_AT_ONCE = 32


@triton.jit(do_not_specialize=["rows", "count"])
def _merge_kernel(
    partial: tl.tensor,
    partial_lse: tl.tensor,
    spans: tl.tensor,
    out: tl.tensor,
    rows: tl.tensor,
    count: tl.tensor,
    SPANS: tl.constexpr,
    D: tl.constexpr,
    D_PADDED: tl.constexpr,
    AT_ONCE: tl.constexpr,
) -> None:
    row, head, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    first, step = row, rows
    if SPANS > 0:
        count = tl.load(spans + row * 4 + 2)
    if SPANS != 1 or count > 1:  # a row of one part is written where it was computed
        index, column = tl.arange(0, AT_ONCE), tl.arange(0, D_PADDED)
        m = tl.full([1], float("-inf"), dtype=tl.float32)
        total = tl.zeros([1], dtype=tl.float32)
        acc = tl.zeros([D_PADDED], dtype=tl.float32)
        for span in tl.static_range(max(SPANS, 1)):
            if SPANS > 0:
                place = spans + (span * rows + row) * 4
                first, step, count = tl.load(place), tl.load(place + 1), tl.load(place + 2)
            for base in tl.range(0, count, AT_ONCE):
                slot = (first + (base + index) * step).to(tl.int64) * heads + head
                lse = tl.load(partial_lse + slot, mask=base + index < count, other=float("-inf"))
                m_new = tl.maximum(m, tl.max(lse, axis=0))
                anchor = tl.where(m_new == float("-inf"), 0.0, m_new)
                weight = tl.exp2(lse - anchor)
                # Loaded whether they weigh or not: so the load need not wait for the weights.
                wanted = (base + index < count)[:, None] & (column < D)[None, :]
                parts = tl.load(partial + slot[:, None] * D + column[None, :], wanted, other=0.0)
                shrink = tl.exp2(m - anchor)
                acc = acc * shrink + tl.sum(parts * weight[:, None], axis=0)
                total = total * shrink + tl.sum(weight, axis=0)
                m = m_new
        result = acc / tl.where(total == 0.0, 1.0, total)
        into = out + (row.to(tl.int64) * heads + head) * D + column
        tl.store(into, result.to(out.dtype.element_ty), mask=column < D)


def merge_spans(partial: Tensor, lse: Tensor, spans: Tensor, out: Tensor) -> None:
    """Merge into out (rows, heads, D) what `spans` names.

    `partial` (slots, heads, D) and `lse` (slots, heads), base 2, float32. `spans`
    (parts, rows, 4) int32: first slot, distance to the next, how many, unused. With one
    part, a row of one slot is left as it is in out.
    """
    _merge(partial, lse, spans, out, 0, spans.shape[0])


def merge_splits(partial: Tensor, lse: Tensor, out: Tensor) -> None:
    """Merge (splits, rows, heads, D) and (splits, rows, heads), as above, into out."""
    _merge(partial, lse, lse, out, partial.shape[0], 0)


def _merge(
    partial: Tensor, lse: Tensor, spans: Tensor, out: Tensor, splits: int, parts: int
) -> None:
    rows, heads, head_dim = out.shape
    _merge_kernel[(rows, heads)](
        partial,
        lse,
        spans,
        out,
        rows,
        splits,
        SPANS=parts,
        D=head_dim,
        D_PADDED=triton.next_power_of_2(head_dim),
        AT_ONCE=_SLOTS_AT_ONCE,
        num_warps=4,
    )


def reference(partial: Tensor, lse: Tensor) -> Tensor:
    """The formula above over the first dimension: (splits, ..., D), (splits, ...) -> (..., D)."""
    anchor = lse.amax(0).nan_to_num(neginf=0.0)
    weight = torch.exp2(lse - anchor)
    parts = torch.where(weight[..., None] > 0, partial * weight[..., None], 0.0)
    return parts.sum(0) / weight.sum(0).clamp(min=torch.finfo(lse.dtype).tiny)[..., None]
