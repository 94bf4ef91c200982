"""Masks after draft tokens equal those after advancing, but the constraint does not advance."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from llguidance import LLMatcher, LLParserLimits

from engine.errors import ConstraintUnsatisfied
from engine.grammars.compilation import Compilation, CompiledGrammar, compiled
from engine.grammars.limits import AHEAD_S
from engine.grammars.prepared import prepared
from engine.grammars.token_mask import GrammarConstraint
from engine.grammars.vocabulary import Vocabulary
from engine.link.messages import Grammar, GrammarKind
from engine.sequences.token_constraint import Bitmask
from tests.doubles.engine.tiny_model import EOS

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "tags": {"type": "array"}},
    "required": ["name", "tags"],
    "additionalProperties": False,
}
SAID: list[tuple[GrammarKind, str, str]] = [
    ("json_schema", json.dumps(SCHEMA), '{"name": "Ada", "tags": [1, "two"]}'),
    ("regex", "[a-z ]{1,20}(yes|no)!", "that is a yes!"),
    # The text before x decides the token after x, but the library's lexer state does not record
    # that text.
    ("lark", 'start: "a" x "y" | "b" x "z" | "c" x\nx: /[xw]/', "bxz"),
    ("lark", 'start: t "."\nt[max_tokens=9]: /[a-z ]*/', "the fox."),
]
cases = pytest.mark.parametrize("case", range(len(SAID)))


def constraint_of(
    vocabulary: Vocabulary, kind: GrammarKind, text: str, ahead_s: float = 60.0
) -> GrammarConstraint:
    grammar = compiled(prepared(Grammar(kind, text)), vocabulary)
    return GrammarConstraint(Compilation(grammar), ahead_s=ahead_s)


def tokens(mask: Bitmask) -> list[int]:
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return [int(token) for token in np.flatnonzero(bits)]


def one_by_one(constraint: GrammarConstraint, drafts: list[int]) -> list[list[int]]:
    """Advance a constraint by the drafts, one by one, as far as it allows; return its masks."""
    masks = [tokens(constraint.allowed())]
    for draft in drafts:
        if draft not in masks[-1]:
            break
        constraint.advance(draft)
        if constraint.is_over:
            break
        masks.append(tokens(constraint.allowed()))
    return masks


def ids(text: str) -> list[int]:
    return [*text.encode()]


@cases
@pytest.mark.parametrize("end", [[], [EOS]])
def test_masks_after_drafts_are_those_of_one_token_at_a_time(
    vocabulary: Vocabulary, case: int, end: list[int]
) -> None:
    kind, text, said = SAID[case]
    rng, drafts = random.Random(case), [*ids(said), *end]
    drafted, plain = (constraint_of(vocabulary, kind, text) for _ in range(2))
    place = 0
    while place < len(drafts) and not drafted.is_over:
        count = rng.randint(0, 6)
        given = drafts[place : place + count]
        if given and rng.random() < 0.5:
            given[rng.randrange(len(given))] = rng.choice([*b'abxyz"{ ', EOS])
        ahead = constraint_of(vocabulary, kind, text)
        for token in drafts[:place]:
            ahead.advance(token)
        expected = one_by_one(ahead, given)
        assert [tokens(mask) for mask in drafted.allowed_after(tuple(given))] == expected
        assert tokens(drafted.allowed()) == tokens(plain.allowed()), "it is where it was"
        for token in drafts[place : place + rng.randint(1, 3)]:
            for one in (drafted, plain):
                one.advance(token)
            place += 1
            if drafted.is_over:
                break
    assert drafted.error is plain.error is None


def test_a_draft_that_leads_elsewhere_leaves_no_trace(vocabulary: Vocabulary) -> None:
    """Follow a draft, then advance by other tokens. A matcher that was rolled back would give the
    wrong mask.
    """
    kind, text, _ = SAID[2]
    constraint = constraint_of(vocabulary, kind, text)
    after = constraint.allowed_after((ord("a"), ord("x")))
    assert tokens(after[-1]) == [ord("y")]
    constraint.advance(ord("b"))
    constraint.advance(ord("x"))
    assert tokens(constraint.allowed()) == [ord("z")]


def test_masks_that_were_made_are_used_as_far_as_other_drafts_agree(
    vocabulary: Vocabulary,
) -> None:
    constraint = constraint_of(vocabulary, "regex", "[a-z]+")
    made = constraint.allowed_after((*b"abcd",))
    assert len(made) == 5
    assert constraint.has_mask
    assert len(constraint.allowed_after((*b"abxd",))) == 3
    assert len(constraint.allowed_after((*b"xbcd",))) == 1
    assert constraint.allowed_after((*b"abcdef",)) == made, "no more are made"
    constraint.advance(ord("a"))
    assert not constraint.has_mask
    assert len(constraint.allowed_after((*b"xyz",))) == 4


@pytest.mark.parametrize(("ahead_s", "most"), [(0.0, 2), (60.0, 7)])
def test_no_further_mask_is_begun_once_their_time_is_over(
    vocabulary: Vocabulary, ahead_s: float, most: int
) -> None:
    constraint = constraint_of(vocabulary, "regex", "[a-z]+", ahead_s)
    assert len(constraint.allowed_after((*b"abcdef",))) == most
    assert AHEAD_S < 0.01, "else a row waits long for its first mask"


def test_a_token_that_there_is_not_ends_the_drafts(vocabulary: Vocabulary) -> None:
    constraint = constraint_of(vocabulary, "regex", "[a-z]+")
    for token in (299, 300, 10_000, -1):
        assert len(constraint.allowed_after((ord("a"), token, ord("b")))) == 2
        constraint.advance(ord("a"))
    assert constraint.error is None


def test_a_mask_that_cannot_be_made_after_a_draft_fails_nothing(vocabulary: Vocabulary) -> None:
    """Survive a failed mask after a draft token. The sequence fails only if it samples that token
    itself.
    """
    limits = LLParserLimits(step_max_items=60, verbose_errors=False)
    rules = "\n".join(f'r{n}: "{n}" r{n} | "b" r{n + 1} | "c"' for n in range(200))
    branches = " | ".join(f"r{n}" for n in range(200))
    text = f'start: "a" | "z" "y" many\nmany: {branches}\n{rules}\nr200: "c"'
    matcher = LLMatcher(vocabulary.tokens, text, log_level=0, limits=limits)
    assert not matcher.is_error(), matcher.get_error()
    compilation = Compilation(CompiledGrammar(matcher, vocabulary, text))
    one, other = (GrammarConstraint(compilation, ahead_s=60.0) for _ in range(2))
    assert len(one.allowed_after((*b"zyc",))) == 2
    assert one.error is None
    one.advance(ord("a"))
    assert one.is_over
    for token in b"zy":
        assert other.allowed().any()
        other.advance(token)
    assert not other.allowed().any()
    assert isinstance(other.error, ConstraintUnsatisfied)


class TestForced:
    def test_tokens_are_forced_as_far_as_only_one_may_come(self, vocabulary: Vocabulary) -> None:
        constraint = constraint_of(vocabulary, "regex", "ab(cd|ef)")
        assert vocabulary.tokens.is_canonical
        assert constraint.forced() == (*b"ab",)
        assert tokens(constraint.allowed()) == [ord("a")]
        for token in b"ab":
            constraint.advance(token)
        assert constraint.forced() == ()
        constraint.advance(ord("c"))
        assert constraint.forced() == (*b"d",)
        constraint.advance(ord("d"))
        assert constraint.is_over
        assert constraint.forced() == ()

    def test_asking_changes_nothing(self, vocabulary: Vocabulary) -> None:
        kind, text, said = SAID[0]
        asked, plain = (constraint_of(vocabulary, kind, text) for _ in range(2))
        num_forced = 0
        for token in ids(said):
            forced = asked.forced()
            num_forced += len(forced)
            masks = asked.allowed_after(forced)
            assert [tokens(mask) for mask in masks[: len(forced)]] == [[one] for one in forced]
            assert tokens(asked.allowed()) == tokens(plain.allowed())
            assert asked.forced() == forced
            for one in (asked, plain):
                one.advance(token)
        assert num_forced > 5
        assert asked.is_over
