"""Latent attention in float64, by token and head, as the reference of this package."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kernels.latents.latent_shape import LatentShape


def attention(q: Tensor, latents: Tensor, weight: Tensor, shape: LatentShape) -> Tensor:
    """Attend with queries q (n, H, N + P), of the last n of latents (context, R + P); return (n, H,
    V) float64.
    """
    (n, heads, _), context = q.shape, len(latents)
    out = torch.empty((n, heads, shape.values), dtype=torch.float64)
    for head in range(heads):
        made = latents[:, : shape.rank].double() @ weight[head].double().T
        keys = torch.cat((made[:, : shape.nope], latents[:, shape.rank :].double()), 1)
        scores = q[:, head].double() @ keys.T * shape.scale
        hidden = torch.ones_like(scores).triu(context - n + 1).bool()
        weights = torch.softmax(scores.masked_fill(hidden, -torch.inf), 1)
        out[:, head] = weights @ made[:, shape.nope :]
    return out


def rotated(x: Tensor, position: int, theta: float, *, interleaved: bool) -> Tensor:
    """Rotate one head (P,) by its position; return the first numbers of its pairs, then the second
    numbers.
    """
    half = len(x) // 2
    out = torch.empty(2 * half, dtype=torch.float64)
    for i in range(half):
        angle = position / theta ** (i / half)
        a, b = (x[2 * i], x[2 * i + 1]) if interleaved else (x[i], x[half + i])
        out[i] = float(a) * math.cos(angle) - float(b) * math.sin(angle)
        out[half + i] = float(b) * math.cos(angle) + float(a) * math.sin(angle)
    return out
