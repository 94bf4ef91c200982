"""Patterns on JSON strings apply to the decoded text, whichever escapes the JSON uses."""

from __future__ import annotations

import json
import re

import pytest

from engine.grammars.vocabulary import Vocabulary
from tests.engine.grammars.texts import Texts, refusal

TEXTS = (
    "",
    "ab",
    'a"b',
    '"',
    "\\",
    "\\n",
    "a\n",
    "\t",
    "\x01",
    "/",
    "\u00fc",
    "\U0001f600",
)
CLASSES = (r'[^"]', r"[^\\]", r'[^"\\]', '["a]', r"[\\b-d]", r"[^\n]", r"[\s\S]", r"[^\x00-\x1f]")


def spellings(text: str) -> list[str]:
    """Return the text as JSON twice: with as few escapes, and with as many escapes as possible."""
    by_number = {"\n": "\\u000A", "\t": "\\u0009"}
    escaped = "".join(
        by_number.get(char) or json.dumps(char, ensure_ascii=False)[1:-1] for char in text
    )
    return [json.dumps(text, ensure_ascii=False), f'"{escaped}"']


@pytest.mark.parametrize("spelled", CLASSES)
def test_a_class_holds_what_is_written_as_an_escape(spelled: str, vocabulary: Vocabulary) -> None:
    schema = {"type": "string", "pattern": f"^(?:{spelled})*$"}
    held = Texts(vocabulary, "json_schema", json.dumps(schema))
    strings = Texts(vocabulary, "lark_string", f"start: /{spelled}/*")
    right = re.compile(f"(?:{spelled})*")
    for text in TEXTS:
        expected = right.fullmatch(text) is not None
        assert [one in strings for one in spellings(text)] == [expected] * 2, text
        assert (spellings(text)[0] in held) == expected, text


def test_a_class_of_a_property_holds_quotes(vocabulary: Vocabulary) -> None:
    schema = {"type": "string", "pattern": r"^\P{P}*$"}
    held = Texts(vocabulary, "json_schema", json.dumps(schema))
    assert '"a b"' in held
    assert '"a\\"b"' not in held
    assert '"a\\\\b"' not in held
    assert refusal("lark_string", r"start: /\p{L}/").endswith("Unicode properties is not read here")
