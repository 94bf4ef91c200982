"""The process that compiles a grammar before the engine does.

It is `python -m engine.grammars.check_process`. It may run out of time, of memory or of its stack,
and is ended then; the engine starts another. Reads `Grammar`s and writes `Checked`s, as lines of
JSON, until its input ends.

Knows: what compiles. Does not know: tokens, or who asks (`checker.py`).
"""

from __future__ import annotations

import json
import re
import resource
import sys
import threading
from math import ceil

import msgspec
from llguidance import LLMatcher

from engine.grammars.limits import CHECK_BYTES, CHECK_S, CHECK_STACK_BYTES, parser_limits
from engine.grammars.prepared import prepared
from engine.grammars.syntax.expression import UnsoundGrammar
from engine.link.messages import Grammar

MAX_ERROR_CHARS = 300
MAX_COMMENT_CHARS = 80
_PLACE = re.compile(r"at (?P<line>\d+)\(\d+\): ")  # in a grammar in Lark
_SCHEMA_RULE = re.compile(r"\w+: %json (?P<schema>\{.*)")
_COMPILING = "failed to compile JSON schema: "
_NO_TOKENS = "no tokenizer - can't validate "  # the library's warning for `<[id]>` and `<name>`


class Checked(msgspec.Struct, frozen=True):
    """What the library is to compile, or what is wrong with a grammar."""

    text: str = ""
    error: str = ""


def checked(grammar: Grammar) -> Checked:
    """Whether the grammar compiles; takes as long as that takes."""
    try:
        text = prepared(grammar)
    except UnsoundGrammar as error:
        return Checked(error=str(error))
    is_error, messages = LLMatcher.validate_grammar_with_warnings(text, limits=parser_limits())
    # A warning says that something would be ignored; but a token, which is not known here, is
    # looked at where the grammar is compiled over the vocabulary.
    found = messages if is_error else [one for one in messages if not one.startswith(_NO_TOKENS)]
    if not found:
        return Checked(text)
    return Checked(error=_whose(found[0], text) + _said(found[0]))


def _whose(message: str, text: str) -> str:
    """Which schema of a grammar's a message is about, by its `$comment`; "" where none says."""
    place, grammars = _PLACE.match(message), json.loads(text)["grammars"]
    if place is None or len(grammars) > 1:  # else the place may be in any of them
        return ""
    lines = grammars[0].get("lark_grammar", "").splitlines()
    rule = _SCHEMA_RULE.match("".join(lines[int(place["line"]) - 1 : int(place["line"])]))
    if rule is None:
        return ""
    schema, _ = json.JSONDecoder().raw_decode(rule["schema"])
    comment = schema.get("$comment")
    return f"{comment[:MAX_COMMENT_CHARS]}: " if isinstance(comment, str) else ""


def _said(message: str) -> str:
    """The library's message, without the lines of the grammar that it quotes."""
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
    if first.startswith("panic: "):
        return "it is one that the library fails to compile"
    return first[:MAX_ERROR_CHARS]


def _serve() -> None:
    decoder = msgspec.json.Decoder(Grammar)
    for line in sys.stdin.buffer:
        used = resource.getrusage(resource.RUSAGE_SELF)
        seconds = ceil(used.ru_utime + used.ru_stime) + CHECK_S
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))
        sys.stdout.buffer.write(msgspec.json.encode(checked(decoder.decode(line))) + b"\n")
        sys.stdout.buffer.flush()


def main() -> None:
    """Check grammars until the input ends, on a small stack."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (CHECK_BYTES, CHECK_BYTES))
    threading.stack_size(CHECK_STACK_BYTES)
    thread = threading.Thread(target=_serve)
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
