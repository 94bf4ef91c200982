import pytest
from aiohttp import web

from cli.admin_client import AdminClient, error_message, with_admin
from cli.client_options import AdminFlags
from cli.errors import NotRatoon, ServerRefused, ServerUnreachable
from tests.cli.http_double import served


class AdminDouble:
    """Answers what it was given to answer, and keeps what it was asked."""

    def __init__(self, status: int = 200, body: bytes = b"{}") -> None:
        self._status = status
        self._body = body
        self.asked: list[tuple[str, str, str, bytes]] = []

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        return app

    async def _answer(self, request: web.Request) -> web.Response:
        key = request.headers.get("Authorization", "")
        self.asked.append((request.method, request.path, key, await request.read()))
        return web.Response(status=self._status, body=self._body)


def call(double: AdminDouble, body: dict[str, object] | None = None) -> object:
    with served(double.app) as url:
        flags = AdminFlags(url=url, admin_key="secret")
        return with_admin(flags, lambda client: client.call("POST", "/admin/x", body))


def test_a_call_carries_the_key_and_the_body() -> None:
    double = AdminDouble(body=b'{"id": 1}')
    assert call(double, {"name": "acme"}) == {"id": 1}
    assert double.asked == [("POST", "/admin/x", "Bearer secret", b'{"name": "acme"}')]


def test_an_empty_answer_is_none() -> None:
    assert call(AdminDouble(status=204, body=b"")) is None


def test_a_refusal_has_the_servers_words_and_status() -> None:
    body = b'{"error": {"message": "no such tenant", "code": "not_found"}}'
    with pytest.raises(ServerRefused, match=r"no such tenant \(404\)") as refusal:
        call(AdminDouble(404, body))
    assert refusal.value.status == 404


@pytest.mark.parametrize(
    "body", [b"", b"<html>bad gateway</html>", b"[]", b'{"error": "text"}', b'{"error": {}}']
)
def test_an_error_without_a_message_is_reported_by_its_status(body: bytes) -> None:
    assert error_message(body, 502) == "the server answered 502"


def test_a_refusal_names_the_field() -> None:
    body = b'{"error": {"message": "Expected more", "param": "limits.max_concurrent"}}'
    assert error_message(body, 400) == "limits.max_concurrent: Expected more (400)"


@pytest.mark.parametrize("body", [b"<html>welcome</html>", b"[]", b"1"])
def test_a_server_that_is_not_ratoon_is_reported_as_such(body: bytes) -> None:
    with pytest.raises(NotRatoon, match=r"http://127.*is not Ratoon"):
        call(AdminDouble(200, body))


@pytest.mark.parametrize("body", [b"", b'{"status": "ok"}'])
def test_another_server_s_rows_are_none(body: bytes) -> None:
    with served(AdminDouble(200, body).app) as url:
        flags = AdminFlags(url=url, admin_key="secret")
        with pytest.raises(NotRatoon):
            with_admin(flags, lambda client: client.rows("/admin/tenants", "tenants"))


def test_an_unreachable_server_is_reported_with_its_url() -> None:
    with served(AdminDouble().app) as url:
        pass
    flags = AdminFlags(url=url, admin_key="secret")
    with pytest.raises(ServerUnreachable, match=f"no answer from {url}"):
        with_admin(flags, lambda client: client.call("GET", "/admin/x"))


async def test_rows_are_taken_from_under_their_name() -> None:
    double = AdminDouble(body=b'{"keys": [{"id": "k"}]}')
    with served(double.app) as url:
        async with AdminClient(url, "secret") as client:
            assert await client.rows("/admin/x", "keys") == [{"id": "k"}]
