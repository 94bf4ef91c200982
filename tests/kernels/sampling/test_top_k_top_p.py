"""The tokens that the filters keep, by sorting or by searching, compared with a plain version."""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.ops import Ops
from kernels.sampling.top_k_top_p import launch, reference, weights

KEEP_ALL_P = 2.0
VOCAB = 2_300  # more logits than one lane's share, but not a multiple of the share
UNIT = 2**27
interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels run on CPU tensors only interpreted"
)


def kept(
    ops: Ops,
    logits: Tensor,
    *,
    temperature: float = 1.0,
    k: int | None = None,
    p: float = KEEP_ALL_P,
    min_p: float = 0.0,
) -> list[set[int]]:
    """Return the token ids left in each row by the filters."""
    rows, vocabulary = logits.shape
    left = logits.clone()
    ops.top_k_top_p(
        left,
        torch.arange(rows),
        torch.full((rows,), temperature),
        torch.full((rows,), vocabulary if k is None else k),
        torch.full((rows,), p),
        torch.full((rows,), math.log(min_p) if min_p else -math.inf),
    )
    is_left = left > -math.inf
    assert torch.equal(left[is_left], logits[is_left]), "what is left is as it was"
    return [set(row.nonzero().flatten().tolist()) for row in is_left]


def by_hand(row: list[float], *, temperature: float, k: int, p: float, min_p: float) -> set[int]:
    """Filter one token after the other, the likeliest first; return the tokens that are left."""
    scores = (torch.tensor(row) / temperature).tolist()
    top = max(scores)
    weigh = weights(torch.tensor([scores]))[0].tolist()
    order = sorted(range(len(row)), key=lambda token: (-scores[token], token))[:k]
    wanted = max(math.ceil(sum(int(weigh[token]) for token in order) * p), 1)
    left, mass = set(), 0
    for token in order:
        if mass < wanted and scores[token] >= top + (math.log(min_p) if min_p else -math.inf):
            left.add(token)
        mass += int(weigh[token])
    return left


def random_logits(rows: int, vocabulary: int, seed: int = 0, scale: float = 2.0) -> Tensor:
    return torch.randn((rows, vocabulary), generator=torch.Generator().manual_seed(seed)) * scale


@pytest.mark.parametrize("vocabulary", [5, 40, 700, 4_500])
@pytest.mark.parametrize(
    "wish",
    [
        {"k": 1},
        {"k": 3},
        {"k": 10**6},
        {"p": 0.5},
        {"p": 0.999},
        {"p": 1e-9},
        {"min_p": 0.2},
        {"k": 20, "p": 0.7, "min_p": 0.05},
    ],
    ids=str,
)
def test_the_kept_tokens_are_those_of_a_plain_loop(
    ops: Ops, vocabulary: int, wish: dict[str, float]
) -> None:
    logits = random_logits(2, vocabulary)
    whole = {"k": vocabulary, "p": KEEP_ALL_P, "min_p": 0.0} | wish
    expected = [
        by_hand(
            row,
            temperature=0.7,
            k=int(whole["k"]),
            p=float(torch.tensor(whole["p"])),
            min_p=whole["min_p"],
        )
        for row in logits.tolist()
    ]
    got = kept(
        ops,
        logits,
        temperature=0.7,
        k=int(wish["k"]) if "k" in wish else None,
        p=whole["p"],
        min_p=whole["min_p"],
    )
    assert got == expected


def test_of_equal_scores_the_lower_ids_are_kept(ops: Ops) -> None:
    logits = torch.zeros(1, 600)
    logits[0, [7, 550]] = 1.0
    assert kept(ops, logits, k=5) == [{7, 550, 0, 1, 2}]
    assert kept(ops, torch.zeros(1, 600), p=0.01) == [set(range(6))]
    assert kept(ops, torch.zeros(1, 600), p=0.5) == [set(range(300))]
    assert kept(ops, torch.zeros(1, 5_000), p=0.5) == [set(range(2_500))]
    assert kept(ops, torch.zeros(1, 5_000), k=4_097) == [set(range(4_097))]
    two_zeros = torch.tensor([[0.0, -0.0, -0.0, 0.0]])
    assert kept(ops, two_zeros, k=3) == [{0, 1, 2}], "zero and minus zero are equals"


def test_tokens_that_were_ruled_out_stay_so_and_weigh_nothing(ops: Ops) -> None:
    logits = torch.tensor([[3.0, -math.inf, 3.0, 3.0, -math.inf, 3.0]])
    assert kept(ops, logits) == [{0, 2, 3, 5}]
    assert kept(ops, logits, p=0.5) == [{0, 2}]
    assert kept(ops, logits, k=6, p=0.9) == [{0, 2, 3, 5}]


def test_negative_and_far_logits_are_in_order_too(ops: Ops) -> None:
    logits = torch.tensor([[-5.0, -1e30, 1e-30, -1e-30, 1e30, 2.0]])
    assert kept(ops, logits, k=3) == [{4, 5, 2}]
    assert kept(ops, logits, k=5) == [{4, 5, 2, 3, 0}]


def test_a_row_that_is_not_finite_spares_the_others(ops: Ops) -> None:
    logits = random_logits(3, 40)
    alone = kept(ops, logits[[0, 2]], k=9, p=0.8)
    logits[1, 4] = math.nan
    left = logits.clone()
    ones = torch.ones(3)
    nines = torch.full((3,), 9)
    ops.top_k_top_p(left, torch.arange(3), ones, nines, ones * 0.8, ones * -math.inf)
    got = [set((row > -math.inf).nonzero().flatten().tolist()) for row in left[[0, 2]]]
    assert got == alone


def test_only_the_rows_that_are_named_are_filtered(ops: Ops) -> None:
    logits = random_logits(4, 40)
    left, ones = logits.clone(), torch.ones(2)
    ks = torch.tensor([2, 7])
    ops.top_k_top_p(left, torch.tensor([3, 1]), ones, ks, ones * KEEP_ALL_P, ones * -math.inf)
    assert (left > -math.inf).sum(-1).tolist() == [40, 7, 40, 2]


def test_weights_are_probabilities_over_the_likeliests() -> None:
    scores = torch.linspace(-25.0, 3.0, 100_000)[None]
    got = weights(scores)[0]
    exact = (scores[0].double() - 3.0).exp() * UNIT
    assert ((got - exact).abs() <= 0.5 + 1e-6 * exact).all()
    assert (got.diff() >= 0).all()
    assert got[[0, -1]].tolist() == [0, UNIT]
    assert weights(torch.tensor([[0.0, -math.inf]])).tolist() == [[UNIT, 0]]


def far_apart(numbers: Tensor) -> Tensor:
    return torch.where(numbers > 0, numbers * 1e-30, numbers * 1e30)


def mostly_ruled_out(numbers: Tensor) -> Tensor:
    return numbers.masked_fill((numbers.abs() < 1.2) & (numbers < numbers.max()), -math.inf)


ROWS: dict[str, Callable[[Tensor], Tensor]] = {
    "all equal": torch.zeros_like,
    "two values": torch.sign,
    "zeros of both signs": lambda numbers: numbers.sign() * 0.0,
    "spread": lambda numbers: numbers * 3,
    "of bfloat16": lambda numbers: (numbers * 3).bfloat16().float(),
    "tiny": lambda numbers: numbers * 1e-30,
    "denormal": lambda numbers: numbers * 1e-42,
    "huge": lambda numbers: numbers * 1e30,
    "far apart": far_apart,
    "of every size": lambda numbers: (numbers * 25).exp().clamp(max=1e30) * numbers.sign(),
    "mostly ruled out": mostly_ruled_out,
    "all but one ruled out": lambda numbers: torch.where(
        numbers == numbers.max(), numbers, -math.inf
    ),
    "one far above": lambda numbers: torch.where(numbers == numbers.max(), 100.0, numbers),
}
# The dtype changes how a row is read, for any logits, so other parameters need one dtype only. Rows
# that need few reads behave alike.
HALVES = (torch.float16, torch.bfloat16)
KINDS = [
    (name, vocabulary, dtype)
    for number, name in enumerate(ROWS)
    for vocabulary, dtype in [
        (1, torch.float32),
        (2, torch.bfloat16),
        (VOCAB, torch.float32),
        *([(VOCAB, HALVES[number % 2])] if number % 3 == 0 else []),
    ]
]
LIMITS = [(1, KEEP_ALL_P), (3, 0.5), (50, 0.9), (VOCAB - 1, 1.0), (VOCAB + 5, 1e-9), (VOCAB, 0.999)]


@interpreted
@pytest.mark.parametrize(("name", "vocabulary", "dtype"), KINDS, ids=str)
def test_searching_finds_what_sorting_finds_in_rows_of_all_kinds(
    name: str, vocabulary: int, dtype: torch.dtype
) -> None:
    row = ROWS[name](random_logits(1, vocabulary, seed=5, scale=1.0))
    row = row.clamp(-6e4, 6e4).to(dtype) if dtype == torch.float16 else row.to(dtype)
    count = len(LIMITS)
    ks, ps = (torch.tensor(column) for column in zip(*LIMITS, strict=True))
    heats, min_ps = torch.tensor([1.0, 0.7] * 3), torch.tensor([0.0, 0.0, 0.3, 0.0, 1.0, 0.01])
    outcomes = []
    for way in (reference, launch):
        left = row.repeat(count, 1)
        way(left, torch.arange(count), heats, ks, ps, min_ps.log())
        outcomes.append(left)
    assert torch.equal(*outcomes)
    assert (outcomes[0] > -math.inf).any(-1).all()


@interpreted
@settings(max_examples=20)
@given(
    st.lists(st.integers(-3, 3), min_size=1, max_size=30),
    st.integers(1, 32),
    st.floats(1 / 64, 1.0, width=32),
    st.sampled_from([0.0, 0.1, 0.6]),
)
def test_searching_finds_what_sorting_finds_with_many_equals(
    steps: list[int], k: int, p: float, min_p: float
) -> None:
    logits = torch.tensor([steps], dtype=torch.float32) / 2
    outcomes = []
    for way in (reference, launch):
        left = logits.clone()
        way(
            left,
            torch.tensor([0]),
            torch.tensor([0.9]),
            torch.tensor([k]),
            torch.tensor([p]),
            torch.tensor([math.log(min_p) if min_p else -math.inf]),
        )
        outcomes.append(left)
    assert torch.equal(*outcomes)
