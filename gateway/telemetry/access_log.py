"""The access log: a line for each request that has ended.

    time=2026-11-23T14:27:10.123Z id=9f.. tenant=tn_.. key=k_.. method=POST
    route=/v1/chat/completions status=200 outcome=stop prompt_tokens=763 cached_tokens=754
    generated_tokens=12 first_token_ms=97 ms=367

An entry is one line without unknown fields, or JSON with every field. An entry has ids, counts and
times. It has no prompt, no answer, no key, and no path except a route's template.

A thread writes several lines at a time, so that no request waits for the log's reader. If the
reader is slow or hangs, lines beyond a limit are dropped and counted.

Elsewhere: when a request ends (`gateway/http/request_head.py`).
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Literal

import msgspec

Form = Literal["lines", "json", "off"]

PROBES = frozenset({"/healthz", "/readyz", "/health", "/livez"})
MAX_WAITING = 10_000  # maximum number of lines that wait to be written, each of some 300 bytes
# number of waiting lines beyond which requests without a key add no line
OF_STRANGERS = MAX_WAITING // 2
_TOGETHER_S = 0.1  # seconds for which lines are gathered, to be written together
_END_S = 2.0
# maximum bytes written at once; a pipe keeps them together, even if other processes write too
_AT_ONCE = 4096
_AMBIGUOUS = re.compile(r'["=\\ ]')
_LOG = logging.getLogger(__name__)


class AccessLogEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One ended request. `time` is its end in seconds since the epoch, durations are milliseconds.

    `client_id` is the client's own id. `outcome` is a finish reason or an error's code. Fields that
    are not known or do not apply are None.
    """

    time: float
    id: str
    client_id: str | None
    tenant: str | None
    key: str | None
    method: str
    route: str
    status: int
    outcome: str | None
    prompt_tokens: int | None
    cached_tokens: int | None
    generated_tokens: int | None
    first_token_ms: int | None
    ms: int


class AccessLog:
    """A log of requests in lines of `form`, written by `write` or to standard output."""

    def __init__(self, form: Form, write: Callable[[bytes], object] | None = None) -> None:
        self._render = _json if form == "json" else _line
        self._write = write or _to_stdout
        self._waiting: deque[AccessLogEntry] = deque()
        self._dropped = 0
        self._told = 0
        self._checked: dict[str, int] = {}  # latest HTTP status of each health check, by path
        self._due = threading.Event()
        self._ends = threading.Event()

    def add(self, entry: AccessLogEntry, *, of_stranger: bool = False) -> None:
        """Queue `entry` to be written. Queue a health check only if it fails with a new status.

        Requests without a key leave half of the queue to other requests.
        """
        if entry.route in PROBES and not self._fails_anew(entry):
            return
        if len(self._waiting) >= (OF_STRANGERS if of_stranger else MAX_WAITING):
            self._dropped += 1
            return
        self._waiting.append(entry)
        if not self._due.is_set():
            self._due.set()

    def _fails_anew(self, check: AccessLogEntry) -> bool:
        before = self._checked.get(check.route)
        self._checked[check.route] = check.status
        return check.status >= 400 and check.status != before

    @contextmanager
    def written(self) -> Iterator[AccessLog]:
        """Write entries while this context is open. Spend up to 2 s on the last entries."""
        writer = threading.Thread(target=self._run, name="access-log", daemon=True)
        writer.start()
        try:
            yield self
        finally:
            self._ends.set()
            self._due.set()
            writer.join(_END_S)

    def _run(self) -> None:
        while not self._ends.is_set():
            self._due.wait()
            self._ends.wait(_TOGETHER_S)
            self._due.clear()
            self._write_waiting()
        self._write_waiting()

    def _write_waiting(self) -> None:
        some = [self._waiting.popleft() for _ in range(len(self._waiting))]
        dropped = self._dropped
        lost, self._told = dropped - self._told, dropped
        for piece in pieces([self._render(entry) for entry in some]):
            try:
                self._write(piece)
            except OSError:
                lost += piece.count(b"\n")
        if lost:
            _LOG.warning("%d lines of the access log were not written", lost)


def pieces(lines: Sequence[bytes], size: int = _AT_ONCE) -> Iterator[bytes]:
    """Yield whole lines together, up to `size` bytes at a time."""
    piece = b""
    for line in lines:
        if piece and len(piece) + len(line) > size:
            yield piece
            piece = b""
        piece += line
    if piece:
        yield piece


def _json(entry: AccessLogEntry) -> bytes:
    said = {"time": _time(entry), **{name: getattr(entry, name) for name in _NAMES}}
    return msgspec.json.encode(said) + b"\n"


def _line(entry: AccessLogEntry) -> bytes:
    given = ((name, getattr(entry, name)) for name in _NAMES)
    fields = [f"{name}={_spelled(value)}" for name, value in given if value is not None]
    return f"time={_time(entry)} {' '.join(fields)}\n".encode()


_NAMES = tuple(name for name in AccessLogEntry.__struct_fields__ if name != "time")


def _spelled(value: str | int) -> str:
    if isinstance(value, int):
        return str(value)
    return msgspec.json.encode(value).decode() if _AMBIGUOUS.search(value) else value


def _time(entry: AccessLogEntry) -> str:
    moment = datetime.fromtimestamp(entry.time, UTC)
    return moment.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def _to_stdout(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(sys.stdout.fileno(), view) :]
