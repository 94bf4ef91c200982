"""A signed-in cookie opens only the routes of its own page, until its key or sign-in ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.doubles.engine.fake_engine import FakeEngine
from tests.doubles.gateway.served import Served, config_of, serving

CSRF = "x-ratoon-csrf"
TENANT = {"name": "made-in-the-page"}


@pytest.fixture
def browser(served: Served) -> Iterator[httpx.Client]:
    """Return a client that keeps cookies and sends the same origin fields as a browser."""
    headers = {"sec-fetch-site": "same-origin"}
    with httpx.Client(base_url=served.url, headers=headers, timeout=60) as client:
        yield client


def signed_in(browser: httpx.Client, page: str, key: str) -> str:
    """Sign in; return the CSRF token."""
    answer = browser.post(f"/{page}/session", json={"key": key})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["csrf"])


class TestFiles:
    @pytest.mark.parametrize("path", ["/admin/ui", "/usage", "/admin/ui/", "/usage/page.css"])
    def test_each_has_the_headers_that_keep_others_out(
        self, browser: httpx.Client, path: str
    ) -> None:
        answer = browser.get(path)
        assert answer.status_code == 200
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"

    def test_what_the_browser_has_is_not_sent_again(self, browser: httpx.Client) -> None:
        first = browser.get("/admin/ui/app.js")
        assert first.headers["content-type"].startswith("text/javascript")
        again = browser.get("/admin/ui/app.js", headers={"if-none-match": first.headers["etag"]})
        other = browser.get("/admin/ui/app.js", headers={"if-none-match": '"other"'})
        assert (again.status_code, again.content) == (304, b"")
        assert other.content == first.content

    @pytest.mark.parametrize(
        "name", ["..%2fsessions.py", "%2e%2e/sessions.py", "../routes.py", "none.js", "core"]
    )
    def test_nothing_else_is_a_file(self, browser: httpx.Client, name: str) -> None:
        for page in ("/admin/ui", "/usage"):
            answer = browser.get(
                httpx.URL(browser.base_url.join("/"), raw_path=f"{page}/{name}".encode())
            )
            assert answer.status_code == 404, name


class TestOperator:
    def test_the_cookie_opens_the_admin_routes_until_signing_out(
        self, browser: httpx.Client, served: Served
    ) -> None:
        assert browser.get("/admin/tenants").status_code == 401
        token = signed_in(browser, "admin", served.admin_key)
        assert browser.get("/admin/session").json()["csrf"] == token
        assert browser.get("/admin/tenants").status_code == 200
        assert browser.delete("/admin/session", headers={CSRF: token}).status_code == 204
        assert browser.get("/admin/tenants").status_code == 401
        assert browser.get("/admin/session").status_code == 401

    def test_a_change_needs_the_token(self, browser: httpx.Client, served: Served) -> None:
        token = signed_in(browser, "admin", served.admin_key)
        for headers in ({}, {CSRF: "0" * 64}):
            refused = browser.post("/admin/tenants", json=TENANT, headers=headers)
            assert refused.status_code == 403
            assert refused.json()["error"]["code"] == "csrf"
        assert browser.post("/admin/tenants", json=TENANT, headers={CSRF: token}).status_code == 201
        elsewhere = {CSRF: token, "sec-fetch-site": "cross-site"}
        assert browser.post("/admin/tenants", json=TENANT, headers=elsewhere).status_code == 403

    def test_a_key_counts_before_the_cookie(self, browser: httpx.Client, served: Served) -> None:
        signed_in(browser, "admin", served.admin_key)
        wrong = {"authorization": f"Bearer {served.key}"}
        assert browser.get("/admin/tenants", headers=wrong).status_code == 401
        right = {"authorization": f"Bearer {served.admin_key}"}
        assert browser.get("/admin/tenants", headers=right).status_code == 200

    def test_it_opens_nothing_of_tenants(self, browser: httpx.Client, served: Served) -> None:
        signed_in(browser, "admin", served.admin_key)
        browser.cookies.set("ratoon_admin", browser.cookies["ratoon_admin"], path="/")
        for path in ("/v1/models", "/v1/usage", "/usage/data"):
            assert browser.get(path).status_code == 401, path

    @pytest.mark.parametrize("body", [{}, {"key": ""}, {"key": 1}, {"key": "x", "more": 1}, []])
    def test_a_sign_in_is_a_key(self, browser: httpx.Client, body: object) -> None:
        assert browser.post("/admin/session", json=body).status_code == 400

    def test_no_other_key_signs_in(self, browser: httpx.Client, served: Served) -> None:
        for key in (served.key, served.admin_key[:-1], "x"):
            answer = browser.post("/admin/session", json={"key": key})
            assert answer.status_code == 401
            assert "set-cookie" not in answer.headers
        assert browser.post("/admin/session", json={"key": served.admin_key}).status_code == 200


class TestTenant:
    def test_it_reads_its_own_and_nothing_of_the_operator_s(
        self, browser: httpx.Client, served: Served, client: openai.OpenAI, engine: FakeEngine
    ) -> None:
        del engine
        client.completions.create(model="tiny", prompt=[5] * 40, max_tokens=2)
        signed_in(browser, "usage", served.key)
        data = browser.get("/usage/data").json()
        assert data["tenant"]["name"] == "demo"
        assert len(data["samples"]) == 31
        assert data["window_s"] == 31 * 86_400
        browser.cookies.set("ratoon_usage", browser.cookies["ratoon_usage"], path="/")
        for path in ("/admin/tenants", "/admin/session", "/v1/usage", "/metrics"):
            assert browser.get(path).status_code == 401, path

    def test_another_tenant_sees_its_own(self, browser: httpx.Client, served: Served) -> None:
        signed_in(browser, "usage", served.other_key)
        assert browser.get("/usage/data").json()["tenant"]["name"] == "demo2"

    def test_it_ends_with_its_key(self, browser: httpx.Client, served: Served) -> None:
        operator = {"authorization": f"Bearer {served.admin_key}"}
        tenant = browser.post("/admin/tenants", json={"name": "short"}, headers=operator).json()
        path = f"/admin/tenants/{tenant['id']}/keys"
        issued = browser.post(path, json={}, headers=operator).json()
        signed_in(browser, "usage", issued["key"])
        assert browser.get("/usage/data").status_code == 200
        gone = browser.delete(f"{path}/{issued['record']['id']}", headers=operator)
        assert gone.status_code == 200
        assert browser.get("/usage/data").status_code == 401

    def test_no_other_key_signs_in(self, browser: httpx.Client, served: Served) -> None:
        for key in (served.admin_key, served.key[:-1], "x"):
            assert browser.post("/usage/session", json={"key": key}).status_code == 401


def test_without_the_pages_there_is_nothing(tiny_model: Path, tmp_path: Path) -> None:
    with serving(config_of(tiny_model, tmp_path / "data", page=False), FakeEngine()) as bare:
        for path in ("/admin/ui", "/usage", "/usage/data", "/admin/session"):
            assert httpx.get(bare.url + path).status_code == 404, path


def test_no_key_is_in_a_log(
    browser: httpx.Client,
    served: Served,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level("DEBUG")
    for client in ("httpx", "httpcore"):  # loggers of the test's own client
        caplog.set_level("WARNING", logger=client)
    signed_in(browser, "admin", served.admin_key)
    signed_in(browser, "usage", served.key)
    said, until = "", time.monotonic() + 30
    while "/usage/session" not in said:  # the log line follows the answer
        assert time.monotonic() < until
        said += "".join(capfd.readouterr())
        time.sleep(0.01)
    said += caplog.text
    assert "/admin/session" in said
    for secret in (served.admin_key, served.key, browser.cookies["ratoon_admin"]):
        assert secret not in said
