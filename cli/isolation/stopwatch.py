"""Times first tokens at the socket: one connection that stays open, a monotonic clock.

Blocking on purpose: an event loop between the socket and the clock would add noise of its own.

Knows: HTTP and the clock. Does not know: what the times are compared with.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from cli.errors import ServerRefused, ServerUnreachable
from cli.isolation.cells import EntryPoint

_TIMEOUT_S = 120.0


class Stopwatch:
    """One keep-alive connection. Used inside `with`; unusable after an error."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        parts = urlsplit(url)
        kind = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        self._connection = kind(parts.netloc, timeout=_TIMEOUT_S)
        self._root = parts.path
        self._headers = {**headers, "Content-Type": "application/json"}

    def __enter__(self) -> Stopwatch:
        self._connection.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def first_token_s(self, entry: EntryPoint, body: dict[str, Any]) -> float:
        """Seconds from sending a streamed request to the first line of its events."""
        content = msgspec.json.encode(body)
        try:
            return self._timed(entry.path, content)
        except (http.client.HTTPException, OSError) as error:
            raise ServerUnreachable(f"the connection broke ({error or 'timed out'})") from error

    def _timed(self, path: str, content: bytes) -> float:
        started = time.perf_counter_ns()
        self._connection.request("POST", self._root + path, content, self._headers)
        answer = self._connection.getresponse()
        answer.readline()
        taken = time.perf_counter_ns() - started
        answer.read()
        if answer.status != 200:
            raise ServerRefused(f"the server answered {answer.status}", status=answer.status)
        return taken / 1e9
