"""Characters that control a terminal are escaped, and no others."""

from __future__ import annotations

import json
import logging
import sys
import unicodedata

import pytest

from gateway.telemetry.harmless import harmless
from gateway.telemetry.logs import QuietFormatter

EVERY = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def is_obeyed(char: str) -> bool:
    kind = unicodedata.category(char)
    is_control = kind in ("Cc", "Zl", "Zp") or unicodedata.bidirectional(char) in DIRECTIONS
    return is_control and char not in "\t\n"


def test_what_a_terminal_obeys_is_spelled_and_nothing_else() -> None:
    assert [char for char in EVERY if (harmless(char) != char) is not is_obeyed(char)] == []
    assert not any(map(is_obeyed, harmless("".join(EVERY))))


@pytest.mark.parametrize("text", ["\x1b]0;title\x07", "\x9b2J", "a\rb", "\u202egnp.exe", "\x7f"])
def test_json_stays_the_same_json(text: str) -> None:
    spelled = json.dumps({"a": text}, ensure_ascii=False)
    assert json.loads(harmless(spelled)) == {"a": text}
    assert harmless(f"<{text}>").isprintable()


def test_a_line_of_the_log_is_harmless() -> None:
    record = logging.makeLogRecord({"msg": "%s is here", "args": ("\x1b[2Jacme",)})
    assert QuietFormatter().format(record) == "\\u001b[2Jacme is here"
