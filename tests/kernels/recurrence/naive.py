"""The recurrences in float64, token by token: the reference of this package.

This module shares nothing with `kernels`. Each function takes the tokens of one row and the state
before them, and returns outputs and the state after them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

Advanced = tuple[Tensor, Tensor]


def silu(x: Tensor) -> Tensor:
    """Return x / (1 + exp(-x))."""
    return x / (1 + torch.exp(-x))


def softplus(x: Tensor) -> Tensor:
    """Return log(1 + exp(x)), without overflow."""
    return x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))


def conv(x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor) -> Advanced:
    """Compute a causal convolution: x (n, C), weight (C, W), bias (C,), state (C, W - 1)."""
    window, outputs = state.double(), []
    for token in x.double():
        window = torch.cat((window, token[:, None]), 1)
        total = (window * weight.double()).sum(1)
        outputs.append(silu(total if bias is None else total + bias.double()))
        window = window[:, 1:]
    return torch.stack(outputs), window


def gated_delta(
    qkv: Tensor, a: Tensor, b: Tensor, a_log: Tensor, dt_bias: Tensor, state: Tensor
) -> Advanced:
    """Compute qkv (n, 2 Hk K + Hv V), a, b (n, Hv), a_log, dt_bias (Hv,), state (Hv, K, V)."""
    heads, keys, values = state.shape
    groups = (qkv.shape[1] - heads * values) // (2 * keys)
    now, outputs = state.double().clone(), torch.zeros(len(qkv), heads, values, dtype=torch.float64)
    outputs = outputs.to(qkv.device)
    for token in range(len(qkv)):
        flat = qkv[token].double()
        q = flat[: groups * keys].view(groups, keys)
        k = flat[groups * keys : 2 * groups * keys].view(groups, keys)
        v = flat[2 * groups * keys :].view(heads, values)
        for head in range(heads):
            own = head // (heads // groups)
            query = q[own] / torch.sqrt((q[own] ** 2).sum() + 1e-6)
            key = k[own] / torch.sqrt((k[own] ** 2).sum() + 1e-6)
            step = softplus(a[token, head].double() + dt_bias[head].double())
            beta = 1 / (1 + torch.exp(-b[token, head].double()))
            now[head] *= torch.exp(-torch.exp(a_log[head].double()) * step)
            wrong = v[head] - now[head].T @ key
            now[head] += beta * torch.outer(key, wrong)
            outputs[token, head] = now[head].T @ query / math.sqrt(keys)
    return outputs.flatten(1), now


def ssd(
    xbc: Tensor,
    dt: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    skip: Tensor,
    dt_limit: tuple[float, float],
    state: Tensor,
) -> Advanced:
    """Compute xbc (n, H P + 2 G N), dt (n, H), a_log, dt_bias, skip (H,), state (H, P, N)."""
    heads, lines, columns = state.shape
    groups = (xbc.shape[1] - heads * lines) // (2 * columns)
    now, outputs = state.double().clone(), torch.zeros(len(xbc), heads, lines, dtype=torch.float64)
    outputs = outputs.to(xbc.device)
    for token in range(len(xbc)):
        flat = xbc[token].double()
        x = flat[: heads * lines].view(heads, lines)
        b, c = flat[heads * lines :].view(2, groups, columns)
        for head in range(heads):
            own = head // (heads // groups)
            step = softplus(dt[token, head].double() + dt_bias[head].double())
            step = step.clamp(*dt_limit)
            now[head] *= torch.exp(-torch.exp(a_log[head].double()) * step)
            now[head] += step * torch.outer(x[head], b[own])
            outputs[token, head] = now[head] @ c[own] + skip[head].double() * x[head]
    return outputs.flatten(1), now


def gated_norm(
    x: Tensor, gate: Tensor, weight: Tensor, eps: float, group: int, gate_first: bool
) -> Tensor:
    """Norm and gate x, gate (T, C) with weight (C,) or (group,); return (T, C)."""
    wide, opened = x.double(), silu(gate.double())
    if gate_first:
        wide = wide * opened
    parts = []
    for begin in range(0, x.shape[1], group):
        part = wide[:, begin : begin + group]
        scale = torch.sqrt((part * part).mean(1, keepdim=True) + eps)
        own = weight if len(weight) == group else weight[begin : begin + group]
        parts.append(part / scale * own.double())
    normed = torch.cat(parts, 1)
    return normed if gate_first else normed * opened
