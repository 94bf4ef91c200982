"""Patterns with look-aheads match the same texts as Python's `re`."""

from __future__ import annotations

import random
import re

import pytest

from engine.grammars.syntax.patterns.anchors import containing_text, has_look, whole_text
from engine.grammars.syntax.patterns.pattern import read_pattern
from tests.doubles.grammars.recogniser import Recogniser

# Patterns from zod (a duration) and outlines (an ISBN), and common ones (a password, a slug).
PATTERNS = {
    r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?"
    r"(\d+([.,]\d+)?S)?)?)$": (["P1W", "P1Y2M", "PT3H", "P1DT2.5S"], ["P", "PT", "P1Y1W", "P1DT"]),
    r"^(?=.*[a-z])(?=.*[A-Z])(?=.*\d)[A-Za-z\d]{4,}$": (["aB3x"], ["aBcx", "aB3", "aB3x "]),
    r"^(?!-)(?!.*--)[a-z-]+$": (["a-b"], ["-a", "a--b", ""]),
    r"^(?!foo$|bar$)\w+$": (["foobar", "fo"], ["foo", "bar"]),
    r"^(?=[A-Z]{1,3}$)[A-Z]+$": (["ABC"], ["ABCD", "abc"]),
    r"(?:(?!ab)[abc])*c$": (["xc", "aac", "abc"], ["ab"]),
    r"^(?:(?!ab)[abc])*c$": (["aac", "bac"], ["abc", "aabc"]),
    r"^(?:a(?=b)|b(?!b))+$": (["ab", "b"], ["a", "bb", "aa"]),
    r"a(?!b)": (["a", "ac", "aba"], ["ab", "b"]),
    r"a(?=b|$)": (["ab", "ca"], ["ac"]),
    r"(?=a*)(?=(?:b|)*)c?": (["", "ab"], []),
    r"^(?:(?=a)|b)*c": (["c", "bbc"], ["ac"]),
}
LETTERS = ("abc-", "fobar", "P1W.TYMDHS", "aB3xC", "ABCD ")


@pytest.mark.parametrize("pattern", PATTERNS)
def test_texts_are_pythons(pattern: str) -> None:
    assert has_look(read_pattern(pattern))
    found, whole = (Recogniser({"root": read(pattern)}) for read in (containing_text, whole_text))
    good, bad = PATTERNS[pattern]
    assert [text for text in good if text not in found] == []
    assert [text for text in bad if text in found] == []
    chance = random.Random(0)
    for letters in LETTERS:
        for _ in range(40):
            text = "".join(chance.choices(letters, k=chance.randrange(7)))
            assert (text in found) is bool(re.search(pattern, text)), text
            assert (text in whole) is bool(re.fullmatch(pattern, text)), text
