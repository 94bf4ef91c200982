"""Draws tokens among the likelier ones; `kernels.draw` draws among all.

Knows: temperature, top-k, top-p, min-p. Does not know: sequences or seeds.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.sampler.plan import FilteredDraw
from kernels.noise import log_exponential

RULED_OUT = float("-inf")


def draw_filtered(logits: Tensor, filtered: FilteredDraw[Tensor]) -> Tensor:
    """One token of each row of `logits` (K, V), among those the filters leave; (K,) int64."""
    values, token_ids = _likeliest(logits, filtered.num_candidates)
    scores = values / filtered.draw.temperature[:, None]
    scores = kept_scores(scores, filtered)
    scores -= log_exponential(filtered.draw.keys, token_ids.to(torch.int32))
    return token_ids.gather(1, scores.argmax(-1, keepdim=True))[:, 0]


def _likeliest(logits: Tensor, num_candidates: int | None) -> tuple[Tensor, Tensor]:
    """Logits in falling order with their token ids."""
    if num_candidates is not None:
        values, token_ids = logits.topk(num_candidates, dim=-1)
        return values, token_ids
    values, token_ids = logits.sort(dim=-1, descending=True, stable=True)
    return values, token_ids


def kept_scores(scores: Tensor, filtered: FilteredDraw[Tensor]) -> Tensor:
    """`scores` (K, M), falling, with -inf where top-k, then top-p, then min-p leave a token out.

    top-p keeps the fewest likeliest tokens that reach the mass p of what top-k left; min-p keeps
    what has at least p times the likeliest one's probability. The likeliest is always kept.
    """
    rank = torch.arange(scores.shape[1], device=scores.device)
    scores = scores.masked_fill(rank >= filtered.top_k[:, None], RULED_OUT)
    probabilities = scores.softmax(-1)
    mass_before = probabilities.cumsum(-1) - probabilities
    out = mass_before >= filtered.top_p[:, None]
    out |= scores < scores[:, :1] + filtered.log_min_p[:, None]
    return scores.masked_fill(out, RULED_OUT)
