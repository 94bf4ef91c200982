"""A fetch handles every message, whatever the other engine sends and in whatever order."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from engine.exchange.fetching.arriving import MOST_COPIES, NOT_SOUND, Arriving
from engine.exchange.fetching.fetch import Fetch, Wanted
from engine.exchange.peer_pool import CannotOpen, PeerPool
from engine.exchange.peer_pool import Slots as PoolSlots
from engine.exchange.seal import Seal, SealedPlace
from engine.exchange.wire import Block, Ended, Found, PoolHandle, Slots, Still
from prefix_cache.hashing import block_keys
from prefix_cache.namespace import Namespace, NamespacePath
from storage.copies import CopyEvent, Passed
from storage.errors import CopyFailed

SIZE, BLOCK_BYTES, FIRST, SPAN, END = 4, 64, 2, 4, 6
A, B = Namespace(b"a" * 16), Namespace(b"b" * 16)
FINGERPRINT, ASKING, ANSWERING = bytes(32), b"1" * 16, b"2" * 16
FOUND = Found(number=1, salt=ANSWERING, blocks=END, first_reads={"label": 2})
HANDLE = PoolHandle(bytes(64), 0, 100)


@dataclass
class Memory:
    """A `BlockWriter` of blocks by slot."""

    blocks: dict[int, bytearray] = field(default_factory=dict)
    flushed: int = 0

    def follow(self, event: CopyEvent) -> None:
        del event

    def buffer(self, slot: int) -> memoryview:
        return memoryview(self.blocks.setdefault(slot, bytearray(BLOCK_BYTES)))

    def flush(self) -> None:
        self.flushed += 1


@dataclass
class Copied:
    """A `CopyEvent` that is done as soon as a thread waits for it."""

    is_done: bool = False

    def query(self) -> bool:
        return self.is_done

    def synchronize(self) -> None:
        self.is_done = True


@dataclass
class Neighbour:
    """Another engine's pool, which can be opened, and a record of the copies from it."""

    memory: Memory
    is_within_reach: bool = True
    fails: bool = False
    copies: list[tuple[list[int], list[int]]] = field(default_factory=list)
    events: list[Copied] = field(default_factory=list)

    def host_of(self, where: str) -> bytes | None:
        del where
        return b"here"

    def follow(self, event: CopyEvent) -> None:
        del event

    def open(self, where: str, handle: PoolHandle) -> PeerPool:
        if not self.is_within_reach:
            raise CannotOpen(f"{where} {handle}")
        return self

    def copy(self, sources: PoolSlots, targets: PoolSlots) -> CopyEvent:
        if self.fails:
            raise CopyFailed("it fails")
        self.copies.append((sources.tolist(), targets.tolist()))
        self.events.append(Copied())
        return self.events[-1]


@pytest.fixture
def fetch() -> Fetch:
    path, tokens = NamespacePath(((0, A), (SPAN, B))), np.arange(END * SIZE, dtype=np.int32)
    wanted = Wanted(
        address="there",
        path=path,
        tokens=tokens,
        block_keys=block_keys(path, tokens, SIZE),
        block_ids=np.arange(100, 100 + END, dtype=np.int32),
        first=FIRST,
        end=END,
        flow="flow",
        request_id=None,
        deadline=0.0,
        after=Passed(),
    )
    return Fetch(wanted, FIRST, began=0.0, way="socket")


def payload(position: int) -> bytes:
    return bytes([position]) * BLOCK_BYTES


@dataclass
class Source:
    """The sender of a fetch's blocks, which has all of them."""

    fetch: Fetch
    seal: Seal = field(default_factory=lambda: Seal(FINGERPRINT, ASKING, ANSWERING))

    def block(self, position: int, namespace: Namespace | None = None) -> tuple[Block, memoryview]:
        place = self.fetch.wanted.place(position, position + 1)
        assert place is not None
        if namespace is not None:
            place = replace(place, namespace=namespace)
        return Block(1, position), memoryview(self.seal.seal(place, payload(position)))

    def slots(self, first: int, end: int, namespace: Namespace | None = None) -> Slots:
        place = self.fetch.wanted.place(first, end)
        assert place is not None
        if namespace is not None:
            place = replace(place, namespace=namespace)
        slots = np.arange(50 + first, 50 + end, dtype="<i4").tobytes()
        return Slots(number=1, first=first, slots=slots, seal=self.seal.seal_slots(place, slots))


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def arriving(fetch: Fetch, memory: Memory) -> Arriving:
    return Arriving(fetch, FINGERPRINT, ASKING, memory, None)


def test_blocks_go_to_their_slots_until_all_are_there(
    fetch: Fetch, memory: Memory, arriving: Arriving
) -> None:
    arriving.take(FOUND, None)
    for position in range(FIRST, END):
        assert not fetch.is_over
        arriving.take(*Source(fetch).block(position))
        assert fetch.arrived == arriving.taken == position + 1
    assert fetch.why == ""
    assert memory.blocks == {100 + at: payload(at) for at in range(FIRST, END)}
    assert memory.flushed == END - FIRST
    assert fetch.first_reads == {"label": 2}


@pytest.mark.parametrize(
    "first_reads",
    [{"label": END + 1}, {"label": 2**63 - 1}, {"label": -1}, {"label": 0}, {"a": END, "b": 1}],
)
def test_more_first_reads_than_there_are_blocks_end_it(
    fetch: Fetch, arriving: Arriving, first_reads: dict[str, int]
) -> None:
    """End a fetch whose first reads exceed its blocks, since gateways count first reads as tokens.

    Positive control: `FOUND` has valid first reads.
    """
    said = Found(number=1, salt=ANSWERING, blocks=END, first_reads=first_reads)
    arriving.take(said, None)
    assert (fetch.why, fetch.first_reads) == ("a block is not what was asked for", {})


def test_the_source_may_have_less(fetch: Fetch, arriving: Arriving) -> None:
    arriving.take(FOUND, None)
    arriving.take(*Source(fetch).block(FIRST))
    arriving.take(Ended(1, "", is_all=True), None)
    assert (fetch.why, fetch.arrived) == ("", FIRST + 1)


def test_a_refusal_is_told(fetch: Fetch, arriving: Arriving) -> None:
    arriving.take(Ended(1, "it has no time", is_all=False), None)
    assert (fetch.why, fetch.arrived) == ("refused: it has no time", FIRST)


def test_another_tenants_block_does_not_open(fetch: Fetch, arriving: Arriving) -> None:
    """Refuse a block with the same tokens and position, but of another namespace."""
    arriving.take(FOUND, None)
    arriving.take(*Source(fetch).block(FIRST))  # positive control: a block of its own namespace
    assert fetch.arrived == FIRST + 1
    arriving.take(*Source(fetch).block(FIRST + 1, B))
    assert fetch.arrived == FIRST + 1
    assert fetch.why == "a block is not what was asked for"


@pytest.mark.parametrize("position", [FIRST - 1, FIRST + 1, END, 2**40])
def test_blocks_out_of_order_end_it(fetch: Fetch, arriving: Arriving, position: int) -> None:
    arriving.take(FOUND, None)
    arriving.take(Block(1, position), memoryview(bytes(BLOCK_BYTES + 16)))
    assert (fetch.why, fetch.arrived) == ("a block is not what was asked for", FIRST)


def test_a_block_without_a_payload_or_before_anything_was_found_ends_it(
    fetch: Fetch, memory: Memory, arriving: Arriving
) -> None:
    arriving.take(*Source(fetch).block(FIRST))
    assert fetch.is_over
    other = Fetch(fetch.wanted, FIRST, began=0.0, way="socket")
    arriving = Arriving(other, FINGERPRINT, ASKING, memory, None)
    arriving.take(FOUND, None)
    arriving.take(Block(1, FIRST), None)
    assert other.is_over


def test_nothing_is_written_once_it_is_closed(
    fetch: Fetch, memory: Memory, arriving: Arriving
) -> None:
    arriving.take(FOUND, None)
    arriving.take(*Source(fetch).block(FIRST))
    fetch.close()
    arriving.take(*Source(fetch).block(FIRST + 1))
    assert list(memory.blocks) == [100 + FIRST]
    assert fetch.arrived == FIRST + 1


def test_what_is_copied_from_a_neighbour_counts_once_it_says_it_was_held(
    fetch: Fetch, memory: Memory
) -> None:
    pools = Neighbour(memory)
    arriving = Arriving(fetch, FINGERPRINT, ASKING, memory, pools)
    arriving.take(replace_pool(FOUND), None)
    arriving.take(Source(fetch).slots(FIRST, SPAN), None)
    assert arriving.settle()
    assert (arriving.taken, fetch.arrived) == (SPAN, FIRST)
    arriving.take(Still(1, FIRST + 1), None)
    assert fetch.arrived == FIRST + 1
    arriving.take(Source(fetch).slots(SPAN, END), None)
    assert arriving.settle()
    assert not arriving.settle()
    arriving.take(Still(1, END), None)
    assert (fetch.why, fetch.arrived, fetch.way) == ("", END, "device")
    assert pools.copies == [([52, 53], [102, 103]), ([54, 55], [104, 105])]


def test_messages_are_looked_at_while_blocks_of_others_are_copied(
    fetch: Fetch, memory: Memory
) -> None:
    pools, source = Neighbour(memory), Source(fetch)
    arriving = Arriving(fetch, FINGERPRINT, ASKING, memory, pools)
    arriving.take(replace_pool(FOUND), None)
    for position in range(FIRST, FIRST + MOST_COPIES):
        arriving.take(source.slots(position, position + 1), None)
    assert not any(one.is_done for one in pools.events)
    arriving.take(Still(1, END), None)  # the engine reports done copies before they are done
    assert (arriving.taken, fetch.arrived) == (FIRST, FIRST)
    # more copies than may be pending at a time
    arriving.take(source.slots(FIRST + MOST_COPIES, END), None)
    assert [one.is_done for one in pools.events] == [True] + [False] * MOST_COPIES
    assert arriving.taken == FIRST + 1
    fetch.close()  # blocks are freed only once all copies are done
    assert fetch.writing is pools.events[-1]
    assert pools.events[-1].is_done


def test_bytes_do_not_come_where_slots_are_copied(fetch: Fetch, memory: Memory) -> None:
    """Refuse block bytes during a copy by slots: they would make blocks count before their copies
    are confirmed.
    """
    arriving = Arriving(fetch, FINGERPRINT, ASKING, memory, Neighbour(memory))
    arriving.take(replace_pool(FOUND), None)
    arriving.take(Source(fetch).slots(FIRST, FIRST + 1), None)
    arriving.take(*Source(fetch).block(FIRST + 1))
    assert (fetch.why, fetch.arrived) == ("a block is not what was asked for", FIRST)


def replace_pool(found: Found) -> Found:
    return Found(number=1, salt=found.salt, blocks=found.blocks, pool=HANDLE)


def test_slots_that_are_not_those_of_the_blocks_are_not_copied(
    fetch: Fetch, memory: Memory
) -> None:
    pools, source = Neighbour(memory), Source(fetch)
    sound = source.slots(FIRST, SPAN)
    other_fetch = Source(fetch, Seal(FINGERPRINT, ASKING, ASKING))
    for said in (
        replaced(sound, slots=sound.slots[4:] + sound.slots[:4]),  # slots of other blocks
        replaced(sound, slots=sound.slots[:-4] + bytes(4)),
        replaced(sound, slots=sound.slots[:-1]),
        replaced(sound, slots=sound.slots[:-4]),
        replaced(sound, slots=b""),
        replaced(sound, seal=sound.seal[:-1]),
        replaced(sound, seal=bytes([sound.seal[0] ^ 1]) + sound.seal[1:]),
        other_fetch.slots(FIRST, SPAN),
        source.slots(FIRST, SPAN, B),  # slots of another tenant
        source.slots(FIRST + 1, SPAN),
    ):
        one = said_at_first(fetch, memory, pools, said)
        assert (one.why, pools.copies) == ("a block is not what was asked for", [])
    one = said_at_first(fetch, memory, pools, sound)  # positive control
    assert (one.why, len(pools.copies)) == (None, 1)


def said_at_first(fetch: Fetch, memory: Memory, pools: Neighbour, said: Slots) -> Fetch:
    one = Fetch(fetch.wanted, FIRST, began=0.0, way="socket")
    arriving = Arriving(one, FINGERPRINT, ASKING, memory, pools)
    arriving.take(replace_pool(FOUND), None)
    arriving.take(said, None)
    return one


def replaced(said: Slots, slots: bytes | None = None, seal: bytes | None = None) -> Slots:
    changed = said.slots if slots is None else slots
    return Slots(
        number=1, first=said.first, slots=changed, seal=said.seal if seal is None else seal
    )


def test_slots_of_several_namespaces_are_not_of_one(fetch: Fetch, memory: Memory) -> None:
    """Refuse a message with blocks of two namespaces, whichever of the two it names."""
    pools, wanted = Neighbour(memory), fetch.wanted
    slots = np.arange(50 + FIRST, 50 + END, dtype="<i4").tobytes()
    keys, tokens = wanted.block_keys[16 * FIRST :], wanted.tokens[SIZE * FIRST :].tobytes()
    for namespace in (A, B):
        place = SealedPlace(FIRST, namespace, keys, tokens)
        seal = Source(fetch).seal.seal_slots(place, slots)
        said = Slots(number=1, first=FIRST, slots=slots, seal=seal)
        one = said_at_first(fetch, memory, pools, said)
        assert (one.why, pools.copies) == ("a block is not what was asked for", [])
    one_by_one = (Source(fetch).slots(FIRST, SPAN), Source(fetch).slots(SPAN, END))
    arriving = Arriving(fetch, FINGERPRINT, ASKING, memory, pools)
    arriving.take(replace_pool(FOUND), None)
    for said in one_by_one:  # positive control
        arriving.take(said, None)
    assert (fetch.why, len(pools.copies)) == (None, 2)


def test_a_message_that_comes_again_is_not_copied_again(fetch: Fetch, memory: Memory) -> None:
    pools, said = Neighbour(memory), Source(fetch).slots(FIRST, SPAN)
    arriving = Arriving(fetch, FINGERPRINT, ASKING, memory, pools)
    arriving.take(replace_pool(FOUND), None)
    arriving.take(said, None)
    assert (fetch.why, len(pools.copies)) == (None, 1)
    arriving.take(said, None)
    assert (fetch.why, len(pools.copies)) == ("a block is not what was asked for", 1)


@pytest.mark.parametrize("fails", [False, True])
def test_a_pool_out_of_reach_or_a_copy_that_fails_ends_it(
    fetch: Fetch, memory: Memory, fails: bool
) -> None:
    pools = Neighbour(memory, is_within_reach=fails, fails=fails)
    arriving = Arriving(fetch, FINGERPRINT, ASKING, memory, pools)
    arriving.take(replace_pool(FOUND), None)
    arriving.take(Source(fetch).slots(FIRST, SPAN), None)
    arriving.take(Still(1, END), None)
    assert fetch.why
    assert fetch.arrived == FIRST


def test_still_says_nothing_of_blocks_that_are_sent_as_bytes(
    fetch: Fetch, arriving: Arriving
) -> None:
    arriving.take(FOUND, None)
    arriving.take(Still(1, END), None)
    assert (fetch.arrived, fetch.is_over) == (FIRST, False)


UNITS = range(500, 502)  # slots of the two units of a state


@pytest.fixture
def with_state(fetch: Fetch) -> Fetch:
    wanted = replace(fetch.wanted, state_slot=7, state_units=UNITS)
    return Fetch(wanted, FIRST, began=0.0, way="socket")


def found_with_state(blocks: int, units: int = len(UNITS)) -> Found:
    return Found(number=1, salt=ANSWERING, blocks=blocks, state_units=units)


def unit(fetch: Fetch, end: int, number: int, last: int | None = None) -> tuple[Block, memoryview]:
    """Return unit `number` of the state at block `end`, sealed as a unit of the state at block
    `last`.
    """
    place = fetch.wanted.place_of_unit(last or end, number)
    assert place is not None
    sealed = Seal(FINGERPRINT, ASKING, ANSWERING).seal(
        replace(place, position=end + number), payload(end + number)
    )
    return Block(1, end + number), memoryview(sealed)


def test_blocks_count_once_the_state_after_them_is_there(with_state: Fetch, memory: Memory) -> None:
    """Count blocks only up to the state that was fetched, here one block before the end."""
    fetch, end = with_state, END - 1
    arriving = Arriving(fetch, FINGERPRINT, ASKING, memory, None)
    arriving.take(found_with_state(end), None)
    for message in (*map(Source(fetch).block, range(FIRST, end)), unit(fetch, end, 0)):
        arriving.take(*message)
        assert (fetch.arrived, fetch.units) == (FIRST, 0)
    arriving.take(*unit(fetch, end, 1))
    assert (fetch.arrived, fetch.units, fetch.why) == (end, end - FIRST + 2, "")
    slots = {**{at: 100 + at for at in range(FIRST, end)}, end: 500, end + 1: 501}
    assert memory.blocks == {slot: payload(at) for at, slot in slots.items()}


@pytest.mark.parametrize(
    "found",
    [
        found_with_state(END, units=0),
        found_with_state(END, units=3),
        found_with_state(FIRST),
        found_with_state(END + 1),
    ],
)
def test_a_state_that_cannot_be_ends_the_fetch(
    with_state: Fetch, memory: Memory, found: Found
) -> None:
    arriving = Arriving(with_state, FINGERPRINT, ASKING, memory, None)
    arriving.take(found, None)
    assert with_state.why == NOT_SOUND


def test_the_state_of_a_shorter_prefix_is_not_taken(with_state: Fetch, memory: Memory) -> None:
    arriving = Arriving(with_state, FINGERPRINT, ASKING, memory, None)
    arriving.take(found_with_state(END), None)
    for position in range(FIRST, END):
        arriving.take(*Source(with_state).block(position))
    arriving.take(*unit(with_state, END, 0, last=END - 1))
    assert (with_state.why, with_state.arrived) == (NOT_SOUND, FIRST)


def test_a_model_without_states_is_sent_none(fetch: Fetch, arriving: Arriving) -> None:
    arriving.take(found_with_state(END), None)
    assert fetch.why == NOT_SOUND
