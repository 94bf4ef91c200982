"""The gated delta rule of Gated DeltaNet, for rows of any lengths, with their states.

For each value head, whose state S (K, V) is float32, and each token of a row in turn:

    S   <-  exp(g) S,                       g = -exp(a_log) softplus(a + dt_bias)
    S   <-  S + beta k (v - S^T k)^T,       beta = sigmoid(b)
    o    =  S^T q / sqrt(K)

In this rule q and k are divided by their lengths, sqrt(sum of squares + 1e-6). Value head h uses
the query and key of head h // (Hv // Hk).

The tokens of a prompt are computed in chunks of CHUNK tokens. G_i is the sum of g up to token i of
a chunk. S is the state before the chunk. D_ij is exp(G_i - G_j) for i >= j, otherwise 0:

    (I + L) U = diag(beta) (V - diag(exp G) K S),    L_ij = beta_i (k_i . k_j) D_ij for i > j
    O = (diag(exp G) Q S + (Q K^T * D) U) / sqrt(K)
    S <- exp(G_last) S + (diag(exp(G_last - G)) K)^T U

Token i adds the outer product of its key and row i of U to the state. A row's first chunk begins at
the row's first token of the step. The division of a prompt into rows therefore changes only
roundings.

Sources: Yang, Kautz and Hatamizadeh, Gated Delta Networks, 2024; the triangular system, Yang et
al., Parallelizing Linear Transformers with the Delta Rule over Sequence Length, 2024.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.recurrence.decay import LEAST_DECAY
from kernels.recurrence.delta import delta_scan, delta_step
from kernels.recurrence.delta.delta_inputs import (
    CHUNK,
    NORM_EPS,
    DeltaInputs,
    DeltaShape,
    delta_shape,
)
from kernels.recurrence.state_rows import StateRows, each_row


def reference(
    qkv: Tensor,
    a: Tensor,
    b: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    rows: StateRows,
) -> Tensor:
    """Compute the rule for qkv (T, 2 Hk K + Hv V) -> (T, Hv V) of its dtype.

    Plain PyTorch. a and b are (T, Hv). a_log and dt_bias are (Hv,). state (S, Hv, K, V) float32,
    with any slot stride, is updated in place. Computed in float32. Raises UnsupportedShape.
    """
    inputs = DeltaInputs(qkv, a, b, a_log, dt_bias)
    shape = delta_shape(inputs, state)
    out = torch.zeros(
        (qkv.shape[0], shape.heads * shape.values), dtype=qkv.dtype, device=qkv.device
    )
    for row in each_row(rows):
        now = torch.zeros_like(state[0]) if row.read_slot is None else state[row.read_slot].clone()
        for part in row.parts:
            whole = _tokens(inputs, part, shape)
            outputs = []
            for begin in range(0, whole.g.shape[1], CHUNK):
                output, now = _advance(whole.part(slice(begin, begin + CHUNK)), now)
                outputs.append(output)
            out[part] = torch.cat(outputs, 1).transpose(0, 1).flatten(1).to(qkv.dtype)
            if part.stop - row.tokens.start == row.kept:
                state[row.write_slot] = now
    return out


@dataclass(frozen=True, slots=True)
class _Tokens:
    """The n tokens of a row: q, k (Hv, n, K), normed and scaled, v (Hv, n, V), g, beta (Hv, n)."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor

    def part(self, at: slice) -> _Tokens:
        return _Tokens(*(each[:, at] for each in (self.q, self.k, self.v, self.g, self.beta)))


def _tokens(inputs: DeltaInputs, at: slice, shape: DeltaShape) -> _Tokens:
    of_keys = shape.key_heads * shape.keys
    q, k, v = inputs.qkv[at].float().split([of_keys, of_keys, shape.heads * shape.values], dim=1)
    steps = F.softplus(inputs.a[at].float() + inputs.dt_bias.float())
    g = (-inputs.a_log.float().exp() * steps).clamp(min=LEAST_DECAY)
    beta = inputs.b[at].float().sigmoid()
    v = v.unflatten(1, (shape.heads, shape.values)).transpose(0, 1)
    return _Tokens(_normed(q, shape) / math.sqrt(shape.keys), _normed(k, shape), v, g.T, beta.T)


def _normed(tokens: Tensor, shape: DeltaShape) -> Tensor:
    """Divide heads of tokens (T, Hk K) by their lengths -> (Hv, T, K)."""
    heads: Tensor = tokens.unflatten(1, (shape.key_heads, shape.keys))
    heads = heads * torch.rsqrt(heads.square().sum(-1, keepdim=True) + NORM_EPS)
    return heads.transpose(0, 1).repeat_interleave(shape.heads // shape.key_heads, 0)


def _advance(chunk: _Tokens, before: Tensor) -> tuple[Tensor, Tensor]:
    """Compute a chunk's outputs (Hv, n, V) and the state after it from the state before it."""
    sums = chunk.g.cumsum(1)
    decays = (sums[:, :, None] - sums[:, None]).tril().exp().tril()
    reached = sums.exp()[..., None]
    system = (chunk.beta[..., None] * (chunk.k @ chunk.k.mT) * decays).tril(-1)
    wanted = chunk.beta[..., None] * (chunk.v - reached * (chunk.k @ before))
    added = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
    outputs = reached * (chunk.q @ before) + ((chunk.q @ chunk.k.mT) * decays) @ added
    left = (sums[:, -1:] - sums).exp()[..., None]
    return outputs, reached[:, -1:] * before + (left * chunk.k).mT @ added


def launch(
    qkv: Tensor,
    a: Tensor,
    b: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    rows: StateRows,
) -> Tensor:
    """Compute `reference` on the device. Rows of qkv, a and b may have any stride.

    The outputs of tokens that are in no row are undefined. Operands of products have qkv's dtype,
    and sums are float32.
    """
    inputs = DeltaInputs(qkv, a, b, a_log, dt_bias)
    shape = delta_shape(inputs, state)
    size = (qkv.shape[0], shape.heads * shape.values)
    out = torch.empty(size, dtype=qkv.dtype, device=qkv.device)
    if rows.num_decodes:
        delta_step.launch(inputs, shape, state, rows, out)
    if rows.num_prompts:
        delta_scan.launch(inputs, shape, state, rows, out)
    return out
