from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.turn_formats.json_scanner import JsonScanner

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
BROKEN = [
    *('{"a" 1}', '{"a":}', '{"a":,}', "{,}", "{;}", '{"a":1,,}', '{"a":1 "b"}', '{"a":"b" c}'),
    *("[,]", "[,1]", "[1}", '{"a":1]', '[a"b"]', "[1\n2]", "1", "true", "x", "}"),
    f"[{'1' * 500}]",
    f"{{{'a' * 500}: 1}}",
]
MENDED = {  # the text of a model, and the corrected JSON
    '{"a": 1 , }': '{"a": 1  }',
    "[1,]": "[1]",
    "{'a': 'it\\'s \"so\"'}": '{"a": "it\'s \\"so\\""}',
    "{city: New York , n: 1 }": '{"city": "New York" , "n": 1 }',
    "[NaN, 01, 1., +1, 1e999, nul, x]": '["NaN", "01", "1.", "+1", "1e999", "nul", "x"]',
    "[True, False, None, [None]]": "[true, false, null, [null]]",
    r'["C:\dir", "\u12g4", "\x41", "a\\"]': r'["C:\\dir", "\\u12g4", "\\x41", "a\\"]',
    r'["\ud83d\ude00"]': r'["\ud83d\ude00"]',
    r'["\ud83d", "a\uDE00b", "\ud83d\ud83d\ude00", "\ud83dx\n", "\ud83d\n"]': (
        r'["\ufffd", "a\ufffdb", "\ufffd\ud83d\ude00", "\ufffdx\n", "\ufffd\n"]'
    ),
    r'{"\ud83d": "\ud83d\x"}': r'{"\ufffd": "\ufffd\\x"}',
}


def scan(parts: list[str]) -> tuple[str, int, bool, bool]:
    """Return (corrected JSON, number of characters read, is complete, is broken)."""
    scanner, shown, read = JsonScanner(), "", 0
    for part in parts:
        passed, end = scanner.feed(part)
        shown, read = shown + passed, read + end
        if scanner.is_whole or scanner.is_broken:
            break
    return shown, read, scanner.is_whole, scanner.is_broken


@given(st.lists(VALUES) | st.dictionaries(st.text(), VALUES) | st.text(), st.booleans(), st.text())
def test_a_value_is_passed_on_up_to_its_end(value: object, is_ascii: bool, after: str) -> None:
    for indent in (None, 2):
        text = json.dumps(value, ensure_ascii=is_ascii, indent=indent)
        expected = (text, len(text), True, False)
        assert scan([text + after]) == scan(list(text + after)) == expected


@pytest.mark.parametrize("text", BROKEN)
def test_what_is_no_json_is_broken_wherever_it_is_cut(text: str) -> None:
    whole = scan([text + " "])
    assert whole[2:] == (False, True)
    assert scan([*text, " "])[2:] == (False, True)


def test_control_characters_in_strings_are_escaped_and_elsewhere_left() -> None:
    text = '{"a\n":\n"\t\x00\x1f" ,\r"b":"\\n"}'
    passed = '{"a\\n":\n"\\t\\u0000\\u001f" ,\r"b":"\\n"}'
    assert scan([text])[0] == scan(list(text))[0] == passed
    assert json.loads(passed) == {"a\n": "\t\0\x1f", "b": "\n"}


@pytest.mark.parametrize("text", MENDED)
def test_what_is_nearly_json_is_passed_on_as_json(text: str) -> None:
    expected = (MENDED[text], len(text), True, False)
    assert scan([text]) == scan(list(text)) == expected
    json.loads(MENDED[text]).__repr__().encode()  # encoding raises for an unpaired surrogate


@pytest.mark.parametrize("text", [*MENDED, '{"a": {"b": [1.5, "c", {"d": null}], "e": true}}'])
def test_what_is_cut_off_can_be_closed(text: str) -> None:
    for end in range(1, len(text)):
        scanner = JsonScanner()
        shown = scanner.feed(text[:end])[0] + scanner.close()
        value = json.loads(shown)
        assert isinstance(value, type(json.loads(MENDED.get(text, text))))
    assert value == json.loads(MENDED.get(text, text))


def test_what_is_cut_off_is_neither_whole_nor_broken() -> None:
    text = json.dumps({"a": [1.5e7, True, None, "\\\u1234", {}]}, ensure_ascii=True)
    for end in range(len(text)):
        assert scan([text[:end]])[2:] == (False, False)


def test_nothing_is_too_deep() -> None:
    text = "[" * 100_000 + "]" * 100_000
    assert scan([text])[1:3] == (len(text), True)
