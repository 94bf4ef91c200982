"""The check of a grammar: compile it over the model's vocabulary, and follow a few tokens.

The check tries everything that the engine will do with the grammar. It runs in a separate process,
which may run out of time, memory or stack (`check_process.py`).
"""

from __future__ import annotations

import json
import re

import msgspec
from llguidance import LLMatcher

from engine.errors import InvalidGrammar
from engine.grammars.allocated import allocated_bytes
from engine.grammars.compilation import compiled
from engine.grammars.limits import MAX_BYTES, parser_limits
from engine.grammars.prepared import prepared
from engine.grammars.random_walk import walk_at_random
from engine.grammars.schemas.lengths import CanBeHeld, can_be_compiled, held_over
from engine.grammars.syntax.expression import UnsoundGrammar
from engine.grammars.vocabulary import Vocabulary
from engine.link.messages import Grammar

MAX_ERROR_CHARS = 300
MAX_COMMENT_CHARS = 80
NUM_STEPS = 8  # enough tokens to reach the first values of a JSON schema
# The line of an error in a message about a Lark grammar.
_PLACE = re.compile(r"at (?P<line>\d+)\(\d+\): ")
_SCHEMA_RULE = re.compile(r"\w+: %json (?P<schema>\{.*)")
_COMPILING = "failed to compile JSON schema: "
# Start of llguidance's warning about `<[id]>` and `<name>`.
_NO_TOKENS = "no tokenizer - can't validate "


class Checked(msgspec.Struct, frozen=True):
    """The outcome of a check: the text to compile, or the error."""

    text: str = ""
    error: str = ""
    num_bytes: int = 0
    is_last: bool = False


def checked(grammar: Grammar, can_be_held: CanBeHeld = can_be_compiled) -> Checked:
    """Check that the grammar is valid. The check may take a long time."""
    try:
        text = prepared(grammar, can_be_held)
    except UnsoundGrammar as error:
        return Checked(error=str(error))
    is_error, messages = LLMatcher.validate_grammar_with_warnings(text, limits=parser_limits())
    # A warning means that llguidance ignores a part of the grammar, so it is an error here.
    # Warnings about tokens are ignored, because the compilation over the vocabulary checks tokens.
    found = messages if is_error else [one for one in messages if not one.startswith(_NO_TOKENS)]
    if not found:
        return Checked(text)
    return Checked(error=_whose(found[0], text) + _said(found[0]))


def checked_over(grammar: Grammar, vocabulary: Vocabulary) -> Checked:
    """Check that the grammar is valid, and that its masks over `vocabulary` stay within limits."""
    found = checked(grammar, held_over(vocabulary))
    if found.error:
        return found
    before = allocated_bytes()
    try:
        matcher = _followed(found.text, vocabulary)
    except InvalidGrammar as error:
        return Checked(error=error.message)
    num_bytes = allocated_bytes() - before
    del matcher
    if num_bytes > MAX_BYTES:
        return Checked(error=f"it takes more than {MAX_BYTES >> 20} MiB of memory")
    return Checked(found.text, num_bytes=num_bytes)


def _followed(text: str, vocabulary: Vocabulary) -> LLMatcher:
    """Compile a prepared grammar as the engine does, and follow tokens that it allows.

    Raises InvalidGrammar if it cannot be compiled. An error while following tokens is not raised,
    because in the engine it would end only one answer.
    """
    matcher = compiled(text, vocabulary).matcher
    walk_at_random(matcher, NUM_STEPS)
    return matcher


def _whose(message: str, text: str) -> str:
    """Return the `$comment` of the JSON schema that an error is about, or ""."""
    place, grammars = _PLACE.match(message), json.loads(text)["grammars"]
    # With several JSON schemas, the error may be in any of them.
    if place is None or len(grammars) > 1:
        return ""
    lines = grammars[0].get("lark_grammar", "").splitlines()
    rule = _SCHEMA_RULE.match("".join(lines[int(place["line"]) - 1 : int(place["line"])]))
    if rule is None:
        return ""
    schema, _ = json.JSONDecoder().raw_decode(rule["schema"])
    comment = schema.get("$comment")
    return f"{comment[:MAX_COMMENT_CHARS]}: " if isinstance(comment, str) else ""


def _said(message: str) -> str:
    message = re.sub(_PLACE.pattern + _COMPILING, "", message)
    first = " ".join(message.removeprefix("WARNING: ").split("\n   1 |")[0].split())
    if "is not present in a registry" in first:
        return f"a $ref leads outside of the schema: {first.split(' is not present')[0]}"
    if first.startswith("Pointer "):
        return f"a $ref leads nowhere: {first}"
    if first.startswith("oneOf "):
        return "a oneOf whose alternatives may overlap is not supported; anyOf is"
    if first.startswith("patternProperty regexes "):
        return "patternProperties whose patterns may match the same name are not supported"
    if first.startswith("Unable to determine if regex is empty"):
        return "a pattern and a length that are too large together are not supported"
    if first.startswith("panic: "):
        return "it is one that the library fails to compile"
    return first[:MAX_ERROR_CHARS]
