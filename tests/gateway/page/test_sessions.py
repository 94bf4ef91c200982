"""Signed cookies allow reading, and changes only with a CSRF token, for one page and key."""

from __future__ import annotations

import pytest
from fastapi import Request, Response

from gateway.errors import Forbidden, Unauthenticated
from gateway.page.sessions import CSRF_HEADER, SESSION_S, Session, Sessions, secret_of
from tests.gateway.support.manual_clock import ManualClock

PEPPER = b"p" * 32


def sessions(clock: ManualClock, *parts: bytes, name: str = "ratoon_admin") -> Sessions:
    return Sessions(name, "/admin", secret_of(PEPPER, *parts), clock)


def request(method: str = "GET", **headers: str) -> Request:
    spelled = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request(
        {
            "type": "http",
            "method": method,
            "scheme": "http",
            "path": "/admin/x",
            "server": ("127.0.0.1", 80),
            "headers": [(name.encode(), value.encode()) for name, value in spelled.items()],
        }
    )


def begun(of: Sessions, **headers: str) -> tuple[str, str, str]:
    """Begin a session; return the cookie, the CSRF token, and the whole `Set-Cookie` field."""
    found: list[Session] = []

    def answer(session: Session) -> Response:
        found.append(session)
        return Response()

    header = of.begin("operator", request("POST", **headers), answer).headers["set-cookie"]
    return header.partition(";")[0], found[0].csrf, header


class TestOf:
    def test_reading_needs_the_cookie_alone_and_changing_the_token_as_well(self) -> None:
        of = sessions(ManualClock())
        cookie, csrf, _ = begun(of)
        assert of.of(request(cookie=cookie)).subject == "operator"
        assert of.of(request("POST", cookie=cookie, **{CSRF_HEADER: csrf})).csrf == csrf
        for wrong in ({}, {CSRF_HEADER: ""}, {CSRF_HEADER: csrf[:-1] + "x"}, {CSRF_HEADER: "é"}):
            with pytest.raises(Forbidden) as refused:
                of.of(request("POST", cookie=cookie, **wrong))
            assert refused.value.code == "csrf"

    def test_no_cookie_and_a_changed_one_are_nobody_s(self) -> None:
        of = sessions(ManualClock())
        cookie, _, _ = begun(of)
        assert of.is_given(request(cookie=cookie))
        assert not of.is_given(request())
        for wrong in ("", cookie[:-1] + ("A" if cookie[-1] != "A" else "B"), "ratoon_admin=é"):
            with pytest.raises(Unauthenticated):
                of.of(request(cookie=wrong))

    def test_its_time_ends(self) -> None:
        clock = ManualClock()
        of = sessions(clock)
        cookie, _, _ = begun(of)
        clock.advance(SESSION_S - 1)
        of.of(request(cookie=cookie))
        clock.advance(2)
        with pytest.raises(Unauthenticated):
            of.of(request(cookie=cookie))

    def test_another_worker_accepts_it_and_another_key_or_page_does_not(self) -> None:
        clock = ManualClock()
        cookie, csrf, _ = begun(sessions(clock, b"operator", b"one"))
        again = sessions(clock, b"operator", b"one")
        assert again.of(request("PUT", cookie=cookie, **{CSRF_HEADER: csrf})).subject == "operator"
        changed = sessions(clock, b"operator", b"other")
        page = sessions(clock, b"operator", b"one", name="ratoon_usage")
        for other, sent in ((changed, cookie), (page, cookie.replace("admin", "usage"))):
            with pytest.raises(Unauthenticated):
                other.of(request(cookie=sent))

    @pytest.mark.parametrize("site", ["cross-site", "same-site"])
    def test_a_page_of_another_origin_gets_nothing(self, site: str) -> None:
        of = sessions(ManualClock())
        cookie, csrf, _ = begun(of)
        own = request("POST", cookie=cookie, sec_fetch_site="same-origin", **{CSRF_HEADER: csrf})
        assert of.of(own).subject == "operator"
        for method in ("GET", "POST"):
            with pytest.raises(Forbidden):
                of.of(request(method, cookie=cookie, sec_fetch_site=site, **{CSRF_HEADER: csrf}))


class TestCookie:
    def test_scripts_cannot_read_it_and_other_sites_do_not_send_it(self) -> None:
        _, _, header = begun(sessions(ManualClock()))
        fields = {field.strip().lower() for field in header.split(";")[1:]}
        assert {"httponly", "samesite=strict", "path=/admin", f"max-age={SESSION_S}"} <= fields
        assert "secure" not in fields

    @pytest.mark.parametrize(
        ("origin", "is_secure"),
        [
            ("https://llm.example", True),
            ("HTTPS://llm.example:8443", True),
            ("http://127.0.0.1:8000", False),
            ("http://https://x", False),
            ("null", False),
        ],
    )
    def test_where_a_proxy_ends_tls_it_is_for_https_alone(
        self, origin: str, is_secure: bool
    ) -> None:
        _, _, header = begun(sessions(ManualClock()), origin=origin)
        assert ("secure" in {field.strip().lower() for field in header.split(";")}) == is_secure

    def test_signing_out_removes_it(self) -> None:
        header = sessions(ManualClock()).end(Response()).headers["set-cookie"]
        assert header.startswith('ratoon_admin="";')
        assert "max-age=0" in header.lower()
