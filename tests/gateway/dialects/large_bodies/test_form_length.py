"""Every dialect refuses an answer format that is longer than the longest grammar."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from gateway.turn_formats.grammar import MAX_CHARS
from tests.doubles.engine.fake_engine import FakeEngine
from tests.doubles.gateway.served import MODEL, Served

Fields = dict[str, Any]
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
HI = [{"role": "user", "content": "hi"}]


def _schema(text: str) -> Fields:
    return {"const": text}


def _format(kind: str, **fields: Any) -> Fields:
    return {"response_format": {"type": kind, **fields}}


def _nested(text: str) -> Fields:
    part: Fields = {"type": "json_schema", "json_schema": _schema(text)}
    for _ in range(25):
        part = {"type": "sequence", "elements": [part]}
    return part


# For each: the route, a long answer format, and the field that the error names.
FORMS: dict[str, tuple[str, Callable[[str], Fields], str]] = {
    "a named schema": (
        CHAT,
        lambda text: _format("json_schema", json_schema={"name": "a", "schema": _schema(text)}),
        "response_format.json_schema.schema",
    ),
    "a schema": (CHAT, lambda text: {"guided_json": _schema(text)}, "guided_json"),
    "a regex": (CHAT, lambda text: {"guided_regex": text}, "guided_regex"),
    "choices": (CHAT, lambda text: {"guided_choice": ["a", text]}, "guided_choice"),
    "a grammar": (CHAT, lambda text: {"grammar": f'root ::= "{text}"'}, "grammar"),
    "a grammar as a format": (
        CHAT,
        lambda text: _format("grammar", grammar=f'root ::= "{text}"'),
        "response_format.grammar",
    ),
    "a tag": (
        CHAT,
        lambda text: _format("structural_tag", format=_nested(text)),
        "response_format",
    ),
    "a regex of completions": (
        "/v1/completions",
        lambda text: {"regex": text, "prompt": ["a"] * 8},
        "regex",
    ),
    "a schema of Responses": (
        RESPONSES,
        lambda text: {
            "input": "hi",
            "text": {"format": {"type": "json_schema", "name": "a", "schema": _schema(text)}},
        },
        "text.format.schema",
    ),
    "a schema of Messages": (
        MESSAGES,
        lambda text: {
            "output_config": {"format": {"type": "json_schema", "schema": _schema(text)}}
        },
        "output_config.format.schema",
    ),
}


def _answer(served: Served, path: str, fields: Fields) -> httpx.Response:
    asked: Fields = {"model": MODEL, "max_tokens": 1, "messages": HI}
    if path == RESPONSES:
        asked = {"model": MODEL, "max_output_tokens": 16}
    headers = {"authorization": f"Bearer {served.key}"}
    return httpx.post(served.url + path, json=asked | fields, headers=headers, timeout=60)


@pytest.mark.parametrize("case", FORMS)
def test_a_form_has_at_most_so_many_characters(
    served: Served, engine: FakeEngine, case: str
) -> None:
    path, fields, param = FORMS[case]
    refused = _answer(served, path, fields("x" * (MAX_CHARS + 1)))
    assert refused.status_code == 400
    assert f"`{param}` has more than {MAX_CHARS} characters" in refused.text
    assert engine.requests == []
    taken = _answer(served, path, fields("x" * (MAX_CHARS - 1000)))
    assert taken.status_code == 200, "the control"
    grammar = engine.requests[-1].sampling.grammar
    assert grammar is not None
    assert len(grammar.text) >= MAX_CHARS - 1000


def test_a_grammar_that_grows_as_it_is_written_goes_to_no_engine(
    served: Served, engine: FakeEngine
) -> None:
    choices = ["\n" * (MAX_CHARS // 2), "a"]  # each line break takes two characters in the grammar
    refused = _answer(served, CHAT, {"guided_choice": choices})
    assert refused.status_code == 400
    assert "guided_choice" in refused.text
    assert engine.requests == []
    assert _answer(served, CHAT, {"guided_choice": ["\n", "a"]}).status_code == 200, "the control"
    assert len(engine.requests) == 1
