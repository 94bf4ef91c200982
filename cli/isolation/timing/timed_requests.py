"""The requests whose answers are timed.

Tokens are timed at the socket, on one connection of each tenant that stays open. The calls block,
because an event loop between the socket and the clock would add noise.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

import msgspec

from cli.errors import ServerRefused, ServerUnreachable
from cli.isolation.cases import IDS_STREAMED
from cli.isolation.reading import ProbePrompt, reading_of
from cli.isolation.server import ServerUnderTest

_TIMEOUT_S = 120.0
_SEEDS = 1 << 31


class Timed(NamedTuple):
    """The times of an answer in seconds, and the number of its drafted tokens."""

    first_token_s: float
    others_s: float  # seconds from the first token to the end
    drafted: int


class TimedRequests(Protocol):
    """One tenant's requests that are timed."""

    def timed(self, prompt: ProbePrompt, tokens: int, fields: Mapping[str, object]) -> Timed:
        """Time an answer of `tokens` tokens."""
        ...


class TimedConnection:
    """A tenant's timed connection, used inside `with`, and unusable after an error.

    Implements `TimedRequests`.
    """

    def __init__(self, server: ServerUnderTest, key: str) -> None:
        self._server = server
        parts = urlsplit(server.url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._connection = kind(parts.netloc, timeout=_TIMEOUT_S)
        self._path = parts.path + IDS_STREAMED.path
        self._headers = {**server.headers(key), "Content-Type": "application/json"}

    def __enter__(self) -> TimedConnection:
        self._connection.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def timed(self, prompt: ProbePrompt, tokens: int, fields: Mapping[str, object]) -> Timed:
        """Time a streamed answer of `tokens` tokens: its first event line, and its end.

        The seed is a function of the prompt, so equal prompts get equal answers. Sampling is not
        greedy, because greedy answers repeat themselves. Repeated tokens would be drafted even
        without another tenant's answer.
        """
        body = self._server.body(IDS_STREAMED, prompt, fields)
        body |= {"max_tokens": tokens, "temperature": 1.0, "ignore_eos": True}
        body["seed"] = hash(tuple(prompt.ids)) % _SEEDS
        content = msgspec.json.encode(body)
        try:
            started = time.perf_counter_ns()
            self._connection.request("POST", self._path, content, self._headers)
            answer = self._connection.getresponse()
            answer.readline()
            first = time.perf_counter_ns()
            rest = answer.read()
            ended = time.perf_counter_ns()
        except (HTTPException, OSError) as error:
            raise ServerUnreachable(f"the connection broke ({error or 'timed out'})") from error
        if answer.status != 200:
            raise ServerRefused(f"the server answered {answer.status}", status=answer.status)
        drafted = reading_of(rest).accepted_drafts if tokens > 1 else 0
        return Timed((first - started) / 1e9, (ended - first) / 1e9, drafted)
