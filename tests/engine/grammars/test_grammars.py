"""Grammars as masks: allowed tokens, possible ends, and refused grammars."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from engine.errors import ConstraintUnsatisfied, InvalidGrammar, QueueFull
from engine.grammars.cache import GrammarCache
from engine.grammars.compilation import Compilation, compiled
from engine.grammars.compiler import GrammarCompiler
from engine.grammars.grammars import Grammars, open_grammars
from engine.grammars.limits import MASK_S
from engine.grammars.prepared import prepared
from engine.grammars.token_mask import GrammarConstraint
from engine.grammars.vocabulary import NoVocabulary, Vocabulary, read_vocabulary
from engine.link.messages import Grammar, GrammarKind, SamplingParams
from tests.doubles.engine.tiny_model import BOS, EOS, TURN, write_tiny_model
from tests.doubles.grammars.hard_grammars import deep, endless, huge
from tests.doubles.waiting import wait_for
from tests.engine.grammars.conftest import VOCAB_SIZE


def wish(grammar: Grammar | None) -> SamplingParams:
    return SamplingParams(max_tokens=8, grammar=grammar)


def asked(grammars: Grammars, grammar: Grammar, flow: str = "flow") -> GrammarConstraint:
    made = grammars.constraint_of(wish(grammar), flow)
    assert made is not None
    return made


def ready(grammars: Grammars, kind: GrammarKind, text: str) -> GrammarConstraint:
    made = asked(grammars, Grammar(kind, text))
    wait_for(lambda: made.is_ready or made.error is not None, 60.0, every_s=0.01)
    if made.error is not None:
        raise made.error
    return made


def tokens(constraint: GrammarConstraint) -> set[int]:
    bits = np.unpackbits(constraint.allowed().view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def say(constraint: GrammarConstraint, text: str) -> bool:
    """Return whether the grammar allows this text, byte by byte."""
    for byte in text.encode():
        if byte not in tokens(constraint):
            return False
        constraint.advance(byte)
    constraint.catch_up()  # outside a step
    return True


def test_no_grammar_is_no_constraint(grammars: Grammars) -> None:
    assert grammars.constraint_of(wish(None), "flow") is None


OBJECT = '{"type": "object"}'
SAID: dict[str, tuple[GrammarKind, str, str, str]] = {
    "schema": ("json_schema", '{"type": "integer"}', "-12", "1.5"),
    "object": ("json_schema", OBJECT, '{"a": [1, null]}', "[1]"),
    "regex": ("regex", "[a-c]+/d\\/", "abc/d/", "abcx"),
    "line break": ("regex", "a\nb", "a\nb", "a b"),
    "choice": ("regex", "yes|no", "no", "maybe"),
    "lark": ("lark", 'start: "a" NUMBER\nNUMBER: /[0-9]+/', "a12", "b"),
    "client's Lark": ("clients_lark", 'start: T "ing"\nT: /[a-z]+/', "singing", "sing!"),
    "client's Lark with a lexer": (
        "clients_lark",
        'start: "if" NAME\nNAME: /[a-z]+/\n%ignore " "',
        "if so",
        "if !",
    ),
    "client's Lark of the library": (
        "clients_lark",
        'start: T %json {"type": "null"}\nT: "a"',
        "anull",
        "aa",
    ),
    "gbnf": ("gbnf", 'root ::= "a" number\nnumber ::= [0-9]+', "a12", "b"),
    "tool": (
        "lark",
        'start: begin %json {"type": "object"} "</call>"\nbegin[suffix="<call>"]: /[a-z ]*/',
        'let me<call>{"x": 1}</call>',
        "<call>[]",
    ),
    "pattern in a terminal": (
        "lark",
        'start: "<" T ">"\nT: %pattern "^[^()[\\\\]]/" & /.{0,3}/',
        "<a/b>",
        "<[/",
    ),
    "regex as a part": ("lark", 'start: "<" %grammar ["regex", "a/+|b"] ">"', "<a//>", "<c"),
    "gbnf as a part": ("lark", 'start: "x" %grammar ["gbnf", "root ::= [0-9]"]', "x7", "xx"),
    "parts": (
        "lark",
        'start: %grammar ["regex", "a"] %grammar ["json_schema", "{\\"type\\": \\"null\\"}"]',
        "anull",
        "aa",
    ),
    "part of a part": (
        "lark",
        'start: "x" %grammar ["lark", "start: %grammar [\\"regex\\", \\"y\\"]"]',
        "xy",
        "xx",
    ),
}


@pytest.mark.parametrize("case", SAID)
def test_what_the_grammar_has_may_be_said_and_nothing_else(grammars: Grammars, case: str) -> None:
    kind, text, good, bad = SAID[case]
    assert say(ready(grammars, kind, text), good)
    assert not say(ready(grammars, kind, text), bad)


def test_it_may_end_only_where_the_grammar_may(grammars: Grammars) -> None:
    constraint = ready(grammars, "regex", "ab?")
    assert tokens(constraint) == {ord("a")}
    constraint.advance(ord("a"))
    assert tokens(constraint) == {ord("b"), EOS}
    assert not constraint.is_over
    constraint.advance(ord("b"))
    assert constraint.is_over
    assert tokens(constraint) == {EOS}


def test_an_end_that_is_chosen_is_one(grammars: Grammars) -> None:
    constraint = ready(grammars, "regex", "a+")
    constraint.advance(ord("a"))
    assert not constraint.is_over
    constraint.advance(EOS)
    assert constraint.is_over


def test_a_mask_has_a_bit_for_each_logit_and_those_without_a_token_are_never_allowed(
    grammars: Grammars,
) -> None:
    constraint = ready(grammars, "regex", "(.|\n)*")
    assert len(constraint.allowed()) == -(-VOCAB_SIZE // 32)
    assert max(tokens(constraint)) == EOS
    assert len(tokens(constraint)) > 128
    assert constraint.allowed() is constraint.allowed(), "it may be asked again"


def test_a_grammar_may_name_tokens(grammars: Grammars) -> None:
    constraint = ready(grammars, "lark", f'start: "a" <[{TURN}]> <|bos|> %json {{"const": 1}}')
    constraint.advance(ord("a"))
    assert tokens(constraint) == {TURN}, "and not its letters"
    constraint.advance(TURN)
    assert tokens(constraint) == {BOS}
    constraint.advance(BOS)
    assert say(constraint, "1")


def test_sequences_with_one_grammar_are_at_places_of_their_own(grammars: Grammars) -> None:
    first, second = (ready(grammars, "regex", "ab") for _ in range(2))
    first.advance(ord("a"))
    assert (tokens(first), tokens(second)) == ({ord("b")}, {ord("a")})


def white_space(constraint: GrammarConstraint) -> int:
    """Count the consecutive line breaks and spaces that the grammar allows, up to 100."""
    for count in range(100):
        if not say(constraint, "\n" if count == 0 else " "):
            return count
    return 100


@pytest.mark.parametrize("options", ["", '"x-guidance": {"whitespace_pattern": "[ \\\\n]*"}, '])
@pytest.mark.parametrize("kind", ["json_schema", "lark"])
def test_white_space_in_json_is_bounded(
    grammars: Grammars, kind: GrammarKind, options: str
) -> None:
    schema = f'{{{options}"type": "object"}}'
    text = schema if kind == "json_schema" else f'start: "%json {{" %json {schema}'
    constraint = ready(grammars, kind, text)
    assert say(constraint, "{" if kind == "json_schema" else "%json {{")
    assert white_space(constraint) == 21


def test_a_format_that_is_not_known_only_describes(grammars: Grammars) -> None:
    schema = """{"format": "x", "properties": {
        "format": {"type": "string", "format": "color"},
        "day": {"anyOf": [{"type": "string", "format": "date"}]},
        "same": {"const": {"format": "color"}}}}"""
    for good in ('{"format": "red"', '{"day": "2026-11-23"', '{"same": {"format":"color"}'):
        assert say(ready(grammars, "json_schema", schema), good)
    for bad in ('{"format": 1', '{"day": "x', '{"same": {}'):
        assert not say(ready(grammars, "json_schema", schema), bad)


def test_a_regex_alone_may_have_as_much_white_space_as_it_says(grammars: Grammars) -> None:
    assert white_space(ready(grammars, "regex", "[ \\n]*")) == 100


UNSOUND: dict[str, tuple[GrammarKind, str, str]] = {
    "no JSON": ("json_schema", '{"type', "not JSON"),
    "no object": ("json_schema", "[]", "is an object"),
    "keyword": ("json_schema", '{"type": "array", "uniqueItems": true}', "uniqueItems"),
    "keyword let through": (
        "json_schema",
        '{"x-guidance": {"lenient": true}, "type": "object", "not": {}}',
        "not",
    ),
    "type": ("json_schema", '{"type": "strin"}', "strin"),
    "remote": ("json_schema", '{"$ref": "https://example.org/s"}', "outside of the schema"),
    "file": ("json_schema", '{"$ref": "file:///etc/passwd"}', "outside of the schema"),
    "nowhere": ("json_schema", '{"$ref": "#/a"}', "a \\$ref leads nowhere"),
    "overlap": ("json_schema", '{"oneOf": [{"type": "number"}, {"const": 1}]}', "oneOf"),
    "nested": ("json_schema", '{"items":' * 2000 + "{}" + "}" * 2000, "deep"),
    "look behind": ("regex", "(?<=a)b", "look-behind"),
    "bracket": ("regex", "(a", "unclosed group"),
    "empty": ("regex", "", "empty"),
    "unknown rule": ("lark", "start: foo", "foo"),
    "keyword in Lark": ("lark", 'start: %json {"type": "array", "uniqueItems": true}', "unique"),
    "comment": (
        "lark",
        'start: a | b\na: %json {"$comment": "tool good"}\n'
        'b: %json {"$comment": "tool bad", "not": {}}',
        "cannot be used: tool bad: the keyword `not` at #",
    ),
    "no comment": ("lark", 'start: a\na: %json {"not": {}}', "cannot be used: the keyword `not`"),
    "comment of a part": (
        "lark",
        'start: a\na: %json {"$comment": "tool good"}\n'
        '  | %grammar ["json_schema", "{\\"not\\": {}}"]',
        "cannot be used: (?!tool good)",
    ),
    "comment of text": ("lark", 'start: a\na: ": %json {" nowhere', "cannot be used: at 2"),
    "no schema in Lark": ("lark", "start: %json [1", "%json"),
    "gbnf": ("gbnf", 'start ::= "', "GBNF"),
    "no such rule": ("gbnf", "root ::= nowhere", "nowhere"),
    "part": ("lark", 'start: %grammar ["regex", "(a"]', "unclosed group"),
    "no such part": ("lark", 'start: %grammar ["yaml", "a"]', "%grammar"),
    "no such token": ("lark", f"start: <[{VOCAB_SIZE}]>", "too large: 300"),
    "no such name of a token": ("lark", "start: <|unknown|>", "unknown"),
    "keyword beside a token": ("lark", f'start: <[{TURN}]> %json {{"not": {{}}}}', "not"),
    "no pattern": ("lark", "start: T\nT: %pattern 1", "no text"),
    "no JSON in a part": ("lark", 'start: %grammar ["regex"', "%grammar"),
}


@pytest.mark.parametrize("case", UNSOUND)
def test_what_is_no_grammar_is_refused_and_the_error_says_why(
    grammars: Grammars, case: str
) -> None:
    kind, text, why = UNSOUND[case]
    with pytest.raises(InvalidGrammar, match=why):
        ready(grammars, kind, text)
    assert say(ready(grammars, "regex", "a"), "a"), "the next one is served"


@pytest.mark.parametrize(("grammar", "why"), [(endless, "1 s"), (deep, "deep")])
def test_a_grammar_that_never_compiles_is_refused_and_delays_no_other(
    grammars: Grammars, grammar: object, why: str
) -> None:
    assert callable(grammar)
    slow = asked(grammars, grammar(), "attacker")
    quick = asked(grammars, Grammar("regex", "a"), "other")
    wait_for(lambda: quick.is_ready, 60.0, every_s=0.01)
    wait_for(lambda: slow.error is not None, 60.0, every_s=0.01)
    assert isinstance(slow.error, InvalidGrammar)
    assert why in slow.error.message
    with pytest.raises(InvalidGrammar):
        asked(grammars, grammar(), "attacker")


def test_a_process_that_does_not_answer_is_ended(vocabulary: Vocabulary) -> None:
    grammars = Grammars(GrammarCompiler(vocabulary, num_threads=1, patience_s=0.0))
    impatient = asked(grammars, Grammar("json_schema", OBJECT))
    wait_for(lambda: impatient.error is not None, 60.0, every_s=0.01)
    assert isinstance(impatient.error, InvalidGrammar)
    grammars.close()


def test_too_much_text_is_refused_at_once(grammars: Grammars) -> None:
    with pytest.raises(InvalidGrammar, match="characters"):
        asked(grammars, huge())
    texts = [f"a value of some length, number {n}" for n in range(2500)]
    assert say(ready(grammars, "json_schema", json.dumps({"enum": texts})), '"a value')


def test_a_flow_has_its_own_grammars_alone(vocabulary: Vocabulary) -> None:
    """Find a grammar again for the flow that sent it, but not for another flow."""
    cache = GrammarCache()
    grammars = Grammars(GrammarCompiler(vocabulary), cache)
    grammar = Grammar("json_schema", OBJECT)
    first = asked(grammars, grammar, "a")
    wait_for(lambda: first.is_ready, 60.0, every_s=0.01)
    assert asked(grammars, grammar, "a").is_ready
    assert cache.find("b", grammar) is None
    other = asked(grammars, grammar, "b")
    assert cache.find("b", grammar) is not cache.find("a", grammar)
    wait_for(lambda: other.is_ready, 60.0, every_s=0.01)
    grammars.close()


def test_what_was_compiled_for_a_flow_can_be_forgotten(vocabulary: Vocabulary) -> None:
    cache, one = GrammarCache(), Grammar("regex", "a")
    grammars = Grammars(GrammarCompiler(vocabulary), cache)
    for flow in ("a", "b"):
        cache.keep(flow, one, Compilation())
    grammars.forget("a")
    assert (cache.find("a", one) is None, cache.find("b", one) is None) == (True, False)
    cache.keep("a", one, Compilation())
    grammars.forget(None)
    assert (cache.find("a", one), cache.find("b", one)) == (None, None)


def test_a_flow_may_have_only_so_many_wait(vocabulary: Vocabulary) -> None:
    """Limit a flow's waiting grammars. The first may still wait, or a thread may already compile
    it.
    """
    grammars = Grammars(GrammarCompiler(vocabulary, max_waiting=3))
    asked(grammars, endless(), "a")
    for number in range(2):
        asked(grammars, Grammar("regex", f"a{number}"), "a")
    assert is_full_soon(grammars, "a")
    other = asked(grammars, Grammar("regex", "a"), "b")
    wait_for(lambda: other.is_ready, 60.0, every_s=0.01)
    grammars.close()


def is_full_soon(grammars: Grammars, flow: str) -> bool:
    """Return whether one of the flow's next two grammars is refused."""
    try:
        asked(grammars, Grammar("regex", "b"), flow)
        asked(grammars, Grammar("regex", "c"), flow)
    except QueueFull:
        return True
    return False


def test_a_model_without_a_tokenizer_serves_no_grammar(empty_dir: Path) -> None:
    grammars = open_grammars(empty_dir, 300, (2,))
    assert grammars.constraint_of(wish(None), "a") is None
    with pytest.raises(InvalidGrammar, match="tokenizer"):
        asked(grammars, Grammar("regex", "a"))
    grammars.close()


def test_a_mask_ends_with_the_logits_where_they_are_fewer_than_the_tokens(tmp_path: Path) -> None:
    vocabulary = read_vocabulary(write_tiny_model(tmp_path), 224, (10,))
    compilation = Compilation(compiled(prepared(Grammar("regex", "[ab]+")), vocabulary))
    constraint = GrammarConstraint(compilation)
    assert len(constraint.allowed()) == 7
    assert tokens(constraint) == {ord("a"), ord("b")}


def test_a_damaged_tokenizer_serves_no_grammar(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(NoVocabulary, match="Model missing"):
        read_vocabulary(tmp_path, 300, (2,))


@pytest.mark.parametrize("mask_s", [MASK_S, 0.0])
def test_masks_that_take_too_long_end_their_sequence(vocabulary: Vocabulary, mask_s: float) -> None:
    compilation = Compilation(compiled(prepared(Grammar("regex", "[ab]+")), vocabulary))
    constraint = GrammarConstraint(compilation, mask_s=mask_s)
    assert constraint.allowed().any() == (mask_s > 0)
    assert isinstance(constraint.error, ConstraintUnsatisfied if mask_s == 0 else type(None))


def test_a_schema_of_a_hundred_fields_is_served(grammars: Grammars) -> None:
    fields = {f"field_{n}": {"type": "string"} for n in range(100)}
    schema = {"type": "object", "properties": fields, "additionalProperties": False}
    constraint = ready(grammars, "json_schema", json.dumps(schema))
    assert say(constraint, json.dumps(dict.fromkeys(fields, "text")))
    assert constraint.is_over
