"""Ratoon's purpose: a second request gets the same answer, from the tenant's own cache.

Every test uses keys of new tenants, so "nothing from the cache" is exactly 0.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.seams.support.server import Server

CITIES = ("Berlin", "Oslo", "Lisbon", "Madrid", "Vienna", "Prague", "Dublin", "Athens")
CODES = {city: str(1000 + 997 * index) for index, city in enumerate(CITIES)}
HANDBOOK = " ".join(f"The support code for {city} is {code}." for city, code in CODES.items())


def ask(server: Server, key: str, city: str = "Berlin", **extra: Any) -> tuple[str, int]:
    """Return the answer's text, and the number of cached prompt tokens."""
    answer = server.openai(key).chat.completions.create(
        model="handbook",
        temperature=0,
        max_tokens=32,
        messages=[
            {"role": "system", "content": HANDBOOK},
            {"role": "user", "content": f"What is the support code for {city}?"},
        ],
        extra_body=extra,
    )
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    cached = answer.usage.prompt_tokens_details.cached_tokens
    assert cached is not None
    return answer.choices[0].message.content or "", cached


def test_second_answer_is_the_same_and_comes_from_the_cache(server: Server) -> None:
    key = server.new_tenant()
    cold, cached_cold = ask(server, key)
    warm, cached_warm = ask(server, key)
    assert CODES["Berlin"] in cold
    assert warm == cold
    assert cached_cold == 0
    assert cached_warm > 100


@pytest.mark.parametrize("city", CITIES)
def test_every_question_is_answered_from_the_one_handbook(server: Server, city: str) -> None:
    answer, cached = ask(server, server.demo_key, city)
    again, cached_again = ask(server, server.demo_key, city)
    assert CODES[city] in answer
    assert again == answer
    assert cached_again >= cached
    assert cached_again > 100


def test_another_tenant_gets_nothing_from_it(server: Server) -> None:
    first, second = server.new_tenant(), server.new_tenant()
    ask(server, first)
    answer, cached = ask(server, second)
    # positive control: the second tenant's own cache works
    again, cached_again = ask(server, second)
    assert CODES["Berlin"] in answer
    assert again == answer
    assert cached == 0
    assert cached_again > 100


def test_two_keys_of_one_tenant_share(server: Server) -> None:
    with server.client(server.admin_key) as admin:
        tenant = admin.post("/admin/tenants", json={"name": "two keys"}).json()["id"]
        first, second = (
            admin.post(f"/admin/tenants/{tenant}/keys").json()["key"] for _ in range(2)
        )
    ask(server, first)
    assert ask(server, second)[1] > 100


def test_a_salt_narrows_what_a_tenant_shares(server: Server) -> None:
    key = server.new_tenant()
    ask(server, key)
    assert ask(server, key, cache_salt="a")[1] == 0
    assert ask(server, key, cache_salt="b")[1] == 0
    assert ask(server, key, cache_salt="a")[1] > 100
    assert ask(server, key)[1] > 100


def test_a_flush_of_one_tenant_leaves_the_other(server: Server) -> None:
    first, second = server.new_tenant(), server.new_tenant()
    for key in (first, second):
        ask(server, key)
    with server.client(server.admin_key) as admin:
        first_id = admin.get("/admin/tenants").json()["tenants"][-2]["id"]
        admin.post("/admin/cache/flush", json={"tenant": first_id}).raise_for_status()
    assert ask(server, first)[1] == 0
    assert ask(server, second)[1] > 100
