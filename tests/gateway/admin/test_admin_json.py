from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gateway.http.admin_json import MAX_BODY_BYTES
from tests.gateway.admin.office import Office, body, error_of

NOT_JSON = [
    b"{",
    b"\xff\xfe{\x00}\x00",
    b"\xef\xbb\xbf{}",
    b'{"name": "a",}',
    b"{'name': 'a'}",
    b'{"name": "\\ud800"}',
    b'{"name": "\xed\xa0\x80"}',
    b'{"name": "a", "weight": NaN}',
    b'{"name": "a"} {}',
    b"\x00",
    b" ",
]

NOT_THE_TYPE = [
    b'{"name": "a", "weight": 1e999}',
    b'{"name": "a", "weight": ' + b"9" * 5000 + b"}",
    b'{"name": ' + b"[" * 50_000,
    b"[" * 50_000,
    b'{"x": ' + b'{"x": ' * 10_000,
    b"null",
    b"1",
]


async def test_what_is_not_json_is_refused(office: Office) -> None:
    for content in NOT_JSON:
        answer = await office.operator.post("/admin/tenants", content=content)
        assert error_of(answer) == (400, "invalid_json", None), content


async def test_json_of_another_shape_is_refused(office: Office) -> None:
    for content in NOT_THE_TYPE:
        answer = await office.operator.post("/admin/tenants", content=content)
        assert answer.status_code == 400, content[:50]
        assert len(answer.content) < 1000


async def test_the_type_of_the_content_is_not_asked_for(office: Office) -> None:
    answer = await office.operator.post(
        "/admin/tenants", content=b'{"name": "acme"}', headers={"content-type": "text/plain"}
    )
    assert answer.status_code == 201


async def test_a_body_is_read_no_further_than_its_bound(office: Office) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(1000):
            sent += 4096
            yield b" " * 4096

    answer = await office.operator.post("/admin/tenants", content=endless())
    assert error_of(answer)[:2] == (413, "request_too_large")
    assert sent <= MAX_BODY_BYTES + 4096
    padded = b'{"name": "acme"}'.ljust(MAX_BODY_BYTES)
    assert (await office.operator.post("/admin/tenants", content=padded)).status_code == 201
    assert len(body(await office.operator.get("/admin/tenants"))["tenants"]) == 1


async def test_what_is_wrong_with_a_body_is_named_to_its_depth(office: Office) -> None:
    for content, code, param in (
        ({}, "missing_required_parameter", "name"),
        ({"name": "a", "tpyo": 1}, "invalid_value", "tpyo"),
        ({"name": "a", "limits": {"rpm": 1}}, "invalid_value", "limits.rpm"),
        ({"name": "a", "limits": {"max_concurrent": 0}}, "invalid_value", "limits.max_concurrent"),
        ({"name": "a", "cache": {"floor": 2}}, "invalid_value", "cache.floor"),
    ):
        answer = await office.operator.post("/admin/tenants", json=content)
        assert error_of(answer) == (400, code, param), content
        assert "$" not in answer.text


@pytest.mark.parametrize(
    ("twice", "name"),
    [
        (b'{"name": "acme", "name": "other"}', "name"),
        (b'{"name": "acme", "na\\u006de": "other"}', "name"),
        (
            b'{"name": "acme", "limits": {"max_concurrent": 1, "max_concurrent": 9}}',
            "max_concurrent",
        ),
        (b'{"name": "acme", "limits": {"budget": {"units": 1, "units": 2}}}', "units"),
        (b'{"name": "acme", "cache": {"floor": 0.1}, "cache": {"floor": 0.9}}', "cache"),
    ],
)
async def test_a_name_that_is_given_twice_is_refused(
    office: Office, twice: bytes, name: str
) -> None:
    answer = await office.operator.post("/admin/tenants", content=twice)
    assert error_of(answer) == (400, "invalid_json", name)
    good = b'{"name": "acme", "limits": {"max_concurrent": 1}, "cache": {"floor": 0.1}}'
    assert (await office.operator.post("/admin/tenants", content=good)).status_code == 201


async def test_it_is_refused_wherever_the_operator_sends_something(office: Office) -> None:
    made = (await office.operator.post("/admin/tenants", json={"name": "acme"})).json()["id"]
    path = f"/admin/tenants/{made}"
    for method, where, field in (
        ("PATCH", path, b'"disabled": false'),
        ("POST", f"{path}/keys", b'"expires_at": null'),
        ("POST", "/admin/groups", b'"name": "g"'),
        ("POST", "/admin/cache/flush", b'"tenant": "%b"' % made.encode()),
        ("POST", "/admin/prefixes", b'"name": "p"'),
    ):
        once, twice = b"{" + field + b"}", b"{" + field + b", " + field + b"}"
        refused = await office.operator.request(method, where, content=twice)
        assert error_of(refused)[:2] == (400, "invalid_json"), where
        control = await office.operator.request(method, where, content=once)
        assert "twice" not in control.text, where
