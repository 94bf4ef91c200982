"""The attention of one row over contiguous keys, in plain PyTorch, for the references."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.attention.variant import AttentionVariant


def attend_keys(
    q: Tensor, keys: Tensor, values: Tensor, variant: AttentionVariant, sinks: Tensor | None
) -> Tensor:
    """Compute causal attention of a row's last n tokens -> (n, Hq, D).

    q is (n, Hq, D), keys and values are (Hkv, context, D).
    """
    if variant.window is not None:
        first = max(keys.shape[1] - q.shape[0] + 1 - variant.window, 0)
        keys, values = keys[:, first:], values[:, first:]
    if variant.softcap is None and sinks is None:
        return _library(q, keys, values, variant)
    return _by_hand(q, keys, values, variant, sinks)


def _library(q: Tensor, keys: Tensor, values: Tensor, variant: AttentionVariant) -> Tensor:
    n, context = q.shape[0], keys.shape[1]
    whole = variant.window is None or variant.window >= context
    mask = None if whole and n in (1, context) else _visible(n, context, variant.window, q.device)
    result = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        keys[None],
        values[None],
        attn_mask=mask,
        is_causal=mask is None and n == context > 1,
        scale=variant.scale,
        enable_gqa=True,
    )
    return result[0].transpose(0, 1)


def _by_hand(
    q: Tensor, keys: Tensor, values: Tensor, variant: AttentionVariant, sinks: Tensor | None
) -> Tensor:
    (n, heads, dim), (kv_heads, context, _) = q.shape, keys.shape
    # Order: KV heads, then the query heads of each, then tokens.
    grouped = q.transpose(0, 1).reshape(kv_heads, -1, dim)
    scores = (grouped @ keys.transpose(1, 2)).view(heads, n, context) * variant.scale
    if variant.softcap is not None:
        scores = variant.softcap * torch.tanh(scores / variant.softcap)
    hidden = ~_visible(n, context, variant.window, q.device)
    scores = scores.masked_fill(hidden, -torch.inf)
    if sinks is not None:
        beside = sinks.to(scores.dtype)[:, None, None].expand(heads, n, 1)
        scores = torch.cat((scores, beside), -1)
    weights = torch.softmax(scores, -1)[..., :context]
    result = weights.reshape(kv_heads, -1, context) @ values
    return result.view(heads, n, dim).transpose(0, 1)


def _visible(n: int, context: int, window: int | None, device: torch.device) -> Tensor:
    key = torch.arange(context, device=device)
    token = key[context - n :, None]
    visible = key <= token
    return visible if window is None else visible & (key > token - window)
