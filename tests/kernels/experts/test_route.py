"""A token's k experts are the best by scores, biases and groups. Scores weight their outputs."""

from __future__ import annotations

import pytest
import torch

from kernels.errors import UnsupportedShape
from kernels.experts import route
from kernels.experts.scoring import SOFTMAX, Scoring
from kernels.ops import Ops


@pytest.mark.parametrize("renormalise", [False, True])
@pytest.mark.parametrize(("tokens", "num_experts", "top_k"), [(1, 4, 1), (7, 8, 3), (5, 60, 4)])
def test_the_k_best(ops: Ops, tokens: int, num_experts: int, top_k: int, renormalise: bool) -> None:
    generator = torch.Generator().manual_seed(num_experts)
    logits = 3 * torch.randn(tokens, num_experts, generator=generator)
    got = ops.route(logits, top_k, renormalise, SOFTMAX, None, None)
    probabilities = logits.double().softmax(-1)
    weights, experts = probabilities.topk(top_k)
    if renormalise:
        weights = weights / weights.sum(-1, keepdim=True)
    assert got.experts.dtype == torch.int32
    assert torch.equal(got.experts.long(), experts)
    torch.testing.assert_close(got.weights.double(), weights, rtol=1e-5, atol=1e-6)


CORRECTED = [
    Scoring(sigmoid=True, factor=2.5),
    Scoring(sigmoid=True, groups=4, top_groups=2),
    Scoring(groups=8, top_groups=3, factor=0.5),
    Scoring(groups=6, top_groups=2),
    Scoring(groups=6, top_groups=2, group_best=1),
]


@pytest.mark.parametrize("scoring", CORRECTED)
@pytest.mark.parametrize(("renormalise", "corrected"), [(False, True), (True, True), (True, False)])
def test_a_bias_and_groups_choose_and_scores_weigh(
    ops: Ops, scoring: Scoring, renormalise: bool, corrected: bool
) -> None:
    """Choose experts by biased scores and groups, but weigh them by scores.

    The reference is DeepSeek's router in `transformers`, written out token by token.
    """
    generator = torch.Generator().manual_seed(1)
    experts = 18 if scoring.groups == 6 else 16
    logits = 2 * torch.randn(6, experts, generator=generator)
    bias = 0.5 * torch.randn(experts, generator=generator) * corrected
    got = ops.route(logits, 4, renormalise, scoring, bias if corrected else None, None)
    scores = logits.sigmoid() if scoring.sigmoid else logits.softmax(-1)
    for token, own in enumerate(scores + bias):
        groups = own.view(scoring.groups, -1)
        best = groups.topk(scoring.group_best).values.sum(-1).topk(scoring.top_groups).indices
        allowed = torch.full_like(groups, float("-inf"))
        allowed[best] = groups[best]
        chosen = allowed.flatten().topk(4).indices
        weights = scores[token][chosen]
        if renormalise:
            weights = weights / weights.sum()
        assert got.experts[token].tolist() == chosen.tolist()
        torch.testing.assert_close(got.weights[token], weights * scoring.factor)
    plain = ops.route(logits, 4, renormalise, Scoring(scoring.sigmoid), None, None)
    matter = corrected or scoring.groups > 1
    assert torch.equal(plain.experts, got.experts) != matter, "the bias and groups matter"


def test_an_experts_factor_multiplies_its_weights(ops: Ops) -> None:
    logits = torch.randn(5, 12, generator=torch.Generator().manual_seed(3))
    factors = torch.arange(1.0, 13.0)
    plain = ops.route(logits, 3, True, SOFTMAX, None, None)
    got = ops.route(logits, 3, True, SOFTMAX, None, factors)
    assert torch.equal(got.experts, plain.experts)
    torch.testing.assert_close(got.weights, plain.weights * factors[plain.experts])


def test_groups_that_hold_too_few_experts_are_refused() -> None:
    route.launch(torch.empty(0, 16), 4, True, Scoring(groups=4, top_groups=1))
    groups_of_one = Scoring(groups=16)
    for scoring in (Scoring(groups=8, top_groups=1), Scoring(groups=3), groups_of_one):
        with pytest.raises(UnsupportedShape, match="experts"):
            route.launch(torch.empty(0, 16), 4, True, scoring)


def test_of_equal_logits_the_lowest_number_wins(ops: Ops) -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0, 2.0, 1.0], [1.0, 1.0, 1.0, 1.0, 1.0]])
    assert ops.route(logits, 2, True, SOFTMAX, None, None).experts.tolist() == [[1, 2], [0, 1]]


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), float("-inf")])
def test_whatever_the_logits_are_the_experts_exist(ops: Ops, odd: float) -> None:
    logits = torch.full((2, 6), odd)
    logits[1, 3] = 1.0
    experts = ops.route(logits, 3, True, SOFTMAX, None, None).experts
    assert ((experts >= 0) & (experts < 6)).all()


def test_no_tokens(ops: Ops) -> None:
    assert ops.route(torch.empty(0, 8), 2, True, SOFTMAX, None, None).experts.shape == (0, 2)


@pytest.mark.gpu
@pytest.mark.parametrize("num_experts", [8, 128, 256])
def test_on_the_device_as_in_the_reference(num_experts: int) -> None:
    logits = torch.randn(300, num_experts, device="cuda").bfloat16()
    got, wanted = route.launch(logits, 8, True), route.reference(logits, 8, True)
    assert torch.equal(got.experts, wanted.experts)
    torch.testing.assert_close(got.weights, wanted.weights)
