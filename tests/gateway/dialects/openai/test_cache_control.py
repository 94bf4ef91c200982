"""OpenAI's prompt-cache fields mark prefixes in chats, text completions and responses."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.doubles.engine.fake_engine import FakeEngine, prompt_of
from tests.doubles.gateway.served import MODEL, Served

POINT = {"mode": "explicit"}
LONG = "All the rules. " * 20


def part(text: str, point: Any = None, kind: str = "text") -> dict[str, Any]:
    return {"type": kind, "text": text, "prompt_cache_breakpoint": point}


def post(served: Served, path: str, **fields: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {served.key}"}
    url = f"{served.url}/v1/{path}"
    return httpx.post(url, json={"model": MODEL, **fields}, headers=headers, timeout=60)


def chat(served: Served, *messages: Any, **fields: Any) -> httpx.Response:
    return post(served, "chat/completions", messages=list(messages), max_tokens=3, **fields)


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def marks(engine: FakeEngine) -> list[tuple[int, float]]:
    """Return each mark of the last request as the number of tokens after it, and its lifetime in
    seconds.
    """
    request = engine.requests[-1]
    return [(len(prompt_of(request)) - mark.num_tokens, mark.seconds) for mark in request.marks]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, []),
        ({"prompt_cache_key": "k" * 64}, []),
        ({"prompt_cache_retention": "in_memory"}, [(0, 300.0)]),
        ({"prompt_cache_retention": "in-memory"}, [(0, 300.0)]),
        ({"prompt_cache_retention": "24h"}, [(0, 86400.0)]),
        ({"prompt_cache_options": {}}, [(0, 1800.0)]),
        ({"prompt_cache_options": {"mode": "implicit", "ttl": "30m"}}, [(0, 1800.0)]),
        ({"prompt_cache_options": {"mode": "explicit"}}, []),
        ({"prompt_cache_options": {"ttl": "5m"}}, [(0, 300.0)]),
        ({"prompt_cache_options": {"ttl": "1h"}}, [(0, 3600.0)]),
        ({"prompt_cache_options": {"ttl": "12h"}}, [(0, 43200.0)]),
        (
            {"prompt_cache_options": {"mode": "implicit"}, "prompt_cache_retention": "24h"},
            [(0, 86400.0)],
        ),
        (
            {"prompt_cache_options": {"ttl": "30m"}, "prompt_cache_retention": "24h"},
            [(0, 86400.0)],
        ),
        (
            {"prompt_cache_options": {"ttl": "12h"}, "prompt_cache_retention": "in_memory"},
            [(0, 43200.0)],
        ),
    ],
)
def test_the_prompts_end_is_marked(
    served: Served, engine: FakeEngine, fields: dict[str, Any], expected: list[tuple[int, float]]
) -> None:
    asked: dict[str, dict[str, Any]] = {
        "chat/completions": {"messages": [user(part("hi"))]},
        "completions": {"prompt": "hi"},
        "responses": {"input": "hi"},
    }
    for path, prompt in asked.items():
        answer = post(served, path, **prompt, **fields)
        assert answer.status_code == 200, answer.text
        assert marks(engine) == expected, path


def test_what_was_written_is_told_beside_what_was_read(served: Served, engine: FakeEngine) -> None:
    kept = {"prompt_cache_retention": "24h"}
    details = [
        chat(served, user(part(LONG)), **kept).json()["usage"]["prompt_tokens_details"]
        for _ in range(2)
    ]
    assert details[0]["cached_tokens"] == 0
    assert details[0]["cache_write_tokens"] > 200
    assert details[1]["cached_tokens"] >= details[0]["cache_write_tokens"]
    assert details[1]["cache_write_tokens"] == 0
    answer = post(served, "responses", input=LONG * 2, **kept).json()
    assert answer["usage"]["input_tokens_details"]["cache_write_tokens"] > 0
    assert (answer["prompt_cache_retention"], answer["prompt_cache_options"]) == ("24h", None)


def test_a_breakpoint_marks_up_to_its_block(served: Served, engine: FakeEngine) -> None:
    chat(served, user(part("one", POINT), part("two")))
    [(left, seconds)] = marks(engine)
    assert seconds == 1800.0
    assert bytes(prompt_of(engine.requests[-1])[-left - 3 : -left]) == b"one"
    items = [user(part("one", POINT, "input_text"), part("two", None, "input_text"))]
    assert post(served, "responses", input=items).status_code == 200
    [(left, seconds)] = marks(engine)
    assert bytes(prompt_of(engine.requests[-1])[-left - 3 : -left]) == b"one"


def test_of_many_breakpoints_the_last_ones_count(served: Served, engine: FakeEngine) -> None:
    six = user(*(part("block", POINT) for _ in range(6)))
    chat(served, six)
    explicit = marks(engine)
    assert len(explicit) == 4
    chat(served, six, prompt_cache_options={"mode": "implicit"})
    assert marks(engine) == [*explicit[1:], (0, 1800.0)]


def test_a_breakpoint_has_its_own_lifetime_or_that_of_the_request(
    served: Served, engine: FakeEngine
) -> None:
    blocks = user(part("one", POINT | {"ttl": "12h"}), part("two", POINT), part("three"))
    hour = {"prompt_cache_options": {"mode": "explicit", "ttl": "1h"}}
    chat(served, blocks, **hour)
    assert [seconds for _, seconds in marks(engine)] == [43200.0, 3600.0]
    chat(served, blocks)
    assert [seconds for _, seconds in marks(engine)] == [43200.0, 1800.0]
    chat(served, blocks, prompt_cache_retention="24h")
    assert [seconds for _, seconds in marks(engine)] == [86400.0] * 3


def test_what_was_written_is_told_by_its_lifetime(served: Served, engine: FakeEngine) -> None:
    blocks = [
        user(
            part(LONG, POINT | {"ttl": "12h"}, kind),
            part("more " * 20, POINT, kind),
            part("hi", None, kind),
        )
        for kind in ("text", "input_text")
    ]
    told = chat(served, blocks[0]).json()["usage"]["prompt_tokens_details"]
    by_life = told["cache_write_tokens_details"]
    assert by_life["ttl_12h_tokens"] > by_life["ttl_30m_tokens"] > 0
    assert sum(by_life.values()) == told["cache_write_tokens"]
    engine.lose_cache()
    again = post(served, "responses", input=[blocks[1]]).json()
    assert again["usage"]["input_tokens_details"]["cache_write_tokens_details"] == by_life
    engine.lose_cache()
    five = {"prompt_cache_options": {"ttl": "5m"}}
    told = chat(served, user(part(LONG)), **five).json()["usage"]["prompt_tokens_details"]
    assert told["cache_write_tokens_details"] == {
        "ttl_30m_tokens": 0,
        "ttl_12h_tokens": 0,
        "ttl_5m_tokens": told["cache_write_tokens"],
    }
    unmarked = chat(served, user(part("other " * 20))).json()["usage"]["prompt_tokens_details"]
    assert "cache_write_tokens_details" not in unmarked


def test_what_a_later_mark_keeps_longer_counts_as_its(served: Served, engine: FakeEngine) -> None:
    blocks = user(part(LONG, POINT), part("more " * 20, POINT | {"ttl": "12h"}), part("hi"))
    told = chat(served, blocks).json()["usage"]["prompt_tokens_details"]
    assert told["cache_write_tokens_details"] == {
        "ttl_30m_tokens": 0,
        "ttl_12h_tokens": told["cache_write_tokens"],
    }


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt_cache_retention": "7d"}, "prompt_cache_retention"),
        ({"prompt_cache_key": "k" * 65}, "prompt_cache_key"),
        ({"prompt_cache_options": {"ttl": "2h"}}, "prompt_cache_options.ttl"),
        (
            {"messages": [user(part("a", POINT | {"ttl": "2h"}))]},
            "messages[0].content[0].prompt_cache_breakpoint.ttl",
        ),
        (
            {"messages": [{"role": "assistant", "content": [part("a", POINT)]}, user(part("b"))]},
            "messages[0].content[0].prompt_cache_breakpoint",
        ),
    ],
)
def test_what_cannot_be_is_refused(
    served: Served, engine: FakeEngine, fields: dict[str, Any], param: str
) -> None:
    answer = post(served, "chat/completions", **{"messages": [user(part("a"))], **fields})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert engine.requests == []
