from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI
from msgspec.structs import replace

from gateway.auth.auth import AdminAuthenticator, Authenticator
from gateway.auth.keyring import REFUSED, Keyring, key_digest
from gateway.caller import Caller
from gateway.state.records import Tenant
from tests.gateway.state.memory_store import MemoryStore
from tests.gateway.support.manual_clock import ManualClock
from tests.gateway.support.put_record import put
from tests.gateway.support.small_app import client_of, small_app

PEPPER = b"pepper".ljust(32, b".")
ADMIN = "sk-admin-" + secrets.token_urlsafe(32)
ACME = Tenant(id="tn_acme", name="acme", created_at=1.0)

Headers = list[tuple[str, str]]


def guarded_app(keyring: Keyring) -> FastAPI:
    """Make an application whose `/me` accepts tenants' keys and whose `/admin` accepts the
    operator's.
    """
    operator = AdminAuthenticator(PEPPER, key_digest(PEPPER, ADMIN))
    authenticator = Authenticator(keyring, operator)
    admin = APIRouter(dependencies=[Depends(operator)])
    tenants = APIRouter()

    async def me(caller: Any = Depends(authenticator)) -> dict[str, str]:  # noqa: B008
        assert isinstance(caller, Caller)
        return {
            "tenant": caller.tenant_id,
            "key": caller.key_id,
            "operator": str(caller.is_operator),
        }

    async def operate() -> dict[str, str]:
        return {"operator": "yes"}

    tenants.add_api_route("/me", me, methods=["GET", "POST"])
    admin.add_api_route("/admin", operate, methods=["GET", "POST"])
    return small_app(tenants, admin)


@dataclass
class Door:
    """The application with guarded routes, its store, and one valid tenant key."""

    store: MemoryStore
    keyring: Keyring
    http: httpx.AsyncClient
    key: str

    async def knock(self, path: str, headers: Headers) -> httpx.Response:
        return await self.http.get(path, headers=headers)


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    store = MemoryStore()
    store.tenants[ACME.id] = ACME
    keyring = Keyring(store, PEPPER, ManualClock(), monotonic=ManualClock())
    issued = await keyring.issue(ACME.id)
    async with client_of(guarded_app(keyring)) as http:
        yield Door(store, keyring, http, issued.secret)


REFUSAL = (
    401,
    {
        "error": {
            "message": REFUSED,
            "type": "error",
            "param": None,
            "code": "invalid_api_key",
        }
    },
)


def told(response: httpx.Response) -> tuple[int, Any]:
    """Return a response's status and JSON body."""
    return response.status_code, response.json()


def forms(key: str) -> list[Headers]:
    """Return headers for every way to send one key."""
    return [
        [("Authorization", f"Bearer {key}")],
        [("authorization", f"bearer {key}")],
        [("AUTHORIZATION", f"BEARER  {key} ")],
        [("x-api-key", key)],
        [("X-Api-Key", key)],
        [("x-goog-api-key", key)],
        [("Authorization", f"Bearer {key}"), ("x-api-key", key)],
    ]


@pytest.mark.parametrize("form", range(7))
async def test_every_form_of_a_good_key_opens(door: Door, form: int) -> None:
    answer = await door.knock("/me", forms(door.key)[form])
    assert answer.status_code == 200
    assert answer.json()["tenant"] == ACME.id
    admin = await door.knock("/admin", forms(ADMIN)[form])
    assert admin.json() == {"operator": "yes"}


BAD: list[Headers] = [
    [],
    [("Authorization", "")],
    [("Authorization", "Bearer")],
    [("Authorization", "Bearer ")],
    [("Authorization", "Basic {key}")],
    [("Authorization", "{key}")],
    [("Authorization", "Bearer {key}x")],
    [("Authorization", "Bearer {key} {key}")],
    [("Authorization", "Bearer {key}, Bearer {key}")],
    [("x-api-key", "")],
    [("x-api-key", "Bearer {key}")],
    [("x-api-key", "x" * 60_000)],
    [("cookie", "x-api-key={key}")],
    [("x-goog-key", "{key}")],
    [("Authorization", "Bearer {key}"), ("x-api-key", "sk-other")],
    [("Authorization", "Bearer sk-other"), ("x-api-key", "{key}")],
    [("Authorization", "Basic abc"), ("x-api-key", "{key}")],
    [("Authorization", "Bearer {key}"), ("Authorization", "Bearer sk-other")],
    [("x-api-key", "{key}"), ("x-api-key", "sk-other")],
]


@pytest.mark.parametrize("case", range(len(BAD)))
async def test_everything_else_is_refused_in_the_same_words(door: Door, case: int) -> None:
    for path, key in (("/me", door.key), ("/admin", ADMIN)):
        headers = [(name, value.replace("{key}", key)) for name, value in BAD[case]]
        assert told(await door.knock(path, headers)) == REFUSAL
        assert (await door.knock(path, forms(key)[0])).status_code == 200


async def test_bytes_that_are_no_text_are_refused(door: Door) -> None:
    for path in ("/me", "/admin"):
        answer = await door.http.get(path, headers=[(b"authorization", b"Bearer \xff\xfe\x80")])
        assert told(answer) == REFUSAL


async def test_a_key_in_the_query_or_the_body_opens_nothing(door: Door) -> None:
    for path, key in (("/me", door.key), ("/admin", ADMIN)):
        assert told(await door.http.get(path, params={"api_key": key, "x-api-key": key})) == REFUSAL
        assert told(await door.http.post(path, json={"x-api-key": key})) == REFUSAL


async def test_the_operator_s_key_is_no_tenant_s_and_is_never_looked_up(door: Door) -> None:
    assert told(await door.knock("/me", forms(ADMIN)[0])) == REFUSAL
    assert door.store.lookups == 0


async def test_a_tenant_s_key_on_an_admin_route_tells_nothing(door: Door) -> None:
    good = await door.knock("/admin", forms(door.key)[0])
    unknown = await door.knock("/admin", forms("sk-" + "a" * 43)[0])
    assert told(good) == REFUSAL
    assert good.content == unknown.content
    assert door.store.lookups == 0


async def test_a_disabled_tenant_is_403_and_a_stranger_still_401(door: Door) -> None:
    await put(door.store, replace(ACME, disabled=True))
    door.keyring.reload()
    answer = await door.knock("/me", forms(door.key)[0])
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "tenant_disabled"
    assert told(await door.knock("/me", forms("sk-" + "a" * 43)[0])) == REFUSAL


async def test_a_revoked_key_is_refused_on_the_next_request(door: Door) -> None:
    answer = await door.knock("/me", forms(door.key)[0])
    await door.keyring.revoke(answer.json()["key"])
    assert told(await door.knock("/me", forms(door.key)[0])) == REFUSAL


async def test_no_answer_repeats_a_key(door: Door) -> None:
    for key in (door.key, ADMIN, "sk-" + "q" * 43):
        for path in ("/me", "/admin"):
            answer = await door.knock(path, forms(key)[0])
            assert key not in answer.text + str(answer.headers)


async def test_a_guard_works_as_annotated_dependency() -> None:
    store = MemoryStore()
    store.tenants[ACME.id] = ACME
    keyring = Keyring(store, PEPPER)
    app = small_app()
    app.add_api_route("/me", _annotated(Authenticator(keyring)))
    async with client_of(app, (await keyring.issue(ACME.id)).secret) as http:
        assert (await http.get("/me")).json() == ACME.id
    async with client_of(app) as http:
        assert told(await http.get("/me")) == REFUSAL


def _annotated(authenticator: Authenticator) -> Any:
    async def me(caller: Caller) -> str:
        return caller.tenant_id

    me.__annotations__["caller"] = Annotated[Caller, Depends(authenticator)]
    return me


class TestTheOperatorBesideATenant:
    async def test_both_keys_make_a_request_the_operator_s(self, door: Door) -> None:
        answer = await door.knock("/me", [*forms(door.key)[0], ("X-Ratoon-Operator", ADMIN)])
        assert answer.json()["tenant"] == ACME.id
        assert answer.json()["operator"] == "True"
        assert (await door.knock("/me", forms(door.key)[0])).json()["operator"] == "False"

    @pytest.mark.parametrize("given", [[""], ["{key}"], ["Bearer {admin}"], ["{admin}", "{admin}"]])
    async def test_any_other_key_there_is_refused(self, door: Door, given: list[str]) -> None:
        beside = [
            ("X-Ratoon-Operator", one.replace("{key}", door.key).replace("{admin}", ADMIN))
            for one in given
        ]
        assert told(await door.knock("/me", [*forms(door.key)[0], *beside])) == REFUSAL

    async def test_the_header_alone_opens_nothing(self, door: Door) -> None:
        for path in ("/me", "/admin"):
            assert told(await door.knock(path, [("X-Ratoon-Operator", ADMIN)])) == REFUSAL
