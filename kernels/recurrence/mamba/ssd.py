"""The state space model of Mamba-2 (SSD), for rows of any lengths, with their states.

For each head, whose state S (P, N) is float32, and each token of a row in turn:

    dt   =  softplus(dt + dt_bias), limited to dt_limit
    S   <-  exp(-exp(a_log) dt) S + dt x B^T
    y    =  S C + skip x

Head h uses B and C of group h // (H // G). A chunk is CHUNK tokens of a prompt. G_i is
the sum of -exp(a_log) dt up to token i of a chunk, S the state before the chunk, and D_ij = exp(G_i
- G_j) for i >= j, 0 otherwise:

    Y = (C B^T * D) diag(dt) X + diag(exp G) C S^T + skip X
    S <- exp(G_last) S + (diag(exp(G_last - G) dt) X)^T B

The limits of dt apply to prompts and to decodes. The division of a sequence into rows therefore
changes only roundings. `transformers` 5 applies the limits only to prompts. Source: Dao and Gu,
Transformers are SSMs, 2024.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.recurrence.decay import LEAST_DECAY
from kernels.recurrence.mamba import ssd_scan, ssd_step
from kernels.recurrence.mamba.ssd_inputs import CHUNK, SsdInputs, SsdShape, ssd_shape
from kernels.recurrence.state_rows import StateRows, each_row


def reference(
    xbc: Tensor,
    dt: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    skip: Tensor,
    dt_limit: tuple[float, float],
    state: Tensor,
    rows: StateRows,
) -> Tensor:
    """Compute the model for xbc (T, H P + 2 G N), dt (T, H) -> (T, H P) of xbc's dtype.

    a_log, dt_bias and skip are (H,). state (S, H, P, N) float32, with any slot stride, is updated
    in place. Plain PyTorch, computed in float32. Raises UnsupportedShape.
    """
    inputs = SsdInputs(xbc, dt, a_log, dt_bias, skip, dt_limit)
    shape = ssd_shape(inputs, state)
    size = (xbc.shape[0], shape.heads * shape.head_dim)
    out = torch.zeros(size, dtype=xbc.dtype, device=xbc.device)
    for row in each_row(rows):
        now = torch.zeros_like(state[0]) if row.read_slot is None else state[row.read_slot].clone()
        for part in row.parts:
            for first in range(part.start, part.stop, CHUNK):
                tokens = slice(first, min(first + CHUNK, part.stop))
                output, now = _advance(inputs, tokens, shape, now)
                out[tokens] = output.transpose(0, 1).flatten(1).to(xbc.dtype)
            if part.stop - row.tokens.start == row.kept:
                state[row.write_slot] = now
    return out


def _advance(
    inputs: SsdInputs, tokens: slice, shape: SsdShape, before: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute a chunk's outputs (H, n, P) and the state after it from the state before it."""
    x, b, c = _split(inputs.xbc[tokens].float(), shape)
    steps = F.softplus(inputs.dt[tokens].float() + inputs.dt_bias.float()).T
    steps = steps.clamp(*inputs.dt_limit)[..., None]
    rates = inputs.a_log.float().exp()[:, None, None]
    sums = (-rates * steps).clamp(min=LEAST_DECAY).cumsum(1)
    decays = (sums - sums.mT).tril().exp().tril()
    outputs = ((c @ b.mT) * decays) @ (steps * x) + sums.exp() * (c @ before.mT)
    left = (sums[:, -1:] - sums).exp() * steps
    after = sums[:, -1:].exp() * before + (left * x).mT @ b
    return outputs + inputs.skip.float()[:, None, None] * x, after


def _split(xbc: Tensor, shape: SsdShape) -> tuple[Tensor, Tensor, Tensor]:
    """Split xbc (n, H P + 2 G N) -> x (H, n, P), B and C (H, n, N)."""
    of_groups = shape.groups * shape.state_size
    x, b, c = xbc.split([shape.heads * shape.head_dim, of_groups, of_groups], dim=1)
    b, c = (
        each.unflatten(1, (shape.groups, shape.state_size))
        .transpose(0, 1)
        .repeat_interleave(shape.heads // shape.groups, 0)
        for each in (b, c)
    )
    return x.unflatten(1, (shape.heads, shape.head_dim)).transpose(0, 1), b, c


def launch(
    xbc: Tensor,
    dt: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    skip: Tensor,
    dt_limit: tuple[float, float],
    state: Tensor,
    rows: StateRows,
) -> Tensor:
    """Compute `reference` on the device. xbc and dt may have any row stride.

    The outputs of tokens that are in no row are undefined. Operands of products have xbc's dtype,
    and sums are float32.
    """
    inputs = SsdInputs(xbc, dt, a_log, dt_bias, skip, dt_limit)
    shape = ssd_shape(inputs, state)
    size = (xbc.shape[0], shape.heads * shape.head_dim)
    out = torch.empty(size, dtype=xbc.dtype, device=xbc.device)
    if rows.num_decodes:
        ssd_step.launch(inputs, shape, state, rows, out)
    if rows.num_prompts:
        ssd_scan.launch(inputs, shape, state, rows, out)
    return out
