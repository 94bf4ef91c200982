"""Properties that a connection must have for any bytes.

Bytes divided into other packets give the same requests. h11, another parser, finds the same
requests. Each complete request is answered, and answers are well-formed. The number of unparsed
bytes is bounded. No inactive connection stays open.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import h11

from gateway.http.protocol.connection import BoundedConnection
from tests.gateway.http.protocol.exchange import (
    EARLY,
    Outcome,
    Seen,
    answers_in,
    bytewise,
    exchange,
    halves,
)

MOST_WAITING = 64 << 10  # bytes, without those of one packet
MOST_TRAILERS = 1024  # bytes; trailers are refused from 512 bytes on, not counting separators
_CODES = {"invalid_http", "head_too_large", "uri_too_long", "framing_too_large"}


async def check(kind: type[BoundedConnection], data: bytes) -> None:
    """Raise AssertionError if `kind` handles these bytes wrongly; let errors of the connection
    pass.
    """
    whole = await exchange(kind, [data])
    for pieces, turns in ((bytewise(data), 0), (halves(data), 2)):
        cut = await exchange(kind, pieces, turns=turns)
        _check_alone(cut, 1 + len(data) // 2)
        _check_same(whole, cut)
    _check_alone(whole, len(data))
    _check_against(list(_by_another_parser(data)), whole)


def _check_alone(outcome: Outcome, piece: int) -> None:
    assert not outcome.is_stuck, "nothing is received, and nothing goes on"
    assert outcome.most_waiting <= MOST_WAITING + piece
    answers = answers_in(outcome)
    if answers is None:
        return
    served = [answer for answer in answers if answer.status == 200]
    refused = [answer for answer in answers if answer.status != 200]
    assert all(answer.body == b"ok" for answer in served)
    early = sum(seen.target.partition(b"?")[0] == EARLY.encode() for seen in outcome.started)
    assert len(outcome.seen) <= len(served) <= len(outcome.seen) + early
    assert len(refused) <= 1
    assert not any(answer.closes for answer in answers[:-1]), "it was to be the last"
    for answer in refused:
        assert answer is answers[-1]
        assert answer.closes
        assert outcome.is_closed
        assert json.loads(answer.body)["error"]["code"] in _CODES


def _check_same(whole: Outcome, cut: Outcome) -> None:
    """Check that division into packets changes no result, except where it changes the limit on
    framing.
    """
    if b"framing_too_large" in whole.sent + cut.sent:
        fewer = min(len(whole.seen), len(cut.seen))
        assert whole.seen[:fewer] == cut.seen[:fewer]
    else:
        assert whole.seen == cut.seen
        assert whole.is_closed == cut.is_closed


def _check_against(others: list[tuple[Seen, int]], outcome: Outcome) -> None:
    """Check that both parsers find the same requests, up to the first that only one of them
    finds.
    """
    ours = iter(outcome.seen)
    for other, trailers in others:
        if other.target.partition(b"?")[0] == EARLY.encode():
            continue
        seen = next(ours, None)
        if seen is None:
            assert outcome.is_closed or not others, "a whole request was not taken"
            return
        assert (seen.method, seen.body) == (other.method, other.body)
        assert _plain(seen.fields) == _plain(other.fields)
        assert trailers <= MOST_TRAILERS, "trailers without a bound"


def _plain(fields: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return fields without those that the server drops or renames, with values as h11 writes
    them.
    """
    left_out = (b"cookie", b"upgrade", b"upgrad-")
    return [
        (name, value.strip().lower() if name == b"transfer-encoding" else value.strip())
        for name, value in fields
        if name not in left_out
    ]


def _by_another_parser(data: bytes) -> Iterable[tuple[Seen, int]]:
    """Return the complete requests that h11 finds before an error, and the bytes of their
    trailers.
    """
    parser = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    parser.receive_data(data)
    try:
        while True:
            request = parser.next_event()
            if not isinstance(request, h11.Request):
                return
            body = b""
            while isinstance(event := parser.next_event(), h11.Data):
                body += bytes(event.data)
            if not isinstance(event, h11.EndOfMessage):
                return
            trailers = sum(len(name) + len(value) for name, value in event.headers)
            fields = tuple((bytes(name), bytes(value)) for name, value in request.headers)
            yield Seen(request.method.decode(), bytes(request.target), fields, body), trailers
            parser.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
            parser.send(h11.EndOfMessage())
            parser.start_next_cycle()
    except (h11.LocalProtocolError, h11.RemoteProtocolError):
        return
