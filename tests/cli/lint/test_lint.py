from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.console import Console, Printed

RULES = "You answer questions about the harbour, and you never guess. " * 2
CLOCK: dict[str, Any] = {"name": "clock", "input_schema": {"type": "object", "properties": {}}}
ALARM: dict[str, Any] = {"name": "alarm", "input_schema": {"type": "object"}}


def said(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def chat(*messages: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages), **fields}


def linted(tmp_path: Path, request: Any, against: Any = None) -> Printed:
    path, other = tmp_path / "request.json", tmp_path / "other.json"
    path.write_text(json.dumps(request))
    words = ["lint", str(path), "--json"]
    if against is not None:
        other.write_text(json.dumps(against))
        words += ["--against", str(other)]
    return Console().type(*words)


def whats(printed: Printed) -> list[tuple[str, str]]:
    found = [(one["part"], one["what"]) for one in printed.json]
    assert printed.status == (1 if found else 0)
    return found


HEADER = "x-anthropic-billing-header: cc_version=2.1; cch=eb6c6;"
STABLE = chat(said("system", RULES), said("user", "It is 2026-11-23, 9:30 AM."))


def test_what_is_volatile_in_the_last_message_costs_nothing(tmp_path: Path) -> None:
    assert whats(linted(tmp_path, STABLE)) == []


def test_where_the_billing_header_is_left_out_it_costs_nothing(tmp_path: Path) -> None:
    """Report no cost where the billing header is not part of the prompt.

    `system` is a field of /v1/messages.
    """
    rules = {"type": "text", "text": RULES}
    first, second = (
        chat(said("user", "hi"), system=[{"type": "text", "text": HEADER + build}, rules])
        for build in ("7b4", "9d6")
    )
    assert whats(linted(tmp_path, first)) == []
    assert whats(linted(tmp_path, second, first)) == []
    dated = {"type": "text", "text": f"{HEADER}\nIt is 2026-11-23."}
    found = whats(linted(tmp_path, chat(said("user", "hi"), system=[dated, rules])))
    assert found == [("system[0]", "date")], "the control"


@pytest.mark.parametrize(
    ("request_", "found"),
    [
        (
            chat(said("system", f"Today is 2026-11-23. {RULES}"), said("user", "hi")),
            ("messages[0]", "date"),
        ),
        (
            chat(said("user", f"At 9:30 AM: {RULES}"), said("assistant", "ok"), said("user", "hi")),
            ("messages[0]", "time"),
        ),
        (
            chat(said("system", f"{HEADER}\n{RULES}"), said("user", "hi")),
            ("messages[0]", "billing_header"),
        ),
        (
            chat(said("user", RULES), tools=[{**CLOCK, "description": "since 1795441044"}]),
            ("tools[0]", "epoch"),
        ),
        (
            {
                "model": "m",
                "instructions": f"Session d41d8cd98f00b204e9800998ecf8427e {RULES}",
                "input": "hi",
            },
            ("instructions", "random_id"),
        ),
        (chat(said("user", "hi")), ("messages[0]", "below_minimum")),
    ],
)
def test_what_is_volatile_in_what_should_stay(
    tmp_path: Path, request_: Any, found: tuple[str, str]
) -> None:
    printed = linted(tmp_path, request_)
    assert whats(printed) == [found]
    assert printed.json[0]["advice"]
    assert len(printed.json[0]["excerpt"]) <= 80


LATER = {**CLOCK, "name": "bell", "defer_loading": True}
SEARCH = {"type": "tool_search_tool_regex_20251119", "name": "search"}
TOOLED = chat(said("user", RULES), tools=[CLOCK, ALARM])
REKEYED = {"input_schema": {"properties": {}, "type": "object"}, "name": "clock"}


@pytest.mark.parametrize(
    ("request_", "found"),
    [
        (TOOLED, []),
        (
            chat(
                said("user", RULES),
                said("assistant", "ok"),
                said("user", "more"),
                tools=[CLOCK, ALARM],
            ),
            [],
        ),
        ({**TOOLED, "tools": [ALARM, CLOCK]}, [("tools[0]", "reordered")]),
        ({**TOOLED, "tools": [CLOCK]}, [("tools", "removed")]),
        ({**TOOLED, "tools": [CLOCK, ALARM, {"name": "x"}]}, [("tools[2]", "added")]),
        ({**TOOLED, "tools": [CLOCK, LATER, ALARM]}, []),
        ({**TOOLED, "tools": [CLOCK, LATER, ALARM, SEARCH]}, [("tools[1]", "added")]),
        ({**TOOLED, "tools": [LATER]}, [("tools[0]", "added")]),
        ({**TOOLED, "tools": [REKEYED, ALARM]}, [("tools[0]", "keys_reordered")]),
        (
            {**TOOLED, "tools": [{**CLOCK, "description": "d"}, ALARM]},
            [("tools[0]", "tools_changed")],
        ),
        ({**TOOLED, "model": "n"}, [("model", "model_changed")]),
        ({**TOOLED, "cache_salt": "s"}, [("cache_salt", "salt_changed")]),
        (
            chat(said("user", RULES + "!"), said("user", "more"), tools=[CLOCK, ALARM]),
            [("messages[0]", "messages_changed")],
        ),
        # differs from the first chat only in the last question
        (chat(said("user", RULES + "!"), tools=[CLOCK, ALARM]), []),
    ],
)
def test_what_differs_first_from_an_earlier_request(
    tmp_path: Path, request_: Any, found: list[tuple[str, str]]
) -> None:
    assert whats(linted(tmp_path, request_, TOOLED)) == found


def test_one_text_may_be_a_string_or_in_a_list(tmp_path: Path) -> None:
    listed = [{"type": "text", "text": RULES, "cache_control": {"type": "ephemeral"}}]
    first = chat(said("user", "hi"), said("system", listed), system=listed)
    then = chat(said("user", "hi"), said("system", RULES), said("user", "more"), system=RULES)
    assert whats(linted(tmp_path, then, first)) == []
    other = chat(
        said("user", "hi"), said("system", RULES + "!"), said("user", "more"), system=RULES
    )
    assert whats(linted(tmp_path, other, first)) == [("messages[1]", "system_changed")]


def test_a_change_is_named_by_its_kind(tmp_path: Path) -> None:
    dated = [chat(said("user", f"On 2026-11-2{day}. {RULES}")) for day in (2, 3)]
    printed = linted(tmp_path, dated[0], dated[1])
    assert whats(printed) == [("messages[0]", "date")]
    assert printed.json[0]["character"] == len("On 2026-11-2")


def test_people_are_shown_a_table(tmp_path: Path) -> None:
    path = tmp_path / "request.json"
    path.write_text(json.dumps(STABLE))
    assert Console().type("lint", str(path)).out == "Nothing was found.\n"
    path.write_text(json.dumps(TOOLED | {"system": "2026-11-23"}))
    printed = Console().type("lint", str(path))
    assert printed.status == 1
    assert "system" in printed.out


def test_from_standard_input() -> None:
    printed = Console().type("lint", "-", "--json", answer=json.dumps(STABLE))
    assert whats(printed) == []


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000])
def test_what_is_no_request_is_one_clear_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "request.json"
    path.write_text(text)
    printed = Console().type("lint", str(path))
    assert printed.status == 1
    assert "JSON" in printed.err
    assert Console().type("lint", str(tmp_path / "none.json")).status == 1


@pytest.mark.parametrize(
    "request_",
    [
        {"messages": [3, {"content": [None]}, {"content": ""}]},
        {"tools": [None, {}, {"function": 3}]},
    ],
)
def test_what_is_not_as_a_dialect_has_it_is_passed_over(tmp_path: Path, request_: Any) -> None:
    assert whats(linted(tmp_path, request_, request_)) in (
        [("tools[1]", "below_minimum")],
        [("messages[2]", "below_minimum")],
    )


@pytest.mark.parametrize("request_", [{}, {"messages": 3}, {"choices": [STABLE]}])
def test_a_body_without_a_prompt_is_refused(tmp_path: Path, request_: Any) -> None:
    path = tmp_path / "request.json"
    path.write_text(json.dumps(request_))
    printed = Console().type("lint", str(path))
    assert (printed.status, printed.out) == (1, "")
    assert "no text of a prompt" in printed.err


def contents(*texts: str, **fields: Any) -> dict[str, Any]:
    said = [{"role": "user", "parts": [{"text": text}]} for text in texts]
    return {"contents": said, "systemInstruction": {"parts": [{"text": RULES}]}, **fields}


def declared(*names: str) -> list[dict[str, Any]]:
    return [{"functionDeclarations": [{"name": name} for name in names]}]


def test_geminis_contents_are_read(tmp_path: Path) -> None:
    dated = contents("It is 2026-11-23.", "So?", tools=declared("clock", "alarm"))
    assert whats(linted(tmp_path, dated)) == [("contents[0].parts[0]", "date")]
    last = contents("So?", "It is 2026-11-23.")
    assert whats(linted(tmp_path, last)) == []
    turned = {**dated, "tools": declared("alarm", "clock")}
    found = whats(linted(tmp_path, turned, dated))
    assert found[0] == ("tools[0].functionDeclarations[0]", "reordered")
    told = {**last, "system_instruction": {"parts": {"text": f"{RULES} 2"}}}
    del told["systemInstruction"]
    assert whats(linted(tmp_path, told, last)) == [("systemInstruction.parts[0]", "system_changed")]
    salted = {**last, "cache_salt": "a"}
    assert whats(linted(tmp_path, salted, {**last, "cacheSalt": "b"})) == [
        ("cache_salt", "salt_changed")
    ]
