"""Every message is decoded as it was encoded, and damaged or foreign bytes are refused."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.link.cache_events import (
    Added,
    CacheEvents,
    Cleared,
    EventsTaken,
    Moved,
    Removed,
    Subscribe,
)
from engine.link.carrying_messages import (
    BeginImport,
    EndImport,
    ImportState,
    PrefixUnits,
    ReadPrefix,
    WriteImport,
)
from engine.link.codec import Codec, DecodeError, EncodeError, unpack_token_ids
from engine.link.event_messages import (
    Failed,
    Finished,
    Reused,
    StepReply,
    Timing,
    Tokens,
    WrittenAndRead,
)
from engine.link.messages import (
    AdapterUse,
    Cancel,
    FetchSource,
    FlowQuota,
    FromEngine,
    Hello,
    Partition,
    RecordedFlushes,
    SamplingParams,
    ToEngine,
    Welcome,
    pack_logit_bias,
    pack_token_ids,
)
from engine.link.query_messages import (
    AdapterDropped,
    AdapterRead,
    DropAdapter,
    Flush,
    Flushed,
    ForgetMarked,
    ListMarked,
    MarkedForgotten,
    MarkedPrefix,
    MarkedPrefixes,
    Pin,
    Pinned,
    Probe,
    Probed,
    ReadAdapter,
    StatsQuery,
    StatsReply,
    Unpin,
    Unpinned,
)
from engine.link.stats.engine_stats import EngineStats, ExchangeStats, FetchStats
from engine.link.stats.tier_stats import TierTokens
from engine.link.view_messages import (
    NodeView,
    Overview,
    OverviewQuery,
    OwnerView,
    Prefixes,
    PrefixesQuery,
    QueueUsage,
    Sequences,
    SequencesQuery,
    SequenceView,
    TierUsage,
    TreeLevel,
    TreeQuery,
)
from tests.doubles.engine.logprobs import pack_logprobs
from tests.engine.rigs.rig import Rig, generate
from tests.examples import examples

CODEC = Codec()

EXCHANGE = ExchangeStats(
    fetched={"tcp": FetchStats(fetches=2, failed=1, blocks=3, bytes=48, seconds=0.5)},
    refused=1,
    sent_blocks=4,
    sent_bytes=64,
)

TO_ENGINE: list[ToEngine] = [
    Hello(),
    generate("a", range(10)),
    generate(
        "b",
        range(10),
        sampling=SamplingParams(
            max_tokens=3,
            seed=-7,
            num_logprobs=2,
            logit_bias=pack_logit_bias({5: -1.5}),
            stop_token_ids=frozenset((1, 2)),
        ),
    ),
    generate("c", range(10), source=FetchSource("/run/engine-1.x", 8, "a", only=True)),
    Cancel("a"),
    Flush(query_id="1", flow="x", namespace=bytes(16)),
    Pin(
        query_id="3",
        pin_id="rules-1",
        token_ids=pack_token_ids(range(16)),
        namespace=bytes(16),
        block_keys=bytes(range(16)),
    ),
    Unpin(query_id="4", pin_id="rules-1"),
    RecordedFlushes(flushes={"fl_1": None, "fl_2": "tn_a"}),
    Partition(flows={"a": FlowQuota(0.1, 0.5, 2.0), "b": FlowQuota()}),
    Probe(query_id="5", token_ids=pack_token_ids(range(5)), namespaces=((0, bytes(16)),)),
    ListMarked(query_id="6", flow="a"),
    ForgetMarked(query_id="7", flow="a", prefix_id=bytes(16)),
    generate("d", range(10), adapter=AdapterUse(bytes(32), "acme/support")),
    ReadAdapter(query_id="12", path="acme/support"),
    DropAdapter(query_id="13", digest=bytes(32), flow="a", namespaces=(bytes(16),)),
    ReadPrefix(query_id="14", pin_id="px", first=1, count=2),
    BeginImport(
        query_id="15",
        import_id="im",
        token_ids=pack_token_ids(range(16)),
        namespace=bytes(16),
        block_keys=bytes(16),
        unit_bytes=64,
        state_units=2,
    ),
    WriteImport(query_id="16", import_id="im", first=1, payload=b"unit"),
    EndImport(query_id="17", import_id="im", is_kept=False),
    StatsQuery(query_id="2"),
    OverviewQuery(query_id="8", owners=3, evictions=2),
    SequencesQuery(query_id="9", limit=4),
    TreeQuery(query_id="10", node=None, limit=5),
    PrefixesQuery(query_id="11", order="hot", limit=6),
    Subscribe(),
    EventsTaken(7),
]


def from_engine() -> list[FromEngine]:
    stats: EngineStats = Rig().core.stats()
    logprobs = pack_logprobs(-0.1, ((1, -0.1), (2, -3.0)))
    owner = OwnerView("flow", 3, 1, 9)
    node = NodeView(
        node="n1",
        parent=None,
        namespace=bytes(16),
        flow="flow",
        tokens_before=0,
        tokens=16,
        device=1,
        host=0,
        disk=0,
        hits=2,
        last_used_s=0.5,
        children=0,
        pins=["rules-1"],
    )
    return [
        Welcome(
            engine_id="e",
            fingerprint=bytes(32),
            vocab_size=64,
            block_size=16,
            max_model_len=100,
            eos_token_ids=(0, 1),
            device="cpu",
            dtype="float32",
            exchange_address="tcp://gpu1:7302",
        ),
        StepReply(
            [
                Tokens(
                    request_id="a",
                    token_ids=(1, 2),
                    logprobs=(logprobs,),
                    reused=Reused(TierTokens(1, 2), 0.5, (16, 0), 32),
                    timing=Timing(0.5, 0.25, 0.0, 1.0, 0.125),
                ),
                Finished(
                    request_id="a",
                    reason="stop",
                    stop_token_id=0,
                    prompt_tokens=1,
                    reused=Reused(),
                    completion_tokens=2,
                    cache=WrittenAndRead(16, {"a label": 32, "": 16}),
                ),
                Failed(request_id="b", code="queue_full", message="later", retry_after_s=1.0),
            ]
        ),
        Flushed(query_id="1", blocks=4),
        Pinned(query_id="3", blocks=1),
        Pinned(query_id="3", blocks=0, code="no_room_to_pin", message="full", retry_after_s=2.0),
        Unpinned(query_id="4", blocks=1),
        Probed(query_id="5", tiers=TierTokens(16), saved_seconds=0.5),
        Probed(query_id="5", tiers=TierTokens(), code="invalid_request", message="cut off"),
        MarkedPrefixes(
            query_id="6", prefixes=[MarkedPrefix(bytes(16), 32, TierTokens(16, 16), 300.0, 1.5)]
        ),
        MarkedForgotten(query_id="7", blocks=None),
        StatsReply(query_id="2", stats=msgspec.structs.replace(stats, exchange=EXCHANGE)),
        Overview(
            query_id="8",
            engine_id="e",
            uptime_s=1.5,
            found=TierTokens(16),
            computed_tokens=1,
            generated_tokens=2,
            waiting=3,
            running=4,
            loads_chosen=5,
            loads_refused=6,
            tiers=[TierUsage(tier="device", total=9, used=8, owners=[owner], num_owners=1)],
            queue=[QueueUsage("flow", 1, 2)],
        ),
        Sequences(
            query_id="9",
            total=1,
            sequences=[SequenceView("a", "flow", "decode", 0.5, 10, 0, 2)],
        ),
        TreeLevel(query_id="10", is_known=True, node=None, children=[node], more=7),
        AdapterRead(query_id="12", digest=bytes(32), rank=8, num_bytes=4),
        AdapterDropped(query_id="13", blocks=5),
        PrefixUnits(query_id="14", unit_bytes=64, blocks=3, state_units=2, payload=b"unit"),
        ImportState(query_id="15", is_ready=False),
        Prefixes(query_id="11", prefixes=[node], surveyed=1, nodes=2, age_s=None),
        CacheEvents(
            number=3,
            changes=(
                Cleared(),
                Added("device", bytes(32)),
                Moved("host", bytes(range(16))),
                Removed(bytes(16)),
            ),
        ),
    ]


def test_everything_that_crosses_comes_out_as_it_went_in() -> None:
    for message in TO_ENGINE:
        assert CODEC.decode_to_engine(CODEC.encode(message)) == message
    for answer in from_engine():
        assert CODEC.decode_from_engine(CODEC.encode(answer)) == answer


def test_no_kind_of_message_is_left_out_here() -> None:
    assert {type(message) for message in TO_ENGINE} == set(ToEngine.__args__)
    assert {type(answer) for answer in from_engine()} == set(FromEngine.__args__)


def test_each_direction_refuses_the_others_messages() -> None:
    for message in TO_ENGINE:
        with pytest.raises(DecodeError):
            CODEC.decode_from_engine(CODEC.encode(message))
    for answer in from_engine():
        with pytest.raises(DecodeError):
            CODEC.decode_to_engine(CODEC.encode(answer))


def test_frames_are_bounded_on_both_ends() -> None:
    small = Codec(max_frame_bytes=1000)
    message = generate("a", range(10))
    frame = small.encode(message)
    assert small.decode_to_engine(frame) == message
    large = generate("a", [1] * 1000)
    with pytest.raises(EncodeError):
        small.encode(large)
    with pytest.raises(DecodeError):
        small.decode_to_engine(CODEC.encode(large))


def test_an_error_does_not_quote_the_frame() -> None:
    frame = msgspec.msgpack.encode({"type": "cancel", "request_id": 5, "secret prompt": 1})
    with pytest.raises(DecodeError) as error:
        CODEC.decode_to_engine(frame)
    assert "secret" not in str(error.value)
    assert error.value.__cause__ is None


DEEP = b"\x91" * 100_000 + b"\xc0"
BAD = {
    "nothing": b"",
    "nil": b"\xc0",
    "no tag": msgspec.msgpack.encode({"request_id": "a"}),
    "unknown tag": msgspec.msgpack.encode({"type": "shutdown"}),
    "pickle": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x07builtins\x94.",
    "missing fields": msgspec.msgpack.encode({"type": "generate", "request_id": "a"}),
    "wrong type": msgspec.msgpack.encode({"type": "cancel", "request_id": 5}),
    "bad utf-8": b"\x82\xa4type\xa6cancel\xaarequest_id\xa2\xff\xfe",
    "two messages": CODEC.encode(Hello()) * 2,
    "cut off": CODEC.encode(TO_ENGINE[1])[:-1],
    "huge claimed length": b"\xdd\xff\xff\xff\xff",
    "deep": DEEP,
    "deep in a known field": b"\x82\xa4type\xa6cancel\xa5other" + DEEP,
    "json": b'{"type":"hello"}',
}


@pytest.mark.parametrize("name", BAD)
def test_bytes_that_are_no_message_raise_decode_error(name: str) -> None:
    with pytest.raises(DecodeError):
        CODEC.decode_to_engine(BAD[name])
    with pytest.raises(DecodeError):
        CODEC.decode_from_engine(BAD[name])


@examples(8)
@given(st.binary(max_size=300))
def test_garbage_is_no_message_and_raises_decode_error_alone(frame: bytes) -> None:
    with pytest.raises(DecodeError):
        CODEC.decode_to_engine(frame)
    with pytest.raises(DecodeError):
        CODEC.decode_from_engine(frame)


def is_said(value: Any, frame: Any) -> bool:
    """Return whether a typed value equals its untyped form, apart from fields with defaults."""
    if isinstance(value, dict) and isinstance(frame, dict):
        return all(is_said(value[name], frame[name]) for name in value.keys() & frame.keys())
    if isinstance(value, list | tuple) and isinstance(frame, list):
        return len(value) == len(frame) and all(map(is_said, value, frame))
    is_number = isinstance(value, float) and type(frame) in (int, float)
    is_alike = is_number or type(value) is type(frame)
    # NaN differs from itself, so the last comparison accepts it
    return is_alike and (value == frame or value != value)


def test_a_damaged_frame_is_refused_with_decode_error_or_read_as_what_it_says() -> None:
    became: Counter[str] = Counter()

    @examples(8)
    @given(
        message=st.sampled_from(TO_ENGINE),
        changes=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=4),
        cut=st.integers(0, 10_000),
    )
    def damage(message: ToEngine, changes: list[tuple[int, int]], cut: int) -> None:
        frame = bytearray(CODEC.encode(message))
        for at, value in changes:
            frame[at % len(frame)] = value
        damaged = bytes(frame[: max(1, cut)])
        try:
            decoded = CODEC.decode_to_engine(damaged)
        except DecodeError:
            became["refused"] += 1
            return
        assert isinstance(decoded, ToEngine)
        try:
            said = msgspec.msgpack.decode(damaged)
        except UnicodeDecodeError:  # damage to a field's name makes the field unknown
            return
        became["read"] += 1
        assert is_said(msgspec.to_builtins(decoded, builtin_types=(bytes,)), said)

    damage()
    assert min(became["refused"], became["read"]) > 10, became  # positive control


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_token_ids_travel_as_int32(token_ids: list[int]) -> None:
    data = pack_token_ids(token_ids)
    assert len(data) == 4 * len(token_ids)
    assert unpack_token_ids(data).tolist() == token_ids
    assert unpack_token_ids(data).dtype == np.int32


def test_a_cut_off_token_id() -> None:
    assert pack_token_ids([1]) == b"\x01\x00\x00\x00"
    with pytest.raises(DecodeError):
        unpack_token_ids(b"\x01\x00\x00")
