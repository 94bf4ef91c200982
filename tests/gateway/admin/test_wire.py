from __future__ import annotations

from collections.abc import AsyncIterator

from gateway.admin.wire import MAX_BODY_BYTES
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
