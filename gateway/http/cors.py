"""The other origins whose pages may read answers (CORS): a list, empty by default.

A key is sent in a header, which no browser adds by itself. The pages' cookies are sent only from
their own origin (SameSite=Strict), and no answer allows credentials. Listed origins therefore get
only a key's rights. Any other origin gets no CORS fields.
"""

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.types import Scope

Fields = list[tuple[bytes, bytes]]

ANY = "*"
_METHODS = b"GET, HEAD, POST, PUT, PATCH, DELETE"
_MAX_AGE_S = b"7200"  # seconds for which a preflight may be cached, the maximum of all browsers
_MAX_ASKED = 2048
_NAMES = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+(?:[ \t]*,[ \t]*[!#$%&'*+\-.^_`|~0-9A-Za-z]+)*")
# The header fields that scripts may read in every dialect, besides those that browsers always let
# them read.
_OF_ALL = ("retry-after", "retry-after-ms", "traceresponse")


class Cors:
    """The origins whose pages may read answers."""

    def __init__(self, origins: Iterable[str] = (), exposed: Iterable[str] = ()) -> None:
        """Let pages of `origins` read answers, with the dialects' header fields `exposed`."""
        self._exposed = ", ".join(dict.fromkeys((*_OF_ALL, *exposed))).encode()
        self._origins = frozenset(origin.encode() for origin in origins)
        self._is_any = ANY.encode() in self._origins

    def fields(self, scope: Scope) -> Fields:
        """Return the CORS fields of an answer to the request's origin."""
        if not self._origins:
            return []
        if self._is_any:
            return [
                (b"access-control-allow-origin", b"*"),
                (b"access-control-expose-headers", self._exposed),
            ]
        # tells caches to keep the answers to different origins apart
        varies = [(b"vary", b"origin")]
        origin = one_field(scope, b"origin")
        if origin not in self._origins:
            return varies
        return [
            *varies,
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", self._exposed),
        ]

    def preflight(self, scope: Scope) -> Fields | None:
        """Return the fields of the answer to a listed origin's preflight, or None.

        The answer also has the fields that `fields` returns.
        """
        if scope["method"] != "OPTIONS" or not self._origins:
            return None
        origin = one_field(scope, b"origin")
        if origin is None or one_field(scope, b"access-control-request-method") is None:
            return None
        if not self._is_any and origin not in self._origins:
            return None
        answer = [
            (b"access-control-allow-methods", _METHODS),
            (b"access-control-max-age", _MAX_AGE_S),
        ]
        asked = one_field(scope, b"access-control-request-headers") or b""
        if len(asked) <= _MAX_ASKED and _NAMES.fullmatch(asked):
            answer.append((b"access-control-allow-headers", asked))
        return answer


def one_field(scope: Scope, name: bytes) -> bytes | None:
    """Return a header field's value; None if the field is missing or occurs several times."""
    found: list[bytes] = [value for key, value in scope["headers"] if key == name]
    return found[0] if len(found) == 1 else None


def origins_in(text: str | None) -> tuple[str, ...]:
    """Read comma-separated origins; raise ValueError with the first invalid origin."""
    origins = tuple(one.strip() for one in (text or "").split(",") if one.strip())
    for origin in origins:
        if origin != ANY and not _is_origin(origin):
            raise ValueError(
                f"{origin!r} is no origin, such as https://example.com or http://localhost:3000"
            )
    return origins


def _is_origin(text: str) -> bool:
    """Return whether an origin is in lower case and without a path, as browsers write it."""
    try:
        parts = urlsplit(text)
        has_host, _ = bool(parts.hostname), parts.port
    except ValueError:
        return False
    is_whole = text == f"{parts.scheme}://{parts.netloc}" and "@" not in parts.netloc
    return is_whole and has_host and text == text.lower() and text.isascii()
