from __future__ import annotations

import asyncio
import gzip
import json
from random import Random
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.types import Message

from gateway.config import Bounds
from gateway.dialects.openai.requests.prompts import prompt_in
from gateway.dialects.openai.requests.schema import ChatRequest, CompletionRequest
from gateway.errors import BadRequest, BodyTooLarge, UnsupportedEncoding
from gateway.http.bodies.body import count_separators, parse
from gateway.http.bodies.inflating import MOST_MEMBERS
from gateway.http.bodies.outside_strings import PIECE
from gateway.http.bodies.reading import read_body
from gateway.http.body_memory import BodyMemory

T = TypeVar("T")

CHAT = msgspec.json.Decoder(ChatRequest)
COMPLETION = msgspec.json.Decoder(CompletionRequest)
GOOD_COMPLETION = b'{"model": "m", "prompt": "hi"}'
GOOD = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}], "n": 1, "stop": ["a"]}'


def parse_or_refuse(
    decoder: msgspec.json.Decoder[T], body: bytes, max_depth: int = 64
) -> BadRequest | T:
    """Parse a body; return the result or the refusal. The test fails on any other error."""
    try:
        return parse(decoder, body, max_depth)
    except BadRequest as refusal:
        return refusal


def in_pieces(*pieces: bytes, length: str | None = None, encoding: str | None = None) -> Request:
    """Make a request whose body arrives as `pieces`."""
    coming = list(pieces)

    async def receive() -> Message:
        body = coming.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(coming)}

    said = {b"content-length": length, b"content-encoding": encoding}
    headers = [(name, value.encode()) for name, value in said.items() if value is not None]
    return Request({"type": "http", "headers": headers}, receive)


async def read(request: Request, max_bytes: int) -> bytes:
    memory = BodyMemory(Bounds())
    with memory.lease("tn") as lease:
        body = await read_body(request, max_bytes, lease)
        assert len(memory) >= len(body)
    assert len(memory) == 0
    return bytes(body)


async def test_a_body_up_to_its_bound() -> None:
    assert await read(in_pieces(b"ab", b"", b"cd"), 4) == b"abcd"


@pytest.mark.parametrize("encoding", ["deflate", "br", "identity, gzip", "x"])
async def test_another_encoding_is_refused_as_such(encoding: str) -> None:
    with pytest.raises(UnsupportedEncoding):
        await read(in_pieces(b"ab", encoding=encoding), 4)
    for plain in ("", "identity", "Identity"):
        assert await read(in_pieces(b"ab", encoding=plain), 4) == b"ab"


class TestGzip:
    @pytest.mark.parametrize("size", [1, 7, 10_000])
    async def test_it_is_read_in_any_pieces(self, size: int) -> None:
        content = b'{"a": 1}' * 500
        # a body of two gzip members
        zipped = gzip.compress(content[:1000]) + gzip.compress(content[1000:])
        pieces = [zipped[at : at + size] for at in range(0, len(zipped), size)]
        assert await read(in_pieces(*pieces, encoding="gzip"), len(content)) == content
        assert await read(in_pieces(b"", encoding="gzip"), 10) == b""

    async def test_what_comes_out_is_bounded(self) -> None:
        content = b" " * 1_000_000
        bomb = gzip.compress(content)
        assert len(bomb) < 2000
        with pytest.raises(BodyTooLarge):
            await read(in_pieces(bomb, encoding="gzip"), len(content) - 1)
        assert await read(in_pieces(bomb, encoding="GZIP"), len(content)) == content

    async def test_what_goes_in_is_bounded(self) -> None:
        empty = gzip.compress(b"")
        with pytest.raises(BodyTooLarge):
            await read(in_pieces(*[empty] * 100, encoding="gzip"), 99 * len(empty))
        assert await read(in_pieces(*[empty] * 100, encoding="gzip"), 100 * len(empty)) == b""

    @pytest.mark.parametrize("content", [b"", b" "])
    @pytest.mark.parametrize("size", [50, 1 << 20])
    async def test_its_members_are_bounded(self, content: bytes, size: int) -> None:
        zipped = gzip.compress(content) * MOST_MEMBERS
        for most, body in ((True, zipped), (False, zipped + gzip.compress(content))):
            pieces = in_pieces(
                *[body[at : at + size] for at in range(0, len(body), size)], encoding="gzip"
            )
            if most:
                assert await read(pieces, len(zipped)) == content * MOST_MEMBERS
                continue
            with pytest.raises(BadRequest, match="members") as refused:
                await read(pieces, len(body))
            assert refused.value.code == "invalid_encoding"

    async def test_other_requests_have_their_turn_whatever_goes_in_and_comes_out(self) -> None:
        random = Random(1).randbytes(1 << 20)
        for content, zipped, steps in (
            (b"", gzip.compress(b"") * 500, 500),  # empty members
            (random, gzip.compress(random), 64),  # incompressible data
            (bytes(1 << 23), gzip.compress(bytes(1 << 23)), 32),  # a large expansion
        ):
            turns = 0

            async def others() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            running = asyncio.create_task(others())
            assert await read(in_pieces(zipped, encoding="gzip"), 1 << 23) == content
            running.cancel()
            assert turns >= steps

    @pytest.mark.parametrize(
        "broken",
        [b"{}", gzip.compress(b"{}", mtime=0)[:-1], gzip.compress(b"{}", mtime=0) + b"more"],
    )
    async def test_what_is_no_gzip_is_refused(self, broken: bytes) -> None:
        with pytest.raises(BadRequest) as refused:
            await read(in_pieces(broken, encoding="gzip"), 1000)
        assert refused.value.code == "invalid_encoding"


@pytest.mark.parametrize("length", [None, "1", "-5", "many", "5"])
async def test_a_body_over_its_bound_whatever_it_declares(length: str | None) -> None:
    with pytest.raises(BodyTooLarge):
        await read(in_pieces(b"ab", b"cd", b"e", length=length), 4)


async def test_a_declared_length_is_refused_before_anything_is_read() -> None:
    with pytest.raises(BodyTooLarge):
        await read(in_pieces(length="9" * 5000), 4)


@given(st.binary(max_size=200))
def test_bytes_are_a_struct_or_a_bad_request(body: bytes) -> None:
    with pytest.raises(BadRequest):
        parse(CHAT, body, 64)


@given(st.data())
def test_a_good_body_with_bytes_changed_is_a_struct_or_a_bad_request(data: st.DataObject) -> None:
    body = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(body) - 1))
        body[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    parsed = parse_or_refuse(CHAT, bytes(body))
    assert parsed.message if isinstance(parsed, BadRequest) else parsed.messages


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(st.sampled_from(CompletionRequest.__struct_fields__), JSON)
def test_any_value_in_any_field_is_a_struct_or_a_bad_request(name: str, value: object) -> None:
    body = json.dumps({"model": "m", "prompt": "x", name: value}).encode()
    parsed = parse_or_refuse(COMPLETION, body)
    if isinstance(parsed, BadRequest):
        assert parsed.param is None or parsed.param.startswith(name)
    else:
        assert isinstance(parsed.model, str)


def test_depth_counts_brackets_outside_of_strings() -> None:
    def nested(depth: int, more: bytes = b"") -> bytes:
        return GOOD[:-1] + b', "zzz": ' + b"[" * depth + more + b"]" * depth + b"}"

    assert parse(CHAT, nested(9), 10)
    assert parse(CHAT, nested(9, rb'"[[[\"[[[\\"'), 10)
    with pytest.raises(BadRequest, match="deeper"):
        parse(CHAT, nested(10), 10)
    with pytest.raises(BadRequest, match="deeper"):
        parse(CHAT, nested(10, rb'"[[[\"[[[\\"'), 10)


def test_arrays_and_objects_are_counted_outside_of_strings() -> None:
    many = b"[" + b",".join([b"[]"] * 160_000) + b"]"
    with pytest.raises(BadRequest, match="65536 arrays"):
        parse(CHAT, GOOD[:-1] + b', "zzz": ' + many + b"}", 64)
    assert parse(CHAT, GOOD[:-1] + b', "user": "' + many + b'"}', 64)


MANY = b",".join([b'"a"'] * 160_000)
NUMBERS = b",".join([b"1"] * 160_000)


@pytest.mark.parametrize(
    "field",
    [
        b'"stop": [' + MANY + b"]",
        b'"stop_token_ids": [' + NUMBERS + b"]",
        b'"modalities": [' + MANY + b"]",
        b'"logit_bias": {' + b",".join(b'"%d": 1' % i for i in range(160_000)) + b"}",
        b'"metadata": {' + b",".join(b'"%d": "a"' % i for i in range(160_000)) + b"}",
        b'"zzz": [' + NUMBERS + b"]",
    ],
    ids=lambda field: field[1:9].decode(),
)
def test_values_are_counted_before_they_are_parsed(field: bytes) -> None:
    more = b", " + field + b"}"
    with pytest.raises(BadRequest, match="150000 values") as refused:
        parse(CHAT, GOOD[:-1] + more, 64)
    assert refused.value.code == "invalid_json"
    with pytest.raises(BadRequest, match="150000 values"):
        parse(COMPLETION, GOOD_COMPLETION[:-1] + more, 64, prompt_in)


def test_commas_within_strings_are_no_values() -> None:
    for text in (b"," * 160_000, rb"\"," * 160_000, rb"\\" + b"," * 160_000):
        parsed = parse(CHAT, GOOD[:-1] + b', "user": "' + text + b'"}', 64)
        assert parsed.user is not None
        assert parsed.user.count(",") == 160_000


@pytest.mark.parametrize(
    "tiny", [b"1e-310", b"0.000E-299", b"12.5e-000308", b"1.e-100", b"0." + b"0" * 310 + b"1"]
)
def test_numbers_that_take_long_to_read_are_counted_outside_of_strings(tiny: bytes) -> None:
    def with_numbers(number: bytes, many: int) -> bytes:
        return GOOD[:-1] + b', "zzz": [' + b",".join([number] * many) + b"]}"

    with pytest.raises(BadRequest, match="256 numbers of 1e-100 or less") as refused:
        parse(CHAT, with_numbers(tiny, 257), 64)
    assert refused.value.code == "invalid_json"
    assert parse(CHAT, with_numbers(b'"' + tiny + rb'\\"', 1000), 64), "the control: texts"
    assert parse(CHAT, with_numbers(b"1.5e-09", 1000), 64)
    assert parse(CHAT, with_numbers(b"0.0001e-99", 1000), 64)


class _InPieces(bytes):
    """A body that checks that each search covers one piece, since a search makes other threads
    wait.
    """

    def find(self, *asked: Any) -> int:
        part, start, end = asked
        assert end - start < PIECE + len(part), "other threads wait for the whole body"
        return super().find(part, start, end)


def test_numbers_are_looked_for_in_pieces() -> None:
    def with_numbers(many: int) -> bytes:
        before = GOOD[:-1] + b', "zzz": ['
        # the first number extends over the end of a piece
        blanks = b" " * (PIECE - 5 - len(before))
        return _InPieces(before + blanks + b",".join([b"1.25e-310"] * many) + b"]}")

    assert with_numbers(1)[PIECE - 5 : PIECE + 1] == b"1.25e-"
    assert parse(CHAT, with_numbers(256), 64)
    with pytest.raises(BadRequest, match="256 numbers of 1e-100 or less"):
        # the search may miss one number at each boundary between pieces
        parse(CHAT, with_numbers(258), 64)


def test_the_values_of_the_part_cut_out_are_not_counted() -> None:
    good = b'{"model": "m", "prompt": [' + NUMBERS + b'], "stop": ["a"]}'
    assert parse(COMPLETION, good, 64, prompt_in).stop == ["a"]
    with pytest.raises(BadRequest, match="150000 values"):
        parse(COMPLETION, good, 64)
    # only one of the prompts is cut out, but the values of both count
    twice = good[:-1] + b', "prompt": "x"}'
    with pytest.raises(BadRequest, match="150000 values"):
        parse(COMPLETION, twice, 64, prompt_in)


@given(JSON)
def test_separators_are_counted_outside_of_strings(value: object) -> None:
    def separators(of: object) -> int:
        within = of.values() if isinstance(of, dict) else of if isinstance(of, list) else ()
        return max(0, len(list(within)) - 1) + sum(map(separators, within))

    spelled = json.dumps(value, ensure_ascii=False).encode()
    assert count_separators(spelled) == separators(value)
    items = len(value) if isinstance(value, list | dict) else 0
    assert count_separators(spelled, depth=1) == max(0, items - 1)


@given(JSON, st.integers(1, 8))
def test_depth_is_pythons_depth(value: object, max_depth: int) -> None:
    def depth(of: object) -> int:
        if isinstance(of, dict):
            return 1 + max(map(depth, of.values()), default=0)
        return 1 + max(map(depth, of), default=0) if isinstance(of, list) else 0

    body = json.dumps({"model": "m", "prompt": "x", "zzz": value}, ensure_ascii=False).encode()
    parsed = parse_or_refuse(COMPLETION, body, max_depth)
    is_too_deep = isinstance(parsed, BadRequest) and "deeper" in parsed.message
    assert is_too_deep == (1 + depth(value) > max_depth)


@given(st.lists(st.text(alphabet='"\\[x,', max_size=12), max_size=6))
def test_what_strings_say_counts_for_nothing_however_it_is_escaped(texts: list[str]) -> None:
    body = json.dumps({"model": "m", "prompt": "x", "zzz": [texts, texts]}).encode()
    assert parse(COMPLETION, body, 3).model == "m"
    with pytest.raises(BadRequest, match="deeper"):
        parse(COMPLETION, body, 2)


INCOMPLETE = {
    "half of a surrogate pair": rb"hi \ud83d",
    "a half before another escape": rb"hi \uD83D\n",
    "too few digits": rb"hi \u0",
    "no digits, after a backslash": rb"\\\u",
}
COMPLETE = {"a surrogate pair": rb"\ud83d\ude00", "the same letters": rb"\\ud83d", "none": b"hi"}


def saying(text: bytes) -> bytes:
    return b'{"model": "m", "prompt": "' + text + b'"}'


@pytest.mark.parametrize("text", INCOMPLETE.values(), ids=INCOMPLETE)
def test_an_incomplete_escape_at_the_end_is_named(text: bytes) -> None:
    refused = parse_or_refuse(COMPLETION, saying(text))
    assert isinstance(refused, BadRequest)
    assert "incomplete `\\u` escape" in str(refused)


@pytest.mark.parametrize("text", COMPLETE.values(), ids=COMPLETE)
def test_a_truncated_body_of_complete_escapes_is_called_truncated(text: bytes) -> None:
    accepted = parse_or_refuse(COMPLETION, saying(text))
    assert isinstance(accepted, CompletionRequest)
    refused = parse_or_refuse(COMPLETION, saying(text)[:-1])
    assert isinstance(refused, BadRequest)
    assert "truncated" in str(refused)


def test_a_missing_field_is_named() -> None:
    with pytest.raises(BadRequest, match="`messages`") as refused:
        parse(CHAT, b'{"model": "m"}', 64)
    assert refused.value.code == "missing_required_parameter"
    assert refused.value.param == "messages"
    with pytest.raises(BadRequest) as refused:
        parse(CHAT, b'{"model": "m", "messages": [{"role": "user"}, {"content": "x"}]}', 64)
    assert refused.value.param == "messages[1].role"


@pytest.mark.parametrize(
    ("field", "found"),
    [
        ('"n": 0', "`n`: Expected `int` >= 1"),
        ('"reasoning_effort": "XYZ"', "`reasoning_effort`: Invalid value"),
        ('"messages": [{"role": "XYZ"}]', "`messages[0].role`: Invalid value"),
        ('"messages": [{"content": "x"}]', "`messages[0]`: Object missing required field `role`"),
    ],
)
def test_the_text_names_the_field_and_not_its_value(field: str, found: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parse(CHAT, b'{"model": "m", %s, "messages": []}' % field.encode(), 64)
    assert refused.value.message == found
