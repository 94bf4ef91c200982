"""Only listed origins may read answers, unless all origins are allowed.

These tests need no server.
"""

from __future__ import annotations

from typing import Any

import pytest

from gateway.http.cors import ANY, Cors, origins_in

HERE, THERE = "https://chat.example.com", "https://other.example.com"


def scope(method: str = "POST", **fields: str) -> dict[str, Any]:
    headers = [(name.replace("_", "-").encode(), value.encode()) for name, value in fields.items()]
    return {"type": "http", "method": method, "headers": headers}


def preflight(cors: Cors, origin: str, asked: str = "authorization, x-own") -> dict[bytes, bytes]:
    sent = scope(
        "OPTIONS",
        origin=origin,
        access_control_request_method="POST",
        access_control_request_headers=asked,
    )
    return dict(cors.preflight(sent) or ())


def test_by_default_no_origin_is_told_anything() -> None:
    assert Cors().fields(scope(origin=HERE)) == []
    assert preflight(Cors(), HERE) == {}


def test_a_listed_origin_may_read_and_another_gets_nothing() -> None:
    cors = Cors([HERE], ["x-request-id"])
    told = dict(cors.fields(scope(origin=HERE)))
    assert told[b"access-control-allow-origin"] == HERE.encode()
    assert b"x-request-id" in told[b"access-control-expose-headers"]
    assert told[b"vary"] == b"origin"
    for sent in (scope(origin=THERE), scope(origin="null"), scope(origin=HERE + ".evil"), scope()):
        assert cors.fields(sent) == [(b"vary", b"origin")]


def test_two_origins_in_one_request_are_none() -> None:
    sent = scope(origin=HERE)
    sent["headers"].append((b"origin", THERE.encode()))
    assert Cors([HERE, THERE]).fields(sent) == [(b"vary", b"origin")]


def test_all_origins_are_told_the_same() -> None:
    cors = Cors([ANY])
    assert dict(cors.fields(scope(origin=THERE)))[b"access-control-allow-origin"] == b"*"
    assert b"vary" not in dict(cors.fields(scope(origin=THERE)))
    assert preflight(cors, THERE)


def test_a_preflight_lists_what_was_asked_for() -> None:
    told = preflight(Cors([HERE]), HERE)
    assert told[b"access-control-allow-headers"] == b"authorization, x-own"
    assert b"POST" in told[b"access-control-allow-methods"]
    assert preflight(Cors([HERE]), THERE) == {}


@pytest.mark.parametrize("asked", ["a\x01b", "a b", ",", "x" * 2049, "a: b", ""])
def test_what_are_no_names_of_fields_is_not_repeated(asked: str) -> None:
    told = preflight(Cors([HERE]), HERE, asked)
    assert b"access-control-allow-headers" not in told
    assert b"access-control-allow-methods" in told


@pytest.mark.parametrize(
    "sent",
    [
        scope("OPTIONS", origin=HERE),
        scope("OPTIONS", access_control_request_method="POST"),
        scope("POST", origin=HERE, access_control_request_method="POST"),
    ],
)
def test_what_is_no_preflight_is_left_to_the_routes(sent: dict[str, Any]) -> None:
    assert Cors([HERE]).preflight(sent) is None


def test_a_list_of_origins_has_commas() -> None:
    assert origins_in(None) == origins_in(" , ") == ()
    assert origins_in(f"{HERE}, http://localhost:3000,http://[::1]:8080,*") == (
        HERE,
        "http://localhost:3000",
        "http://[::1]:8080",
        "*",
    )


@pytest.mark.parametrize(
    "text",
    [
        "example.com",
        "https://example.com/",
        "https://example.com/a",
        "https://Example.com",
        "https://u:p@example.com",
        "https://",
        "https://a:b",
        "https://*.example.com?x",
        "null",
        "https://exämple.com",
    ],
)
def test_what_is_no_origin_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="is no origin"):
        origins_in(f"{HERE},{text}")
