"""Regular expressions match the same texts as in ECMA-262."""

from __future__ import annotations

import re

import pytest

from engine.grammars.syntax.expression import UnsoundGrammar
from engine.grammars.syntax.patterns.anchors import containing_text, whole_text
from engine.grammars.vocabulary import Vocabulary
from tests.doubles.grammars.recogniser import Recogniser
from tests.engine.grammars.texts import Texts

# Each entry is a pattern, texts that it matches as a whole, and texts that it does not.
WHOLE: dict[str, tuple[str, list[str], list[str]]] = {
    "a bracket in a class": (r"[^()[\]]+", ["a{b", "\n"], ["a[", "(", "]"]),
    "a set of operators": ("[a&&b]+[~~x]+[!--]", ["a&b~x-", "b~+"], ["", "c~x", "b~."]),
    "an escape for no reason": (r"\/\-\_\@\#\<\>\"", ['/-_@#<>"'], ["-"]),
    "digits": (r"\d+", ["12"], ["\u0663", "a"]),
    "words": (r"\w+", ["aZ_9"], ["é", "-"]),
    "spaces": (r"\s\S", ["\ufeffx", "\u00a0é"], ["xx", "\u200bx"]),
    "any but a line's end": (".", ["é", "\x85"], ["\n", "\r", "\u2028", ""]),
    "any": (r"[^][\s\S][\d\D]", ["\n\r\u2028"], ["\n"]),
    "nothing": ("a[]|b", ["b"], ["a", "a]"]),
    "codes": (r"\x41\u00e9\u{1F600}\cJ\0\t\v\f", ["Aé😀\n\0\t\v\f"], ["A"]),
    "a pair": (r"[\ud83d\ude00-\ud83d\ude02]", ["😀", "😁"], ["😃"]),
    "a backspace": (r"[\b]", ["\b"], ["b"]),
    "groups": (r"(?:a|b)(?<year>c)(?P<month>d)()", ["acd", "bcd"], ["cd"]),
    "lazy": ("a+?b??c*?d{1,2}?", ["abd", "aaccdd"], ["b"]),
    "braces": ("{a}b{,c{1,2x{2}", ["{a}b{,c{1,2xx"], ["{a}"]),
    "no lower bound": ("a{,2}b", ["b", "aab"], ["aaab", "a{,2}b"]),
    "a closing bracket": ("a]}", ["a]}"], ["a"]),
    "a hyphen": (r"[a-][-a][\w-z][a\-z]", ["--z-", "a-aa"], ["b-z-"]),
    "properties": (r"\p{Lu}[^\p{L}\d]", ["É!"], ["é!", "É1", "ÉÉ"]),
    "anchors at its ends": ("^a|b$|(^c)$", ["a", "b", "c"], ["ab", ""]),
    "an anchor that can never be": ("a|b^c", ["a"], ["bc", "b"]),
    "of Python": (r"\A(?#so)a\Z", ["a"], ["A"]),
    "in either case": ("(?i)ab[c-d](?-i:E)é", ["aBDEÉ", "ABcEé"], ["abce"]),
    "a part in either case": ("(?i:a)b", ["Ab", "ab"], ["aB"]),
    "any with its lines": ("(?s).", ["\n"], [""]),
    "of POSIX": ("[[:alpha:]_]+[[:^digit:]]", ["ab_", "a_!"], ["a_1", "1"]),
    "a long one": ("[a-z]{0,2000}", ["a" * 2000], ["a" * 2001]),
}


@pytest.mark.parametrize("case", WHOLE)
def test_a_whole_text(vocabulary: Vocabulary, case: str) -> None:
    pattern, good, bad = WHOLE[case]
    texts = Texts(vocabulary, "regex", pattern)
    assert [text for text in good if text not in texts] == []
    assert [text for text in bad if text in texts] == []


CONTAINING = {
    "no anchor": ("b+", ["b", "abc", "a\nb"], ["a", ""]),
    "both": ("^a$", ["a"], ["ab", "ba", "a\n"]),
    "one": ("^a", ["a", "ab"], ["ba"]),
    "the other": ("a$", ["a", "ba"], ["ab"]),
    "of each alternative": ("^a|b$", ["a", "ax", "xb"], ["xa", "bx"]),
    "in a group": ("(^|, )a(;|$)", ["a", "x, a", ", a;x"], ["xa", "ax"]),
    "within": ("a(?:^b)?c", ["ac", "xacx"], ["abc"]),
    "nothing": ("", ["", "a"], []),
}


@pytest.mark.parametrize("case", CONTAINING)
def test_a_text_in_which_it_matches(case: str) -> None:
    pattern, good, bad = CONTAINING[case]
    texts = Recogniser({"root": containing_text(pattern)})
    assert [text for text in good if text not in texts] == []
    assert [text for text in bad if text in texts] == []
    assert all(re.search(pattern, text) for text in good), "Python reads it as well"


WRONG = {
    "(?=a)b": "a look-ahead that nothing can follow",
    r"(?=a)\p{L}\p{N}\p{Z}\p{M}\p{P}": "a look-ahead beside so many classes of Unicode",
    "^(?=.{1,253}$)(?!a)[a-z]{1,63}(\\.[a-z]{1,63})*$": "a look-ahead with so many cases",
    "^(?=[^z]{1,253}$)[a-z]{1,63}(\\.[a-z]{1,63})*$": "a look-ahead with so many cases",
    "(?<!a)b": "a look-behind is not supported",
    "(?>a)b": "an atomic group",
    r"(a)\1": "a reference to a group",
    r"(?<n>a)\k<n>": "a reference to a group",
    r"\bword\b": "a word boundary",
    "(a": "unclosed group",
    "a)": "closes nothing",
    "[a": "unclosed character class",
    "*a": "nothing before it",
    "a\\": "nothing follows the backslash",
    "[b-a]": "in the wrong order",
    "a{3,2}": "bounds",
    "a++": "possessive",
    "(^a)*": "an anchor",
    "a*^b": "an anchor",
    "(?x)a": "the flags",
}


@pytest.mark.parametrize("pattern", WRONG)
def test_what_is_not_regular_says_why(pattern: str) -> None:
    with pytest.raises(UnsoundGrammar, match=WRONG[pattern]):
        whole_text(pattern)
