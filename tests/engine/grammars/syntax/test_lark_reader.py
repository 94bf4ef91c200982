"""Grammars in Lark's syntax allow the same texts as Lark itself."""

from __future__ import annotations

import json

import pytest

from engine.grammars.syntax.expression import UnsoundGrammar
from engine.grammars.syntax.lark_pattern import pattern_of
from engine.grammars.syntax.lark_reader import START, rules_of_lark
from engine.grammars.vocabulary import Vocabulary
from tests.doubles.grammars.lark_grammars import RECURSIVE, LarkTexts, lark_grammars
from tests.engine.grammars.texts import Texts

PATCH = """*** Begin Patch
*** Add File: a "b".py
+x = "\\n"
+
*** Update File: c
*** Move to: ü
@@ def f():
-\told
+new
 same
*** End of File
*** Delete File: d
*** End Patch"""
GOOD = {
    "apply_patch": [
        PATCH,
        PATCH + "\n",
        "*** Begin Patch\n*** Delete File: \r\u2028\n*** End Patch",
    ],
    "exec": ["// @exec: {}\ntext('hi')", "text('hi')\n", " "],
    "arithmetic": ["1", "1 + 2 * 3 * 44 + 5"],
    "sql": [
        "select TOP 1 * FROM t;",
        "SELECT TOP 10 a, b,c from t WHERE a > 'x\ny'ANDb>2 ORDER BY a DESC;",
    ],
    "date": ["1999-12-31", "2026-01-09 to 2026-11-30"],
    "terms": ["1", "( 1+-(2)*f(x, (3)) )", 'f("a)\\n\\"")', "x1 ** 2 \t"],
    "query": ['{"a": {"$or": [{"b": 1}, {"c": {"$lt": -2}}]}}', "{}", '{"x": "\u00fc\x7f/"}'],
    "list": ["a", 'a, "b\\"c" ,-1.5e3,2 , 3  ', " a"],
}
BAD = {
    "apply_patch": [
        "",
        PATCH + "\n\n",
        PATCH.replace("+x", "x"),
        PATCH.replace(" a ", " \n"),
        PATCH[:-1],
        PATCH.replace("*** Move to: ü", "*** Move to: "),
    ],
    "exec": [""],
    "arithmetic": ["1+2", "a", "1 + ", "1 "],
    "sql": ["SELECT TOP a FROM t;", "SELECT top 1 * FROM t;", "SELECT TOP 1 * FROM t"],
    "date": ["1899-12-31", "2026-13-01", "2026-01-9", "2026-01-091"],
    "terms": ["(1", "1 + ", "f(,)", '"a', "1 2"],
    "query": ['{"a": {"$or": [{"b": 1]}}', "{", "[1]", '{"a": {"b": 1}}'],
    "list": ["a,", "", '"a\n"', "a b", "1 2"],
}


def spelled(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def texts(vocabulary: Vocabulary, grammar: str) -> Texts:
    pattern = pattern_of(rules_of_lark(grammar), START)
    return Texts(vocabulary, "json_schema", json.dumps({"type": "string", "pattern": pattern}))


@pytest.mark.parametrize("name", GOOD)
def test_texts_are_those_of_lark(name: str, vocabulary: Vocabulary) -> None:
    grammar, good, bad = lark_grammars()[name], GOOD[name], BAD[name]
    right, plain = LarkTexts(grammar), Texts(vocabulary, "lark_text", grammar)
    strings = Texts(vocabulary, "lark_string", grammar)
    assert [text for text in good if text not in right or text not in plain] == []
    assert [text for text in bad if text in right or text in plain] == []
    assert [text for text in good if spelled(text) not in strings] == []
    assert [text for text in bad if spelled(text) in strings] == []


@pytest.mark.parametrize("grammar", ['start: | "a"', 'start:\n  | "a"', 'start: "a" |'])
def test_an_alternative_may_be_empty_as_the_first_or_the_last(
    grammar: str, vocabulary: Vocabulary
) -> None:
    right, held = LarkTexts(grammar), Texts(vocabulary, "lark_text", grammar)
    for text in ("", "a", "aa"):
        assert (text in right) is (text in held) is (text != "aa")


@pytest.mark.parametrize("name", [name for name in GOOD if name not in RECURSIVE])
def test_a_grammar_without_recursion_is_a_pattern(name: str, vocabulary: Vocabulary) -> None:
    held = texts(vocabulary, lark_grammars()[name])
    assert [text for text in GOOD[name] if spelled(text) not in held] == []
    assert [text for text in BAD[name] if spelled(text) in held] == []


@pytest.mark.parametrize("grammar", ['start: "(" start ")" | "a"', 'start: a\na: b "x"\nb: a?'])
def test_one_with_recursion_is_none(grammar: str) -> None:
    assert pattern_of(rules_of_lark(grammar), START) is None


LARGE = {
    "inlined": "start: " + "A " * 300 + "\nA: /[acegikmoqsuwy]/",
    "doubled": "start: a0\n"
    + "".join(f"a{n}: a{n + 1} a{n + 1}\n" for n in range(40))
    + 'a40: "x"',
}


@pytest.mark.parametrize("name", LARGE)
def test_one_that_is_too_large_is_none(name: str) -> None:
    assert pattern_of(rules_of_lark(LARGE[name]), START) is None


NOT_READ = {
    "start: a": "there is no `a`",
    'a: "b"': "there is no `start`",
    'start: "a': "is not read",
    "start: %json {}": "is not read",
    'start: "a"\n%declare B': "%declare is not read",
    "start: A\n%import common.UNKNOWN": "`common.UNKNOWN` is not read",
    "start: A\n%import .other.A": "is not expected",
    "start: A\n%import python.A": "of `common` alone",
    "start: <|end|>": "is not read",
    "start: /a/ & /b/": "is not read",
    "start: /^a/": "an anchor",
    "start: /a(?=b)/": "a look-ahead",
    "start: /a/x": "the flags `x`",
    "start: /[\\u0000-\\uffff]/i": "beyond ASCII",
    "start: /(?i)[^é]/": "beyond ASCII",
    'start: "a"\nstart: "b"': "is not expected",
    'start: ("a"': "it ends where",
    'start: "a"~3..2': "wrong order",
    'start: "ab".."c"': "is no range",
    'start: "\\q"': "the escape",
    "start: x{A}\nA: /a/": "is not read",
    "start: " + "(" * 480 + '"a"' + ")" * 480: "nested too deeply",
}


@pytest.mark.parametrize("grammar", NOT_READ, ids=lambda one: one[:30])
def test_what_is_not_read_says_why(grammar: str) -> None:
    with pytest.raises(UnsoundGrammar, match=NOT_READ[grammar]):
        rules_of_lark(grammar)


def test_letters_in_either_case_are_read(vocabulary: Vocabulary) -> None:
    held = texts(vocabulary, 'start: "select"i / [a-z]+/i "\\u00e9"i')
    assert '"SeLect aZé"' in held
    assert '"select aZÉ"' in held
    assert '"select 1é"' not in held
