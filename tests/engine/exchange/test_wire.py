"""Messages between two engines as bytes, and messages that are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.exchange.wire import (
    MAX_FRAME_BYTES,
    MOST_TEXT,
    Ask,
    Block,
    Ended,
    ExchangeCodec,
    Found,
    FromSource,
    Leave,
    PoolHandle,
    Slots,
    Still,
    Taken,
    ToSource,
    WireError,
)
from tests.examples import examples

CODEC = ExchangeCodec()
ASK = Ask(
    number=1,
    fingerprint=bytes(32),
    salt=bytes(16),
    spans=((0, bytes(16)), (4, bytes(range(16)))),
    token_ids=bytes(64),
    first=3,
    window=8,
    flow="a flow",
    request_id="a request",
    host=b"this one",
)
ASKED: list[ToSource] = [ASK, Taken(1, 5), Leave(1)]
SAID: list[FromSource] = [
    Found(number=1, salt=bytes(16), blocks=9, first_reads={"a": 2}, pool=PoolHandle(b"h", 64, 10)),
    Block(1, 3),
    Slots(number=1, first=3, slots=bytes(8), seal=bytes(16)),
    Still(1, 5),
    Ended(1, "", is_all=True),
]


def test_what_crosses_comes_out_as_it_went_in() -> None:
    for asked in ASKED:
        assert CODEC.decode_to_source(CODEC.encode(asked)) == asked
    for said in SAID:
        assert CODEC.decode_from_source(CODEC.encode(said)) == said
    assert {type(one) for one in ASKED} == set(ToSource.__args__)
    assert {type(one) for one in SAID} == set(FromSource.__args__)


def test_each_direction_refuses_the_others_messages() -> None:
    for asked in ASKED:
        with pytest.raises(WireError):
            CODEC.decode_from_source(CODEC.encode(asked))
    for said in SAID:
        with pytest.raises(WireError):
            CODEC.decode_to_source(CODEC.encode(said))


def test_frames_are_bounded() -> None:
    with pytest.raises(WireError):
        CODEC.decode_to_source(bytes(MAX_FRAME_BYTES + 1))


@pytest.mark.parametrize("length", [MOST_TEXT, MOST_TEXT + 1])
def test_texts_are_bounded_since_logs_have_them(length: int) -> None:
    text = length * "x"
    said: list[FromSource] = [
        Ended(1, text, is_all=False),
        Found(number=1, salt=bytes(16), blocks=9, first_reads={text: 2}),
    ]
    for one in said:
        if length <= MOST_TEXT:
            assert CODEC.decode_from_source(CODEC.encode(one)) == one
            continue
        with pytest.raises(WireError):
            CODEC.decode_from_source(CODEC.encode(one))


@examples(4)
@given(st.binary(max_size=200))
def test_garbage_is_refused_by_this_error_alone(frame: bytes) -> None:
    for decode in (CODEC.decode_to_source, CODEC.decode_from_source):
        with pytest.raises(WireError):
            decode(frame)
