"""The formulas again, in float64, as loops that can be checked by eye: the truth of this package.

Shares nothing with `kernels`: no blocks, no tables, no fused anything. Attention is given the
keys and values of a row as one plain run of positions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x (..., H), weight (H,) -> float64."""
    rows = x.double().reshape(-1, x.shape[-1])
    normed = [row / math.sqrt(float((row * row).mean()) + eps) for row in rows]
    return (torch.stack(normed) * weight.double()).reshape(x.shape)


def silu_mul(gate_up: Tensor) -> Tensor:
    """gate_up (T, 2I) -> (T, I) float64."""
    size = gate_up.shape[1] // 2
    gate, up = gate_up[:, :size].double(), gate_up[:, size:].double()
    return gate / (1 + torch.exp(-gate)) * up


def rotate(head: Tensor, position: int, theta: float) -> Tensor:
    """One head (D,) turned by its position: pair i is (head[i], head[i + D/2])."""
    half = head.shape[0] // 2
    out = torch.empty(2 * half, dtype=torch.float64)
    for i in range(half):
        angle = position / theta ** (i / half)
        a, b = float(head[i]), float(head[i + half])
        out[i] = a * math.cos(angle) - b * math.sin(angle)
        out[i + half] = b * math.cos(angle) + a * math.sin(angle)
    return out


def attention(q: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """q (n, Hq, D): the last n tokens of keys, values (context, Hkv, D) -> (n, Hq, D) float64."""
    n, heads, _ = q.shape
    context, kv_heads, _ = keys.shape
    out = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    for head in range(heads):
        kv_head = head // (heads // kv_heads)
        k, v = keys[:, kv_head].double(), values[:, kv_head].double()
        scores = q[:, head].double() @ k.T * scale
        for token in range(n):
            scores[token, context - n + token + 1 :] = -math.inf
        out[:, head] = torch.softmax(scores, dim=1) @ v
    return out
