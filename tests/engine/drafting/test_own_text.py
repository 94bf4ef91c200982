"""Drafts from a sequence's own text are long where it repeats, and rare where it is random."""

from __future__ import annotations

import random

import pytest

from engine.drafting.own_text import own_text
from engine.sequences.sequence import Sequence
from tests.engine.drafting.rows import decode, give, row

FILE = list(range(100, 400))
RANDOM = random.Random(7)


def decoded(sequence: Sequence, answer: list[int]) -> tuple[int, int, int]:
    return decode(own_text(sequence), sequence, answer)


def proposed(sequence: Sequence, most: int) -> tuple[int, ...]:
    return own_text(sequence).draft(sequence.num_tokens, most)


def test_a_copied_text_is_drafted_nearly_whole() -> None:
    steps, drafted, right = decoded(row([1, 2, *FILE, 3], 400), FILE)
    assert steps < len(FILE) / 10
    assert right == drafted, "nothing else was to be drafted"


def test_an_edited_text_is_found_again_after_each_edit() -> None:
    edited = [*FILE[:60], 7, 8, *FILE[60:150], *FILE[170:220], 9, *FILE[221:]]
    steps, drafted, right = decoded(row([1, 2, *FILE, 3], 400), edited)
    assert right > 0.85 * drafted
    assert steps < len(edited) / 6


def test_a_replaced_word_costs_two_steps() -> None:
    sequence = row([*FILE, 1], 400)
    drafter = own_text(sequence)
    give(sequence, *FILE[:10])
    assert drafter.draft(sequence.num_tokens, 16)
    give(sequence, 9999)
    assert drafter.draft(sequence.num_tokens, 16) == ()
    give(sequence, FILE[11])
    assert drafter.draft(sequence.num_tokens, 2) == tuple(FILE[12:14])
    assert drafter.matched == 1


@pytest.mark.parametrize("copied", [60, 6])
def test_after_an_inserted_line_the_text_goes_on_where_a_long_match_ended(copied: int) -> None:
    end_of_line, last = 1, 2
    lines = [[*range(start, start + 9), end_of_line] for start in range(100, 300, 10)]
    file = [token for line in lines for token in line]
    sequence = row([*file, last], 400)
    drafter = own_text(sequence)
    for token in (*file[:copied], 1000, 1001, end_of_line):
        give(sequence, token)
        draft = drafter.draft(sequence.num_tokens, 4)
    assert draft[:1] == ((file[copied],) if copied == 60 else (last,)), "else after the latest"
    assert drafter.matched == 1


def test_random_tokens_are_hardly_drafted() -> None:
    answer = [RANDOM.randrange(50_000) for _ in range(300)]
    steps, drafted, _ = decoded(row(range(50_000, 50_300), 400), answer)
    assert (steps, drafted) == (len(answer), 0)
    copied = [50_000 + at for at in range(300)]
    assert decoded(row(copied, 400), copied)[1] > 100, "the control"


def test_a_repetition_goes_on_beyond_its_own_end() -> None:
    sequence = row([5, 6, 7, 1, 2], 64)
    give(sequence, 1, 2)
    assert proposed(sequence, 5) == (1, 2, 1, 2, 1)


def test_a_draft_is_never_longer_than_asked() -> None:
    sequence = row([1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3], 64)
    drafter = own_text(sequence)
    for most in (1, 2, 3, 8):
        assert drafter.draft(sequence.num_tokens, most) == (4, 5, 6, 7, 8, 1, 2, 3)[:most]
    assert drafter.matched == 3


@pytest.mark.parametrize("length", [1, 2, 3])
def test_texts_of_hardly_any_tokens(length: int) -> None:
    assert bool(proposed(row([4] * length, 8), 4)) == (length > 1)


def test_drafts_are_of_known_tokens_alone() -> None:
    """Check drafts from an adversarial text that repeats itself, stops, and repeats something
    else.
    """
    for seed in range(40):
        generator = random.Random(seed)
        sequence = row([generator.randrange(4) for _ in range(20)], 300)
        drafter = own_text(sequence)
        while sequence.num_output < 280:
            draft = drafter.draft(sequence.num_tokens, generator.randrange(1, 17))
            assert set(draft) <= set(sequence.token_ids.tolist())
            give(sequence, *draft[: generator.randrange(5)], generator.randrange(6))


def test_it_may_be_asked_late_and_twice() -> None:
    sequence = row([*FILE, 1], 400)
    drafter = own_text(sequence)
    give(sequence, *FILE[:5])
    first = drafter.draft(sequence.num_tokens, 4)
    assert first == drafter.draft(sequence.num_tokens, 4)
    give(sequence, *FILE[5:200])
    assert drafter.draft(sequence.num_tokens, 4) == tuple(FILE[200:204])
