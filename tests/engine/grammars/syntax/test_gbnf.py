"""Grammars in GBNF are read as llama.cpp reads them, or refused with the reason."""

from __future__ import annotations

import pytest

from engine.grammars.vocabulary import Vocabulary
from tests.engine.grammars.texts import Texts, refusal

ARITHMETIC = r"""
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"""
# Each entry is a grammar, texts that it allows, and texts that it forbids.
GRAMMARS: dict[str, tuple[str, list[str], list[str]]] = {
    "of llama.cpp": (ARITHMETIC, ["1=2\n", "a*(b_1-2)=\t3\n\nx=y\n"], ["1=2", "=2\n"]),
    "a repetition before what it has": ('root ::= [a-z]+ "ing"', ["sing", "singing"], ["ing"]),
    "a rule before what it has": ('root ::= w "s"\nw ::= [a-z]+', ["ss", "cats"], ["s", "cat"]),
    "two ends": ('root ::= x y\nx ::= "a" "b"?\ny ::= "b" "c"', ["abc", "abbc"], ["ab"]),
    "an answer behind a thought": (
        'root ::= t "Answer: " ("yes" | "no")\nt ::= [a-zA-Z,. ]+',
        ["yes, so. Answer: no", "An. Answer: yes"],
        ["Answer: no", "so. Answer: "],
    ),
    "within a recursion": (
        'root ::= "(" root ")" | [a-z ]+ "end" root?',
        ["(((so it endsend)))", "endend", "a end(end end)"],
        ["end", "(a end"],
    ),
    "alternatives of one beginning": (
        'root ::= ("a" | "ab") "b" root?',
        ["ab", "abb", "abbab"],
        ["a", "abbb"],
    ),
    "any character": ('root ::= . "x"', ["\nx", "xx", "éx", "😀x"], ["x", "ax "]),
    "not these": ("root ::= [^a-c\\n]+", ["d\te", "é"], ["a", "d\n"]),
    "escapes": (
        r'root ::= "\x41\u00e9\U0001F600\"\\" [\[\]\-\^\\]+',
        ['Aé😀"\\[]-^\\'],
        ['Aé😀"\\', 'Aé😀"\\x'],
    ),
    "a class with a hyphen": ("root ::= [a-]+ [^-]", ["-a-b"], ["b", "a-"]),
    "counts": (
        'root ::= "a"{2} "b"{1,2} "c"{2,} ("de"){0,1}',
        ["aabcc", "aabbcccde"],
        ["abcc", "aabc", "aabbbcc"],
    ),
    "a literal that is repeated": ('root ::= "ab"+', ["abab"], ["abb", ""]),
    "nothing": ('root ::= | "a" (| "b")', ["", "a", "ab"], ["b"]),
    "names": (
        'my-Rule ::= "a"\nRule2 ::= "b"\n9 ::= "c"\nroot ::= my-Rule Rule2 9 start\nstart ::= "d"',
        ["abcd"],
        ["abc"],
    ),
    "names that differ in case": ('root ::= aB ab\naB ::= "x"\nab ::= "y"', ["xy"], ["yx", "xx"]),
    "over several lines": (
        '# a comment\nroot ::= ( # another\n  "a"\n  | "b"\n)+ |\n  "c" # the last',
        ["ab", "c"],
        ["ac"],
    ),
    "a line that begins with a bar": ('root ::= "a"\n  | "b"', ["a", "b"], ["ab"]),
    "the last one counts": ('root ::= "a"\nroot ::= "b"', ["b"], ["a"]),
    "recursion to the right": ('root ::= "<" s\ns ::= ">" | [^<>] s', [f"<{'a' * 3000}>"], ["<a"]),
    "recursion to the left": ('root ::= root "+" [0-9] | [0-9]', ["1", "1+2+3"], ["1+", "+1"]),
    "an optional one in another": (
        f"root ::= {'([a-b] ' * 99}[a-b]?{')?' * 99}",
        ["", "ab" * 50],
        ["a" * 101, "c"],
    ),
    "regular expressions": (
        r'root ::= %grammar ["regex", "[a-z]+"] "z" %grammar ["gbnf", "root ::= x x\nx ::= \"q\""]',
        ["zzqq"],
        ["zqq", "zz"],
    ),
    "a JSON value": (
        'root ::= "so: " %grammar ["json_schema", "{\\"type\\": \\"integer\\"}"] "!"',
        ["so: 12!"],
        ["so: x!", "so: 12"],
    ),
}


@pytest.mark.parametrize("case", GRAMMARS)
def test_a_grammar(vocabulary: Vocabulary, case: str) -> None:
    grammar, good, bad = GRAMMARS[case]
    texts = Texts(vocabulary, "gbnf", grammar)
    assert [text for text in good if text not in texts] == []
    assert [text for text in bad if text in texts] == []


WRONG = {
    "no root": ('start ::= "a"', "there is no rule `root`"),
    "no such rule": ("root ::= ws", "there is no rule `ws`"),
    "an open literal": ('root ::= "a', "line 1, column 12: expected the end"),
    "an open class": ("root ::= [a", "expected"),
    "an empty class": ("root ::= []", "a character in the class"),
    "an open group": ('root ::= ("a"', r"expected `\)`"),
    "no bar": ('root ::= "a"\n"b"', "line 2, column 1: expected the name of a rule"),
    "nothing to repeat": ("root ::= *", "the end of the rule"),
    "bounds": ('root ::= "a"{3,2}', "bound"),
    "an escape": (r'root ::= "\d"', "an escape that there is"),
    "a character": (r'root ::= "\U00110000"', "an escape that there is"),
    "another sign": ('root = "a"', "expected `::=`"),
    "a token that may not be": ("root ::= !<think>", "is named by its number"),
    "no JSON": ('root ::= %grammar ["regex"', "no JSON"),
    "text that may go on in JSON": (
        'root ::= [^x]+ %grammar ["json_schema", "{}"]',
        "could go on where a JSON value may begin",
    ),
    "depth": (f"root ::= {'(' * 5000}", "nested too deeply"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_grammar_says_why(case: str) -> None:
    grammar, why = WRONG[case]
    with pytest.raises(AssertionError, match=why):
        assert not (error := refusal("gbnf", grammar)), error


def test_tokens_are_tokens() -> None:
    """Accept any token in a grammar, since the check has no vocabulary."""
    assert refusal("gbnf", "root ::= <[5]> !<[7]>* <[7]> .*") == ""
    assert refusal("gbnf", "root ::= <think> [^<]* </think>") == ""
