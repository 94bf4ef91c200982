"""The sampler, compared with a plain Python version of the same options."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.link.messages import SamplingParams
from engine.sampling.planner import Planner
from engine.sampling.results import LaunchedSample
from engine.sampling.sampler import Sampler
from engine.sampling.tables import SlotTables
from engine.sequences.sequence import Sequence
from engine.step import Sampled
from kernels.ops import torch_ops
from tests.doubles.constraints import Allows
from tests.engine.rigs.hand_driven import CountedSeeds, hold, last_rows, sampling, sequence_of

VOCAB = 40
EOS = 1
BATCH_SLOTS = 20_000


def sampler() -> Sampler:
    planner = Planner(VOCAB, (EOS,), CountedSeeds(), BATCH_SLOTS)
    return Sampler(planner, torch_ops(), SlotTables(BATCH_SLOTS, VOCAB))


def launched(logits: Tensor, sequences: SequenceOf[Sequence]) -> LaunchedSample:
    for batch_slot, sequence in enumerate(sequences):
        sequence.batch_slot = batch_slot
        hold(sequence, [0])
    inputs = torch.tensor([int(sequence.token_ids[-1]) for sequence in sequences])
    allowed = [one.constraint.allowed() for one in sequences if one.constraint is not None]
    return sampler().launch(logits, last_rows(sequences), inputs, allowed)


def random_logits(rows: int, seed: int = 0, scale: float = 2.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((rows, VOCAB), generator=generator) * scale


def row(
    wish: SamplingParams, prompt: tuple[int, ...] = (3, 4), output: tuple[int, ...] = ()
) -> Sequence:
    sequence = sequence_of(list(prompt), wish)
    for token in output:
        sequence.append(token)
    return sequence


def sample(logits: Tensor, *sequences: Sequence) -> list[Sampled]:
    return launched(logits.clone(), sequences).collect()


def tokens(logits: Tensor, *sequences: Sequence) -> list[int]:
    chosen = [sampled.token_id for sampled in sample(logits, *sequences)]
    assert None not in chosen
    return [token for token in chosen if token is not None]


def draws(logits: Tensor, count: int, **wish: Any) -> Counter[int]:
    """Count how often each token is drawn from one row of logits, with a new seed for each draw."""
    wishes = [sampling(4, **{"temperature": 1.0, "seed": seed, **wish}) for seed in range(count)]
    return Counter(tokens(logits.expand(count, -1), *map(row, wishes)))


def test_greedy_takes_the_likeliest_and_the_first_of_equals() -> None:
    logits = random_logits(3)
    logits[2] = 0.0
    logits[2, [7, 30]] = 9.0
    chosen = tokens(logits, *(row(sampling()) for _ in range(3)))
    assert chosen == [*logits[:2].argmax(-1).tolist(), 7]


def test_top_k_of_one_is_greedy_at_any_temperature() -> None:
    logits = random_logits(20)
    ones = [row(sampling(4, 5.0, top_k=1, seed=seed)) for seed in range(20)]
    assert tokens(logits, *ones) == logits.argmax(-1).tolist()
    free = [row(sampling(4, 5.0, seed=seed)) for seed in range(20)]
    assert tokens(logits, *free) != logits.argmax(-1).tolist()


def test_a_vanishing_temperature_is_greedy() -> None:
    logits = random_logits(20)
    cold = [row(sampling(4, 1e-30, seed=seed)) for seed in range(20)]
    assert tokens(logits, *cold) == logits.argmax(-1).tolist()


def chi_square(counts: Counter[int], expected: Tensor) -> float:
    total = sum(counts.values())
    terms = (
        (counts[token] - total * p) ** 2 / (total * p)
        for token, p in enumerate(expected.tolist())
        if p > 0
    )
    return float(sum(terms))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax(temperature: float) -> None:
    logits = random_logits(1, scale=1.0)
    counts = draws(logits, 20_000, temperature=temperature)
    expected = (logits[0] / temperature).softmax(-1)
    # With 39 degrees of freedom, a fair sampler exceeds 80 less than once in 5,000 runs.
    assert chi_square(counts, expected) < 80
    unfair = logits[0].softmax(-1) if temperature != 1.0 else (logits[0] / 1.1).softmax(-1)
    assert chi_square(counts, unfair) > 80, "the test would not see an unfair draw"


@pytest.mark.parametrize(
    ("wish", "kept"),
    [
        ({"top_k": 5}, 5),
        ({"top_k": 39}, 39),
        ({"top_p": 0.7}, None),
        ({"min_p": 0.2}, None),
        ({"top_k": 12, "top_p": 0.8, "min_p": 0.1}, None),
    ],
)
def test_filtered_draws_follow_the_softmax_of_what_is_kept(
    wish: dict[str, Any], kept: int | None
) -> None:
    logits = random_logits(1, scale=1.0, seed=3)
    support = plain_filters(logits[0].tolist(), sampling(4, 1.0, **wish))
    assert kept is None or len(support) == kept
    assert 1 < len(support) < VOCAB
    weights = torch.tensor([logits[0, t] if t in support else -math.inf for t in range(VOCAB)])
    counts = draws(logits, 8_000, **wish)
    assert set(counts) <= support
    assert chi_square(counts, weights.softmax(-1)) < 80


def plain_filters(logits: list[float], wish: SamplingParams) -> set[int]:
    """Return the tokens left by top-k, then top-p, then min-p, in plain Python."""
    order = sorted(range(len(logits)), key=lambda token: -logits[token])
    order = order[: wish.top_k] if wish.top_k else order
    weights = [math.exp(logits[token] / wish.temperature) for token in order]
    probabilities = [weight / sum(weights) for weight in weights]
    before = [sum(probabilities[:rank]) for rank in range(len(order))]
    return {
        token
        for token, p, mass in zip(order, probabilities, before, strict=True)
        if (token == order[0] or mass < wish.top_p or wish.top_p >= 1.0)
        and p >= wish.min_p * probabilities[0]
    }


@pytest.mark.parametrize("temperature", [0.6, 1.7])
@pytest.mark.parametrize(
    "wish",
    [
        {"top_p": 0.5},
        {"top_p": 0.95},
        {"top_p": 0.0},
        {"min_p": 0.3},
        {"min_p": 1.0},
        {"top_k": 3, "top_p": 0.9},
        {"top_k": 1000, "min_p": 0.05},
    ],
)
def test_every_kept_token_is_drawn_and_no_other(temperature: float, wish: dict[str, Any]) -> None:
    logits = random_logits(1, seed=8, scale=1.5)
    support = plain_filters(logits[0].tolist(), sampling(4, temperature, **wish))
    counts = draws(logits, 4000, temperature=temperature, **wish)
    assert set(counts) <= support
    probabilities = torch.tensor([float(logits[0, t]) / temperature for t in support]).softmax(-1)
    likely = {t for t, p in zip(support, probabilities.tolist(), strict=True) if p > 0.005}
    assert likely <= set(counts)


def plain_penalties(
    logits: list[float], wish: SamplingParams, prompt: tuple[int, ...], output: tuple[int, ...]
) -> list[float]:
    """Return the penalised logits, in plain Python."""
    penalised = list(logits)
    for token in {*prompt, *output}:
        factor = wish.repetition_penalty
        penalised[token] = logits[token] / factor if logits[token] > 0 else logits[token] * factor
    for token, count in Counter(output).items():
        penalised[token] -= count * wish.frequency_penalty + wish.presence_penalty
    return penalised


PENALTIES = [
    {"repetition_penalty": 1.7},
    {"repetition_penalty": 0.6},
    {"presence_penalty": 1.3},
    {"frequency_penalty": 0.8},
    {"presence_penalty": -1.0, "frequency_penalty": -0.5},
    {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.25},
]


@pytest.mark.parametrize("wish", PENALTIES)
@pytest.mark.parametrize("output", [(), (5,), (5, 5, 9, 5, 20), tuple(range(30))])
def test_penalties_are_those_of_the_plain_reading(
    wish: dict[str, Any], output: tuple[int, ...]
) -> None:
    logits = random_logits(1, seed=len(output))
    prompt = (3, 9, 9, 31)
    expected = plain_penalties(logits[0].tolist(), sampling(64, **wish), prompt, output)
    adjusted = logits.clone()
    penalised = row(sampling(64, **wish), prompt, output)
    (chosen,) = launched(adjusted, [penalised]).collect()
    torch.testing.assert_close(adjusted[0], torch.tensor(expected))
    assert chosen.token_id == max(range(VOCAB), key=lambda token: expected[token])


def test_penalties_of_one_row_leave_the_others() -> None:
    logits = random_logits(3)
    adjusted = logits.clone()
    wish = sampling(64, presence_penalty=2.0)
    sequences = [row(sampling(64), output=(5,)), row(wish, output=(6,)), row(sampling(64))]
    launched(adjusted, sequences).collect()
    changed = (adjusted != logits).nonzero().tolist()
    assert changed == [[1, 6]]


def test_logit_bias_forces_and_forbids() -> None:
    logits = random_logits(2)
    best = int(logits[0].argmax())
    forced = row(sampling(4, logit_bias={17: 100.0}))
    forbidden = row(sampling(4, logit_bias={best: -100.0}))
    chosen = tokens(logits[:1].expand(2, -1), forced, forbidden)
    second = int(logits[0].topk(2).indices[1])
    assert chosen == [17, second]
    assert tokens(logits[:1], row(sampling(4))) == [best]


def test_logit_bias_holds_for_draws_too() -> None:
    logits = random_logits(1, scale=0.5)
    assert set(draws(logits, 300, logit_bias={17: 100.0})) == {17}
    assert 17 not in draws(logits, 300, logit_bias={17: -100.0})
    assert 17 in draws(logits, 300)


def test_min_tokens_rules_out_what_would_end_the_sequence() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, [EOS, 6]] = torch.tensor([9.0, 8.0])
    wish = sampling(9, min_tokens=2, stop_token_ids=(6,))
    assert tokens(logits, row(wish, output=(5,))) not in ([EOS], [6])
    assert tokens(logits, row(wish, output=(5, 5))) == [EOS]
    ignoring = sampling(9, min_tokens=2, stop_token_ids=(6,), ignore_eos=True)
    assert tokens(logits, row(ignoring, output=(5,))) == [EOS]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "wish", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.9}, {"num_logprobs": 2}]
)
def test_a_row_that_is_not_finite_yields_no_token_and_spares_the_others(
    bad: float, wish: dict[str, Any]
) -> None:
    logits = random_logits(3)
    wishes = sampling(4, **{"seed": 1, **wish})
    clean = sample(logits, *(row(wishes) for _ in range(3)))
    assert all(sampled.token_id is not None for sampled in clean)
    logits[1, 13] = bad
    spoilt = sample(logits, *(row(wishes) for _ in range(3)))
    assert spoilt[1] == Sampled(None)
    assert [spoilt[0], spoilt[2]] == [clean[0], clean[2]]


UNHEARD_OF: list[dict[str, Any]] = [
    {"repetition_penalty": 1.2e-38},
    {"presence_penalty": -3e38, "logit_bias": {5: 3e38}},
    {"frequency_penalty": -3e38},
    # would compute infinity minus infinity
    {"repetition_penalty": 1.2e-38, "frequency_penalty": 3e38},
    {"repetition_penalty": 1.2e-38, "logit_bias": {5: -3e38}},
]


@pytest.mark.parametrize("wish", UNHEARD_OF)
@pytest.mark.parametrize(
    "choice", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.9}, {"num_logprobs": 2}]
)
def test_a_wish_that_leaves_no_finite_logits_yields_no_token_and_spares_the_others(
    wish: dict[str, Any], choice: dict[str, Any]
) -> None:
    logits = random_logits(3)
    logits[:, 5] = 30.0
    usual, output = sampling(4, **{"seed": 1, **choice}), (5, 5)
    clean = sample(logits, *(row(usual, output=output) for _ in range(3)))
    assert all(sampled.token_id is not None for sampled in clean)
    adjusted = row(sampling(4, **{"seed": 1, **choice, **wish}), output=output)
    spoilt = sample(logits, row(usual, output=output), adjusted, row(usual, output=output))
    assert spoilt[1] == Sampled(None)
    assert [spoilt[0], spoilt[2]] == [clean[0], clean[2]]


def test_a_logit_may_be_lowered_without_end() -> None:
    logits = random_logits(1)
    best = int(logits[0].argmax())
    forbidden = row(sampling(4, frequency_penalty=3e38), output=(best, best))
    assert tokens(logits, forbidden) == [int(logits[0].topk(2).indices[1])]


def test_a_row_of_which_nothing_is_left_yields_no_token() -> None:
    all_but_one = tuple(token for token in range(VOCAB) if token not in (EOS, 7))
    wish = sampling(4, min_tokens=2, stop_token_ids=all_but_one)
    assert tokens(random_logits(1), row(wish)) == [7]
    wish = sampling(4, min_tokens=2, stop_token_ids=(*all_but_one, 7))
    assert sample(random_logits(1), row(wish)) == [Sampled(None)]


HOW: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 1},
    {"temperature": 1.0, "seed": 1, "top_k": 5},
    {"temperature": 1.0, "seed": 1, "logit_bias": {7: 9.0}, "num_logprobs": 1},
]


def constrained(wish: SamplingParams, *allowed: int) -> Sequence:
    return replace(row(wish), constraint=Allows(allowed, VOCAB))


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("allowed", [0, 31, 32, 39])
def test_a_constraint_leaves_what_it_allows_and_spares_the_others(
    how: dict[str, Any], allowed: int
) -> None:
    logits, wish = random_logits(3), sampling(4, **how)
    free = sample(logits, *(row(wish) for _ in range(3)))
    held = sample(logits, row(wish), constrained(wish, allowed), row(wish))
    assert held[1].token_id == allowed
    assert [held[0], held[2]] == [free[0], free[2]]
    assert sample(logits, row(wish), constrained(wish, *range(VOCAB)), row(wish)) == free


@pytest.mark.parametrize("how", HOW)
def test_a_constraint_that_leaves_nothing_is_told_from_logits_that_are_not_finite(
    how: dict[str, Any],
) -> None:
    logits, wish = random_logits(3), sampling(4, **how)
    free = sample(logits, *(row(wish) for _ in range(3)))
    held = sample(logits, row(wish), constrained(wish), row(wish))
    assert held == [free[0], Sampled(None, is_ruled_out=True), free[2]]
    logits[1, 13] = torch.nan
    for one in (constrained(wish), constrained(wish, 5)):
        assert sample(logits, row(wish), one, row(wish))[1] == Sampled(None)


KINDS = {
    "greedy": sampling(8),
    "plain": sampling(8, 1.0, seed=11),
    "searched": sampling(8, 1.0, seed=12, top_k=9),
    "sorted": sampling(8, 1.0, seed=13, top_p=0.8),
    "penalised": sampling(8, 1.0, seed=14, repetition_penalty=1.4, frequency_penalty=0.3),
    "reporting": sampling(8, 1.0, seed=15, num_logprobs=3),
}


def test_rows_of_every_kind_share_a_batch_as_if_alone() -> None:
    names = list(KINDS) * 3
    logits = random_logits(len(names))
    sequences = [row(KINDS[name], output=(7, 7, index)) for index, name in enumerate(names)]
    together = sample(logits, *sequences)
    for index, sequence in enumerate(sequences):
        (alone,) = sample(logits[index : index + 1], sequence)
        assert together[index].token_id == alone.token_id, names[index]
        assert (together[index].logprobs is None) == (names[index] != "reporting")


def test_a_seed_draws_anew_at_every_position() -> None:
    logits = torch.zeros(30, VOCAB)
    wish = sampling(64, 1.0, seed=5)
    chosen = tokens(logits, *(row(wish, output=(9,) * length) for length in range(30)))
    assert len(set(chosen)) > 10


def test_rows_without_a_seed_draw_apart() -> None:
    logits = torch.zeros(30, VOCAB)
    assert len(set(tokens(logits, *(row(sampling(4, 1.0)) for _ in range(30))))) > 10


def test_logprobs_come_from_the_raw_logits() -> None:
    logits = random_logits(2)
    wish = sampling(4, 0.3, seed=1, num_logprobs=4, logit_bias={20: 100.0}, presence_penalty=1.0)
    silent, reporting = sample(logits, row(sampling(4)), row(wish, output=(2, 2)))
    expected = logits[1].log_softmax(-1)
    assert silent.logprobs is None
    assert reporting.token_id == 20
    assert reporting.logprobs is not None
    assert reporting.logprobs.chosen == pytest.approx(float(expected[20]), abs=1e-6)
    best = expected.topk(4)
    assert [token for token, _ in reporting.logprobs.top] == best.indices.tolist()
    values = [value for _, value in reporting.logprobs.top]
    assert values == pytest.approx(best.values.tolist(), abs=1e-6)


def test_each_row_reports_as_many_as_it_asked_for() -> None:
    logits = random_logits(4)
    wishes = [sampling(4, num_logprobs=count) for count in (0, 5, None, VOCAB + 9)]
    reported = [sampled.logprobs for sampled in sample(logits, *map(row, wishes))]
    assert [None if r is None else len(r.top) for r in reported] == [0, 5, None, VOCAB]


def test_warming_up_uses_filters_at_the_vocabulary_and_in_the_dtypes_they_will_have() -> None:
    used: list[tuple[torch.Size, torch.dtype]] = []

    def noting(
        logits: Tensor,
        rows: Tensor,
        temperature: Tensor,
        top_k: Tensor,
        top_p: Tensor,
        log_min_p: Tensor,
    ) -> None:
        used.append((logits.shape, logits.dtype))
        torch_ops().top_k_top_p(logits, rows, temperature, top_k, top_p, log_min_p)

    planner = Planner(VOCAB, (EOS,), CountedSeeds(), 1)
    ops = replace(torch_ops(), top_k_top_p=noting)
    Sampler(planner, ops, SlotTables(1, VOCAB)).warm_up(VOCAB, torch.device("cpu"), torch.bfloat16)
    assert used == [((1, VOCAB), torch.bfloat16), ((1, VOCAB), torch.float32)]


def test_masks_of_plain_rows_are_applied_as_beside_rows_that_ask_for_more() -> None:
    """Compare the fast path for plain rows with the general path: both choose the same tokens."""
    logits = random_logits(3)
    wish = sampling(4, temperature=0.8, seed=9)
    plain = sample(logits, row(wish), constrained(wish, 3, 17, 31), row(sampling()))
    long = sample(logits, row(wish), constrained(wish, 3, 17, 31), row(sampling(num_logprobs=1)))
    assert [one.token_id for one in plain] == [one.token_id for one in long]
    assert plain[1].token_id in (3, 17, 31)


def test_nobody_waits_for_what_a_row_without_a_mask_samples() -> None:
    logits, wish = random_logits(2), sampling()
    sequences = [row(wish), constrained(wish, 5)]
    for batch_slot, sequence in enumerate(sequences):
        sequence.batch_slot = batch_slot
        hold(sequence, [0])
    inputs = torch.tensor([4, 4])
    told = sampler().launch(logits.clone(), last_rows(sequences), inputs, [None]).collect()
    assert told[0] == sample(logits[:1], row(wish))[0]
    assert (told[1].token_id, told[1].is_ruled_out) == (None, True)


@pytest.mark.parametrize("num_masks", [0, 2])
def test_a_row_that_lacks_its_mask_is_never_sampled_freely(num_masks: int) -> None:
    sequence = constrained(sampling(), 5)
    sequence.batch_slot = 0
    hold(sequence, [0])
    masks = [Allows([5], VOCAB).allowed()] * num_masks
    with pytest.raises(RuntimeError, match="1 rows need a mask"):
        sampler().launch(random_logits(1), last_rows([sequence]), torch.tensor([4]), masks)


def test_bits_beyond_the_vocabulary_are_no_tokens() -> None:
    """Ignore mask bits after the vocabulary's end, which is within a word of the mask."""
    beyond = constrained(sampling())
    assert beyond.constraint is not None
    beyond.constraint.allowed()[-1] = -1 << VOCAB % 32
    [told] = sample(random_logits(1), beyond)
    assert (told.token_id, told.is_ruled_out) == (None, True)
    beyond.constraint.allowed()[-1] |= 1
    [told] = sample(random_logits(1), beyond)
    assert told.token_id == VOCAB // 32 * 32


def test_a_masked_row_that_is_not_finite_is_told_so_beside_one_that_is() -> None:
    logits = random_logits(3)
    logits[1, 5] = float("nan")
    told = sample(logits, constrained(sampling(), 3), constrained(sampling(), 3), row(sampling()))
    assert [(one.token_id, one.is_ruled_out) for one in told[:2]] == [(3, False), (None, False)]
    assert told[2].token_id is not None
