"""The penalties, which lower the logits of tokens that are already in the row.

The table `seen` (S, V) int32 is on the device and has a line for each batch slot. For each token of
the vocabulary the line has twice the token's count in the output, plus 1 if the token is in the
prompt.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import cdiv

_CHUNK = 4096


def reference(
    logits: Tensor,
    rows: Tensor,
    batch_slots: Tensor,
    seen: Tensor,
    presence: Tensor,
    frequency: Tensor,
    repetition: Tensor,
) -> None:
    """Penalise `rows` (K,) int64 of `logits` (R, V) float32 by lines `batch_slots` (K,) of `seen`.

    If a token is in the prompt or the output, its logit is divided by `repetition` if it is
    positive, and multiplied by `repetition` if it is negative. If a token is in the output n > 0
    times, `presence` + n x `frequency` is subtracted from its logit. `repetition`, `presence` and
    `frequency` are (K,) float32.
    """
    chosen, state = logits[rows], seen[batch_slots]
    counts = (state >> 1).float()
    factor = repetition[:, None]
    lowered = torch.where(chosen > 0, chosen / factor, chosen * factor)
    chosen = torch.where(state > 0, lowered, chosen)
    chosen -= frequency[:, None] * counts
    chosen -= presence[:, None] * (counts > 0)
    logits[rows] = chosen


@triton.jit
def _penalise_kernel(
    logits: tl.tensor,
    rows: tl.tensor,
    batch_slots: tl.tensor,
    seen: tl.tensor,
    presence: tl.tensor,
    frequency: tl.tensor,
    repetition: tl.tensor,
    V: tl.constexpr,
    CHUNK: tl.constexpr,
) -> None:
    index = tl.program_id(0)
    token = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    place = logits + tl.load(rows + index) * V + token
    state = tl.load(seen + tl.load(batch_slots + index) * V + token, mask=token < V, other=0)
    there = state > 0
    logit = tl.load(place, mask=there, other=0.0)
    factor = tl.load(repetition + index)
    count = (state >> 1).to(tl.float32)
    logit = tl.where(logit > 0, tl.math.div_rn(logit, factor), logit * factor)
    logit = logit - tl.load(frequency + index) * count
    logit = logit - tl.where(count > 0, tl.load(presence + index), 0.0)
    tl.store(place, logit, mask=there)


def launch(
    logits: Tensor,
    rows: Tensor,
    batch_slots: Tensor,
    seen: Tensor,
    presence: Tensor,
    frequency: Tensor,
    repetition: Tensor,
) -> None:
    """Compute `reference` on the device. Only logits of tokens in the row are written."""
    vocabulary = logits.shape[1]
    if not len(rows):
        return
    _penalise_kernel[(len(rows), cdiv(vocabulary, _CHUNK))](
        logits,
        rows,
        batch_slots,
        seen,
        presence,
        frequency,
        repetition,
        V=vocabulary,
        CHUNK=_CHUNK,
        enable_fp_fusion=False,  # rounds like the reference
    )
