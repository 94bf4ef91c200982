"""The formulas in float64, as loops that can be checked by eye: the reference of these tests.

This module shares only the names of variants with `kernels`: it has no blocks, no tables and no
fused operations. Attention gets the keys and values of a row as contiguous tensors.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kernels.attention.variant import AttentionVariant
from kernels.norms.gate import SILU, Gate


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Norm x (..., H) with weight (H,) in float64."""
    rows = x.double().reshape(-1, x.shape[-1])
    normed = [row / math.sqrt(float((row * row).mean()) + eps) for row in rows]
    return (torch.stack(normed) * weight.double()).reshape(x.shape)


def gate_mul(gate_up: Tensor, how: Gate = SILU) -> Tensor:
    """Apply the gate to gate_up (T, 2I), or to (T, I) without a gate; return (T, I) float64."""
    if how.act == "relu2":
        return torch.where(gate_up > 0, gate_up.double() ** 2, 0.0)
    size = gate_up.shape[1] // 2
    gate, up = gate_up[:, :size].double(), gate_up[:, size:].double()
    if how.limit is not None:
        gate = torch.where(gate > how.limit, how.limit, gate)
        up = torch.where(up.abs() > how.limit, how.limit * up.sign(), up)
        return gate / (1 + torch.exp(-how.alpha * gate)) * (1 + up)
    if how.act == "gelu_tanh":
        cubic = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
        return gate / 2 * (1 + torch.tanh(cubic)) * up
    return gate / (1 + torch.exp(-gate)) * up


def rotate(head: Tensor, position: int, theta: float) -> Tensor:
    """Rotate one head (D,) by its position: pair i is (head[i], head[i + D/2])."""
    half = head.shape[0] // 2
    out = torch.empty(2 * half, dtype=torch.float64)
    for i in range(half):
        angle = position / theta ** (i / half)
        a, b = float(head[i]), float(head[i + half])
        out[i] = a * math.cos(angle) - b * math.sin(angle)
        out[i + half] = b * math.cos(angle) + a * math.sin(angle)
    return out


def attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    how: AttentionVariant,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attend with q (n, Hq, D), of the last n tokens of keys and values (context, Hkv, D), in
    float64.
    """
    n, heads, _ = q.shape
    context, kv_heads, _ = keys.shape
    out = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    for head in range(heads):
        kv_head = head // (heads // kv_heads)
        k, v = keys[:, kv_head].double(), values[:, kv_head].double()
        scores = q[:, head].double() @ k.T * how.scale
        if how.softcap is not None:
            scores = how.softcap * torch.tanh(scores / how.softcap)
        for token in range(n):
            end = context - n + token + 1
            scores[token, end:] = -math.inf
            if how.window is not None and end > how.window:
                scores[token, : end - how.window] = -math.inf
        sink = scores.new_zeros(0) if sinks is None else sinks[head : head + 1].double()
        every = torch.cat((scores, sink.expand(n, -1)), 1)
        out[:, head] = torch.softmax(every, dim=1)[:, :context] @ v
    return out
