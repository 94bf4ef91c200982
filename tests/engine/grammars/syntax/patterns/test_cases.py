"""Case-insensitive classes of nearly all characters compile as fast as small classes."""

from __future__ import annotations

import sys
import time
from contextlib import suppress

import pytest

from engine.grammars.syntax.expression import Chars, UnsoundGrammar, chars, other_than
from engine.grammars.syntax.lark_reader import rules_of_lark
from engine.grammars.syntax.patterns.letter_cases import LAST_CASED
from engine.grammars.syntax.patterns.pattern import read_pattern

HANG_S = 20.0  # seconds of processor time; a former version took twice as long for each class
WIDE = [r"\W", r"\D", r"\S", "[\u0100-\u2fff]", r"[\x{10000}-\x{1ffff}]", "[^\\w]"]


def both_cases(found: Chars) -> Chars:
    """Add the other case of each character that has one, by looking at every character."""
    others = {
        ord(other)
        for low, high in found.ranges
        for code in range(low, min(high, LAST_CASED) + 1)
        for other in (chr(code).lower(), chr(code).upper())
        if len(other) == 1
    }
    return chars(*found.ranges, *((code, code) for code in others))


@pytest.mark.parametrize("spelled", [*WIDE, "[a-z]", "[ß\u0131\u212a]", "k"])
def test_a_class_has_the_other_case_of_each_of_its_characters(spelled: str) -> None:
    plain = read_pattern(spelled)
    assert isinstance(plain, Chars)
    expected = both_cases(plain)
    if spelled.startswith("[^"):  # a negated class excludes both cases of its characters
        expected = other_than(both_cases(chars(*other_than(plain.ranges).ranges)).ranges)
    assert read_pattern(f"(?i:{spelled})") == expected


def test_no_character_beyond_has_another_case() -> None:
    beyond = (chr(code) for code in range(LAST_CASED + 1, sys.maxunicode + 1))
    assert all(char.lower() == char.upper() == char for char in beyond)


@pytest.mark.parametrize("spelled", [r"\W?", r"\S?", r"(?i:\D)", "[^a-b]?"])
def test_a_grammar_of_hundreds_of_them_is_read_or_refused_soon(spelled: str) -> None:
    began = time.process_time()
    with suppress(UnsoundGrammar):
        rules_of_lark(f"start: /{spelled * (1000 // len(spelled))}/i")
    assert time.process_time() - began < HANG_S
