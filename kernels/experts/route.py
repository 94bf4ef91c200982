"""The router's choice of experts for each token: those with the k largest scores.

    scores  = softmax(logits) over all experts, or sigmoid(logits), in float32
    chosen  = the k largest of scores (+ bias, if any) in the best groups (`Scoring`)
    weights = scores of the chosen experts, without the bias
              with `renormalise` divided by their sum; then multiplied by `factor`

If scores are equal, the expert with the lowest number is chosen. The chosen experts are valid for
any logits, even NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.experts.scoring import SOFTMAX, Scoring
from kernels.launch.dependent_launch import dependent_launch, launch_dependents_and_wait
from kernels.launch.rounding import next_power_of_2
from kernels.limits import check_groups


@dataclass(frozen=True, slots=True)
class Routed:
    """The chosen `experts` (T, k) int32, best first, and their `weights` (T, k) float32."""

    experts: Tensor
    weights: Tensor


RouteOp = Callable[[Tensor, int, bool, Scoring, Tensor | None, Tensor | None], Routed]
"""logits (T, E), k, renormalise, scoring, bias, factors -> each token's k experts and weights.

bias and factors are (E,) float32 or None. At the end, an expert's factor multiplies its weight.
"""
_LEAST_SUM = 1e-20  # minimum divisor, so that weights are 0 if all scores are 0


def reference(
    logits: Tensor,
    top_k: int,
    renormalise: bool,
    scoring: Scoring = SOFTMAX,
    bias: Tensor | None = None,
    factors: Tensor | None = None,
) -> Routed:
    """Choose `top_k` experts by logits (T, E) of any float dtype. Plain PyTorch."""
    wide = logits.float()
    scores = wide.sigmoid() if scoring.sigmoid else torch.softmax(wide, -1)
    ranked = _within_groups(scores if bias is None else scores + bias, scoring)
    experts = torch.sort(ranked, dim=-1, descending=True, stable=True).indices[:, :top_k]
    weights = scores.gather(1, experts)
    if renormalise:
        weights = weights / (weights.sum(-1, keepdim=True) + _LEAST_SUM)
    weights = weights * scoring.factor
    if factors is not None:
        weights = weights * factors[experts]
    return Routed(experts.int().contiguous(), weights)


def _within_groups(ranked: Tensor, scoring: Scoring) -> Tensor:
    if scoring.groups == 1:
        return ranked
    grouped = ranked.view(len(ranked), scoring.groups, -1)
    sums = grouped.topk(scoring.group_best, dim=-1).values.sum(-1)
    best = torch.sort(sums, dim=-1, descending=True, stable=True).indices[:, : scoring.top_groups]
    left = torch.ones_like(sums, dtype=torch.bool).scatter_(1, best, value=False)
    return grouped.masked_fill(left[..., None], float("-inf")).flatten(1)


@triton.jit
def _within_best_groups(
    ranked: tl.tensor,
    expert: tl.tensor,
    SIZE: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUPS_PADDED: tl.constexpr,
    GROUP_BEST: tl.constexpr,
    TOP_GROUPS: tl.constexpr,
) -> tl.tensor:
    """Replace the scores of experts outside the best groups by -inf. A group has SIZE experts."""
    group = tl.arange(0, GROUPS_PADDED)
    sums = tl.full([GROUPS_PADDED], float("-inf"), tl.float32)
    for index in tl.static_range(GROUPS):
        own = tl.where(expert // SIZE == index, ranked, float("-inf"))
        best, number = tl.max(own, axis=0, return_indices=True, return_indices_tie_break_left=True)
        if GROUP_BEST == 2:
            best += tl.max(tl.where(expert == number, float("-inf"), own), axis=0)
        sums = tl.where(group == index, best, sums)
    left = expert < 0
    for _ in tl.static_range(TOP_GROUPS):
        _, chosen = tl.max(sums, axis=0, return_indices=True, return_indices_tie_break_left=True)
        left = left | (expert // SIZE == chosen)
        sums = tl.where(group == chosen, float("-inf"), sums)
    return tl.where(left, ranked, float("-inf"))


@triton.jit
def _route_kernel(
    logits: tl.tensor,
    bias: tl.tensor,
    factors: tl.tensor,
    experts: tl.tensor,
    weights: tl.tensor,
    row_stride: tl.tensor,
    FACTOR: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUPS_PADDED: tl.constexpr,
    GROUP_BEST: tl.constexpr,
    TOP_GROUPS: tl.constexpr,
    SIGMOID: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_FACTORS: tl.constexpr,
    E: tl.constexpr,
    E_PADDED: tl.constexpr,
    K: tl.constexpr,
    K_PADDED: tl.constexpr,
    RENORMALISE: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    launch_dependents_and_wait(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    expert, place = tl.arange(0, E_PADDED), tl.arange(0, K_PADDED)
    inside = expert < E
    given = tl.load(logits + row * row_stride + expert, mask=inside, other=0.0).to(tl.float32)
    given = tl.where(given == given, given, -1e30)  # NaN becomes the smallest score
    given = tl.where(inside, tl.minimum(tl.maximum(given, -1e30), 1e30), float("-inf"))
    if SIGMOID:
        scores = 1 / (1 + tl.exp(-given))
        ranked = tl.where(inside, scores, float("-inf"))
    else:
        powers = tl.exp(given - tl.max(given, axis=0))
        scores = powers / tl.sum(powers, axis=0)
        ranked = given if GROUPS == 1 else tl.where(inside, scores, float("-inf"))
    if HAS_BIAS:
        added = tl.load(bias + expert, mask=inside, other=0.0)
        ranked = tl.where(inside, scores + added, float("-inf"))
    if GROUPS > 1:
        ranked = _within_best_groups(
            ranked, expert, E // GROUPS, GROUPS, GROUPS_PADDED, GROUP_BEST, TOP_GROUPS
        )
    chosen = tl.zeros([K_PADDED], tl.int32)
    weight = tl.zeros([K_PADDED], tl.float32)
    for k in tl.static_range(K):
        _, number = tl.max(ranked, axis=0, return_indices=True, return_indices_tie_break_left=True)
        chosen = tl.where(place == k, number, chosen)
        own = tl.sum(tl.where(expert == number, scores, 0.0), axis=0)
        weight = tl.where(place == k, own, weight)
        ranked = tl.where(expert == number, float("-inf"), ranked)
    if RENORMALISE:
        weight = weight / (tl.sum(weight, axis=0) + 1e-20)
    weight = weight * FACTOR
    if HAS_FACTORS:
        weight = weight * tl.load(factors + chosen).to(tl.float32)
    tl.store(experts + row * K + place, chosen, mask=place < K)
    tl.store(weights + row * K + place, weight, mask=place < K)


def launch(
    logits: Tensor,
    top_k: int,
    renormalise: bool,
    scoring: Scoring = SOFTMAX,
    bias: Tensor | None = None,
    factors: Tensor | None = None,
) -> Routed:
    """Compute `reference` on the device. Rows must be contiguous."""
    tokens, num_experts = logits.shape
    check_groups(num_experts, scoring.groups, scoring.top_groups, top_k, scoring.group_best)
    experts = torch.empty((tokens, top_k), dtype=torch.int32, device=logits.device)
    weights = torch.empty((tokens, top_k), dtype=torch.float32, device=logits.device)
    if tokens:
        _route_kernel[(tokens,)](
            logits,
            bias,
            factors,
            experts,
            weights,
            logits.stride(0),
            FACTOR=scoring.factor,
            GROUPS=scoring.groups,
            GROUPS_PADDED=next_power_of_2(scoring.groups),
            GROUP_BEST=scoring.group_best,
            TOP_GROUPS=scoring.top_groups,
            SIGMOID=scoring.sigmoid,
            HAS_BIAS=bias is not None,
            HAS_FACTORS=factors is not None,
            E=num_experts,
            E_PADDED=next_power_of_2(num_experts),
            K=top_k,
            K_PADDED=next_power_of_2(top_k),
            RENORMALISE=renormalise,
            num_warps=1 if num_experts <= 128 else 4,
            **dependent_launch(logits.device),
        )
    return Routed(experts, weights)
