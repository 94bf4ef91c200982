from __future__ import annotations

import pytest

from gateway.diagnosis.volatile import VolatileKind, kind_at, volatile_in

SPELLED: list[tuple[VolatileKind, str]] = [
    ("billing_header", "x-anthropic-billing-header: cc_version=2.1.100.7b4; cch=eb6c6;"),
    ("uuid", "9f1c2d3e-1111-4222-8333-444455556666"),
    ("date", "2026-11-23"),
    ("date", "2026-11-23T13:37:24Z"),
    ("date", "23 November 2026"),
    ("date", "Nov 23, 2026"),
    ("date", "11/23/2026"),
    ("time", "13:37:24"),
    ("time", "9:30 AM"),
    ("epoch", "1795441044"),
    ("epoch", "1795441044123"),
    ("random_id", "req_8fK2mQ9xT4bL7vN3"),
    ("random_id", "d41d8cd98f00b204e9800998ecf8427e"),
]


@pytest.mark.parametrize(("kind", "spelled"), SPELLED)
def test_what_changes_from_request_to_request_is_found(kind: VolatileKind, spelled: str) -> None:
    text = f"Before it: {spelled}\nAfter it."
    [found] = volatile_in(text)
    assert (found.kind, text[found.start : found.end]) == (kind, spelled)


@pytest.mark.parametrize(
    "text",
    [
        "You are a helpful assistant with 12 tools and 3.5 million users.",
        "internationalisation and incomprehensibilities are long words",
        "Call +49 30 901820, or read RFC 2616 and section 4.2.1.",
        "def a_function_with_a_long_name_of_many_words(argument): ...",
        "The version is 3.11.9 on port 8080, since 2024.",
    ],
)
def test_ordinary_text_has_nothing_volatile(text: str) -> None:
    assert list(volatile_in(text)) == []


def test_a_number_is_volatile_only_where_it_is_seen_to_change() -> None:
    text = "Request 17 of the day."
    assert kind_at(text, text.index("7")) == "number"
    assert kind_at(text, text.index("day")) is None
