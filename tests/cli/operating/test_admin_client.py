import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from aiohttp import web

from cli.errors import BadSetting, CliError, NotRatoon, ServerRefused, ServerUnreachable
from cli.operating.admin_client import TENANTS, AdminClient, error_message, with_admin
from cli.operating.server_target import admin_target, checked_url, load_target, service_url
from cli.options.options import DEFAULT_DATA_DIR, AdminFlags, TargetFlags
from cli.serving.installation import first_start
from cli.supervision.address import ADDRESS_FILE, ServerAddress, address_told
from gateway.startup.first_start import KEYS_FILE
from tests.cli.console import Console
from tests.cli.http_double import served


class AdminDouble:
    """A client that returns given answers, and records its requests."""

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


def test_an_error_that_names_its_field_itself_names_it_once() -> None:
    body = b'{"error": {"message": "`cache`: the floor is high", "param": "cache"}}'
    assert error_message(body, 400) == "cache: the floor is high (400)"


@pytest.mark.parametrize(
    "body", [b"<html>welcome</html>", b"[]", b"1", b'"\xe9"', b'{"deep": ' + b"[" * 200_000]
)
def test_a_server_that_is_not_ratoon_is_reported_as_such(body: bytes) -> None:
    with pytest.raises(NotRatoon, match=r"http://127.*is not Ratoon"):
        call(AdminDouble(200, body))


@pytest.mark.parametrize("body", [b"", b'{"status": "ok"}'])
def test_another_server_s_rows_are_none(body: bytes) -> None:
    with served(AdminDouble(200, body).app) as url:
        flags = AdminFlags(url=url, admin_key="secret")
        with pytest.raises(NotRatoon):
            with_admin(flags, lambda client: client.rows("/admin/tenants", "tenants"))


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_no_name_makes_the_path_of_what_is_above(name: str) -> None:
    """Escape names in paths.

    The HTTP client resolves "..", so deleting a key of that name would delete the key's tenant.
    """
    with pytest.raises(CliError, match="no name"):
        TENANTS.path_of("tn_1", "keys", name)
    double = AdminDouble()
    with served(double.app) as url:
        flags = AdminFlags(url=url, admin_key="secret")
        path = f"/admin/tenants/tn_1/{name}"
        with_admin(flags, lambda client: client.call("DELETE", path))
    assert double.asked[0][1] in ("/admin/tenants/tn_1/", "/admin/tenants/"), "the control"
    assert TENANTS.path_of("tn_1", "adapters", "a/..") == "/admin/tenants/tn_1/adapters/a%2F.."


def test_an_unreachable_server_is_reported_with_its_url() -> None:
    with served(AdminDouble().app) as url:
        pass
    flags = AdminFlags(url=url, admin_key="secret")
    with pytest.raises(ServerUnreachable, match=rf"no answer from {url} \(Connection refused\); "):
        with_admin(flags, lambda client: client.call("GET", "/admin/x"))


async def test_rows_are_taken_from_under_their_name() -> None:
    double = AdminDouble(body=b'{"keys": [{"id": "k"}]}')
    with served(double.app) as url:
        async with AdminClient(url, "secret") as client:
            assert await client.rows("/admin/x", "keys") == [{"id": "k"}]


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    first_start(tmp_path, "the-admin-key-of-this-place")
    return tmp_path


def test_keys_come_from_the_data_directory(data_dir: Path) -> None:
    admin = AdminFlags(data_dir=data_dir, url="http://x")
    assert admin_target(admin) == ("http://x", "the-admin-key-of-this-place")
    _, key = load_target(TargetFlags(data_dir=data_dir, url="http://x"))
    assert f"export RATOON_DEMO_KEY={key}\n" in (data_dir / "keys.env").read_text()


def test_flags_come_before_the_file(data_dir: Path) -> None:
    admin = AdminFlags(data_dir=data_dir, admin_key="other", url="https://gpu7/ratoon/")
    assert admin_target(admin) == ("https://gpu7/ratoon", "other")
    target = TargetFlags(data_dir=data_dir, key="sk-x", url="http://gpu7:1")
    assert load_target(target) == ("http://gpu7:1", "sk-x")


def test_clients_use_the_server_s_listen_address(data_dir: Path) -> None:
    flags = AdminFlags(data_dir=data_dir, host="0.0.0.0", port=9000)
    assert admin_target(flags)[0] == "http://127.0.0.1:9000"
    assert admin_target(replace(flags, admin_port=9001))[0] == "http://127.0.0.1:9001"
    assert load_target(TargetFlags(data_dir=data_dir, port=9000))[0] == "http://127.0.0.1:9000"


def test_a_server_that_runs_in_the_data_directory_is_found(data_dir: Path) -> None:
    told = ServerAddress(url="http://127.0.0.1:81", admin_url="http://127.0.0.1:82", pid=1)
    admin, target = AdminFlags(data_dir=data_dir), TargetFlags(data_dir=data_dir)
    with address_told(data_dir, told):
        assert admin_target(admin)[0] == told.admin_url
        assert load_target(target)[0] == service_url(admin) == told.url
        assert admin_target(replace(admin, port=83))[0] == "http://127.0.0.1:83"
        assert load_target(replace(target, host="10.0.0.1"))[0] == "http://10.0.0.1:8000"
        assert admin_target(replace(admin, url="http://x"))[0] == "http://x"
    for ask in (partial(admin_target, admin), partial(load_target, target)):
        with pytest.raises(
            BadSetting, match=f"no server runs in {re.escape(str(data_dir))}; --url"
        ):
            ask()


def test_the_default_address_is_only_for_a_key_that_was_given(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Use the default address only with a given key.

    No data directory is given or found, so the keys of an ended server are not sent.
    """
    monkeypatch.chdir(data_dir)
    asked = AdminFlags(admin_key="given"), TargetFlags(key="given")
    assert admin_target(asked[0]) == load_target(asked[1]) == ("http://127.0.0.1:8000", "given")
    for named in (Path("x"), data_dir):
        with pytest.raises(BadSetting, match="no server runs in"):
            admin_target(replace(asked[0], data_dir=named))
    DEFAULT_DATA_DIR.mkdir()
    (data_dir / KEYS_FILE).rename(DEFAULT_DATA_DIR / KEYS_FILE)
    with pytest.raises(BadSetting, match=r"no server runs in \.ratoon"):
        load_target(TargetFlags())
    assert load_target(TargetFlags(port=8000))[0] == "http://127.0.0.1:8000", "the control"


def test_a_file_that_others_may_change_sends_no_key_anywhere(data_dir: Path) -> None:
    told = ServerAddress(url="http://127.0.0.1:81", admin_url="http://127.0.0.1:82", pid=1)
    with address_told(data_dir, told):
        (data_dir / ADDRESS_FILE).chmod(0o666)
        with pytest.raises(BadSetting, match=r"--url: not given, and .*not private"):
            admin_target(AdminFlags(data_dir=data_dir, admin_key="given-otherwise"))


def test_the_directory_is_named_as_make_names_it(console: Console, data_dir: Path) -> None:
    told = ServerAddress(url="http://127.0.0.1:1", admin_url="http://127.0.0.1:1", pid=1)
    with address_told(data_dir, told):
        named = console.type("tenants", "list", env={"DATA_DIR": str(data_dir)})
        assert "no answer from http://127.0.0.1:1 " in named.err
        other = {"DATA_DIR": str(data_dir), "RATOON_DATA_DIR": "elsewhere"}
        assert "elsewhere/keys.env is missing" in console.type("tenants", "list", env=other).err


def test_no_key_anywhere_names_the_flag_and_the_file(tmp_path: Path) -> None:
    with pytest.raises(
        BadSetting, match=r"--admin-key: not given, and .*keys\.env is missing; .*DATA_DIR"
    ):
        admin_target(AdminFlags(data_dir=tmp_path))
    with pytest.raises(BadSetting, match=r"--key: not given"):
        load_target(TargetFlags(data_dir=tmp_path))


def test_a_removed_demo_key_is_reported(data_dir: Path) -> None:
    keys = data_dir / "keys.env"
    kept = [line for line in keys.read_text().splitlines() if "DEMO_KEY" not in line]
    keys.write_text("\n".join(kept) + "\n")
    with pytest.raises(BadSetting, match="has no RATOON_DEMO_KEY"):
        load_target(TargetFlags(data_dir=data_dir))


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", ""])
def test_a_url_is_http(url: str) -> None:
    with pytest.raises(BadSetting, match="--url"):
        checked_url(url)


@pytest.mark.parametrize("key", ["sk-x\n", "sk-x\r\n", "sk-\u00e9", "sk-\x00"])
def test_a_key_that_no_header_carries_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(BadSetting, match="--admin-key: ") as operator:
        admin_target(AdminFlags(admin_key=key))
    with pytest.raises(BadSetting, match="--key: ") as tenant:
        load_target(TargetFlags(key=key))
    assert "sk-" not in f"{operator.value} {tenant.value}"
