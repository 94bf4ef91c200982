"""Log entries are whole lines, and a log that nobody reads delays no request."""

from __future__ import annotations

import json
import logging
import threading
from typing import Any

import msgspec
import pytest

from gateway.telemetry.access_log import (
    MAX_WAITING,
    OF_STRANGERS,
    AccessLog,
    AccessLogEntry,
    pieces,
)

ENTRY = AccessLogEntry(
    time=1764000000.1234,
    id="9f",
    client_id=None,
    tenant="tn_1",
    key="key_1",
    method="POST",
    route="/v1/chat/completions",
    status=200,
    outcome="stop",
    prompt_tokens=763,
    cached_tokens=754,
    generated_tokens=12,
    first_token_ms=97,
    ms=367,
)


class Written:
    """A log's output, in the pieces in which it was written."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def __call__(self, piece: bytes) -> None:
        self.pieces.append(piece)

    @property
    def lines(self) -> list[str]:
        return b"".join(self.pieces).decode().splitlines()


def written(form: Any, *entries: AccessLogEntry) -> list[str]:
    out = Written()
    with AccessLog(form, out).written() as log:
        for entry in entries:
            log.add(entry)
    return out.lines


def changed(**fields: Any) -> AccessLogEntry:
    return msgspec.structs.replace(ENTRY, **fields)


def test_a_line_has_what_is_known() -> None:
    assert written("lines", ENTRY, changed(prompt_tokens=None, tenant=None)) == [
        "time=2025-11-24T16:00:00.123Z id=9f tenant=tn_1 key=key_1 method=POST "
        "route=/v1/chat/completions status=200 outcome=stop prompt_tokens=763 cached_tokens=754 "
        "generated_tokens=12 first_token_ms=97 ms=367",
        "time=2025-11-24T16:00:00.123Z id=9f key=key_1 method=POST "
        "route=/v1/chat/completions status=200 outcome=stop cached_tokens=754 "
        "generated_tokens=12 first_token_ms=97 ms=367",
    ]


def test_json_has_every_field() -> None:
    [line] = written("json", changed(client_id='a"b'))
    said = json.loads(line)
    assert set(said) == set(AccessLogEntry.__struct_fields__)
    assert said["client_id"] == 'a"b'
    assert said["time"] == "2025-11-24T16:00:00.123Z"


@pytest.mark.parametrize("given", ["a=b", 'a"b', "a\\b", "status=500"])
def test_a_clients_id_cannot_pretend_to_be_another_field(given: str) -> None:
    [line] = written("lines", changed(client_id=given))
    assert f" client_id={json.dumps(given)} " in line
    [plain] = written("lines", changed(client_id="plain"))
    assert " client_id=plain " in plain


def test_checks_that_find_all_well_leave_no_line() -> None:
    assert written("lines", changed(route="/healthz"), changed(route="/health")) == []
    assert len(written("lines", changed(route="/readyz", status=503))) == 1


def test_checks_that_go_on_to_fail_leave_one_line() -> None:
    fails, is_well = changed(route="/readyz", status=503), changed(route="/readyz")
    assert len(written("lines", fails, fails, fails)) == 1
    assert len(written("lines", fails, fails, is_well, fails, fails)) == 2
    assert len(written("lines", fails, changed(route="/health", status=503))) == 2
    assert len(written("lines", *[changed(status=503)] * 3)) == 3, "requests are all written"


def test_lines_come_whole_and_in_order_in_pieces_that_a_pipe_keeps_together() -> None:
    lines = [b"%d" % number * (number % 90) + b"\n" for number in range(300)]
    together = list(pieces(lines))
    assert b"".join(together) == b"".join(lines)
    assert all(len(piece) <= 4096 and piece.endswith(b"\n") for piece in together)
    assert len(together) < 20
    assert list(pieces([b"x" * 5000 + b"\n", b"y\n"])) == [b"x" * 5000 + b"\n", b"y\n"]


def test_who_reads_too_slowly_loses_lines_and_delays_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    may_go_on, is_stuck = threading.Event(), threading.Event()
    out = Written()

    def stuck(piece: bytes) -> None:
        is_stuck.set()
        may_go_on.wait()
        out(piece)

    with caplog.at_level(logging.WARNING), AccessLog("lines", stuck).written() as log:
        log.add(ENTRY)
        is_stuck.wait()
        for _ in range(MAX_WAITING + 7):
            log.add(ENTRY)  # returns at once, though nobody reads the log
        may_go_on.set()
    assert len(out.lines) == 1 + MAX_WAITING
    assert "7 lines of the access log were not written" in caplog.text


def test_strangers_leave_room_for_the_lines_of_others(caplog: pytest.LogCaptureFixture) -> None:
    out, is_stuck, may_go_on = Written(), threading.Event(), threading.Event()

    def stuck(piece: bytes) -> None:
        is_stuck.set()
        may_go_on.wait(30)
        out(piece)

    stranger = msgspec.structs.replace(ENTRY, tenant=None, status=401)
    with caplog.at_level(logging.WARNING), AccessLog("lines", stuck).written() as log:
        log.add(ENTRY)
        is_stuck.wait()
        for _ in range(2 * MAX_WAITING):
            log.add(stranger, of_stranger=True)
        for _ in range(MAX_WAITING - OF_STRANGERS):
            log.add(ENTRY)
        may_go_on.set()
    assert sum("status=401" in line for line in out.lines) == OF_STRANGERS
    assert sum("status=200" in line for line in out.lines) == 1 + MAX_WAITING - OF_STRANGERS


def test_where_nothing_can_be_written_lines_are_counted_as_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def closed(_: bytes) -> None:
        raise BrokenPipeError

    with caplog.at_level(logging.WARNING), AccessLog("lines", closed).written() as log:
        log.add(ENTRY)
        log.add(ENTRY)
    assert "2 lines of the access log were not written" in caplog.text
