"""The sessions of a page: a signed cookie that scripts cannot read, and a token against CSRF.

The cookie holds the session's subject, signed with a key of this server. Every worker therefore
accepts the cookie, and no worker stores sessions. The cookie is for one path and for the page's own
origin (SameSite=Strict). If the page was reached over HTTPS, the cookie is only for HTTPS (Secure).
A cookie lasts for SESSION_S. Signing out removes the cookie. An earlier copy of the cookie stays
valid until the cookie's time is over or the signing key changes.

A request that changes something must have the CSRF token as a header. No form and no page of
another origin can add this header. The token is computed from the cookie, and only the page
receives it.
"""

import hashlib
import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass

from fastapi import Request, Response
from itsdangerous import BadSignature, TimestampSigner, URLSafeTimedSerializer

from gateway.errors import Forbidden, Unauthenticated

CSRF_HEADER = "x-ratoon-csrf"
SESSION_S = 12 * 3600
_READS = ("GET", "HEAD")
_OWN = ("same-origin", "none")  # values of `Sec-Fetch-Site`; none: typed into the address bar
_ENDED = "nobody is signed in"


@dataclass(frozen=True, slots=True)
class Session:
    """A signed-in browser's session: its subject, its CSRF token, and when it ends."""

    subject: str
    csrf: str
    expires_at: float  # seconds since the epoch


class Sessions:
    """The sessions of one page. `clock` returns seconds since the epoch."""

    def __init__(
        self, name: str, path: str, secret: bytes, clock: Callable[[], float] = time.time
    ) -> None:
        """Use cookies named `name`, which browsers send to `path` and all paths below."""
        self._name = name
        self._path = path
        self._secret = secret
        self._clock = clock
        self._signer = URLSafeTimedSerializer(
            secret,
            salt=name,
            signer=_signer(clock),
            signer_kwargs={"key_derivation": "hmac", "digest_method": hashlib.sha256},
        )

    def begin(
        self, subject: str, request: Request, answer: Callable[[Session], Response]
    ) -> Response:
        """Add a session cookie for `subject` to `answer`. A cookie set over HTTPS is Secure."""
        cookie = self._signer.dumps(subject)
        response = answer(Session(subject, self._csrf(cookie), self._clock() + SESSION_S))
        response.set_cookie(
            self._name,
            cookie,
            max_age=SESSION_S,
            path=self._path,
            secure=_is_over_https(request),
            httponly=True,
            samesite="strict",
        )
        return response

    def end(self, response: Response) -> Response:
        """Add a header to `response` that makes the browser delete the cookie."""
        response.delete_cookie(self._name, path=self._path, httponly=True, samesite="strict")
        return response

    def is_given(self, request: Request) -> bool:
        """Return whether the request has a cookie of this name, valid or not."""
        return self._name in request.cookies

    def of(self, request: Request) -> Session:
        """Return the request's session.

        Raises Unauthenticated if there is no valid session, and Forbidden for a change without the
        CSRF token.
        """
        session = self._read(request.cookies.get(self._name, ""))
        check_origin(request)
        if request.method not in _READS:
            given = request.headers.get(CSRF_HEADER, "")
            if not hmac.compare_digest(given.encode(), session.csrf.encode()):
                raise Forbidden(f"the header {CSRF_HEADER} is missing or not valid", code="csrf")
        return session

    def _read(self, cookie: str) -> Session:
        try:
            subject, begun = self._signer.loads(cookie, max_age=SESSION_S, return_timestamp=True)
        except BadSignature:
            raise Unauthenticated(_ENDED) from None
        return Session(subject, self._csrf(cookie), begun.timestamp() + SESSION_S)

    def _csrf(self, cookie: str) -> str:
        return hmac.digest(self._secret, b"csrf " + cookie.encode(), hashlib.sha256).hex()


def check_origin(request: Request) -> None:
    """Raise Forbidden if a browser reports that another site or origin made the request.

    An older browser, or a page over plain HTTP, sends `Origin` instead of `Sec-Fetch-Site`. Clients
    that are no browsers send neither.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    host = request.headers.get("host", "").lower()
    if site is not None:
        is_own = site in _OWN
    else:
        is_own = origin is None or (origin.partition("://")[2].lower() == host != "")
    if not is_own:
        raise Forbidden("this page may be used from its own origin only", code="csrf")


def _is_over_https(request: Request) -> bool:
    """Return whether the browser names an HTTPS origin, as in every POST of an HTTPS page.

    A proxy may end TLS, so this server may see plain HTTP. No proxy's header about TLS is trusted.
    """
    return request.headers.get("origin", "").lower().startswith("https://")


def secret_of(pepper: bytes, *parts: bytes) -> bytes:
    """Derive a page's session key, 32 bytes, which differs by page and by `parts`."""
    return hmac.digest(pepper, b"\0".join((b"page sessions", *parts)), hashlib.sha256)


def _signer(clock: Callable[[], float]) -> type[TimestampSigner]:
    class Signer(TimestampSigner):
        def get_timestamp(self) -> int:
            return int(clock())

    return Signer
