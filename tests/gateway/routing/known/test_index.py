"""The cache index, compared with literal application of events, over a faulty network."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from engine.link.cache_events import Added, CacheEvents, Cleared, Moved, Removed
from engine.link.gateway_end.cache_subscription import CacheSubscription
from engine.queries import cache_feed
from engine.queries.cache_feed import CacheFeed
from gateway.routing.known.index import NOTHING, TIERS, CacheIndex, FoundBlocks
from gateway.routing.prompt import keys_of
from prefix_cache.hashing import KEY_BYTES, TokenIds
from prefix_cache.namespace import NamespacePath
from tests.doubles.engine.cache_listener import CacheListener, split_keys
from tests.examples import examples
from tests.gateway.routing.requests import cached, chained, events
from tests.prefix_cache.support.scene import path, tokens
from tests.prefix_cache.support.tiers_scene import TierScene

REPLICAS = ("one", "two")
PROMPTS = [tokens(*head, *tail) for head in ((1, 1), (1, 2), (3, 3)) for tail in ((), (4, 5, 6, 7))]
PROMPTS += [tokens(*([1] * 24)), tokens(*([1] * 12 + [2] * 12)), tokens(*range(10, 34))]
PATHS = (path("published", "tenant"), path("other"))


def literal(listener: CacheListener, block_keys: bytes) -> tuple[int, int, int]:
    """Count a prompt's blocks by tier in the listener, up to the first missing block."""
    counts = {"device": 0, "host": 0, "disk": 0}
    for key in split_keys(block_keys):
        if key not in listener.held:
            break
        counts[listener.held[key]] += 1
    return counts["device"], counts["host"], counts["disk"]


def by_tier(index: CacheIndex, block_keys: bytes, replica: str) -> tuple[int, int, int]:
    """Count a prompt's blocks on a replica's device, host and disk, as a router asks for them."""
    keys = keys_of(block_keys)
    found = index.find(keys, [replica]).get(replica, NOTHING)
    if not found.is_lower:
        return found.blocks, 0, 0
    host, disk = index.lower(replica, keys, found.blocks)
    return found.blocks - host - disk, host, disk


class Wire:
    """One engine's cache and event feed, the network, and the gateway's end of the network."""

    def __init__(self, name: str, index: CacheIndex) -> None:
        self.scene = TierScene(12, 2, host=10, disk=16)
        self.feed = CacheFeed(self.scene.cache.tree)
        self.on_the_way: list[CacheEvents] = []
        self.old: list[CacheEvents] = []  # events that the network may deliver again
        self.listener = CacheListener()
        self._name, self._index = name, index
        self.subscription = CacheSubscription(
            self._hear, lambda message: self.feed.heard(b"", message)
        )

    def _hear(self, one: CacheEvents) -> None:
        self.listener.hear(one)
        self._index.apply(self._name, one)

    def _send(self, _: bytes, one: CacheEvents) -> bool:
        self.on_the_way.append(one)
        return True

    def publish(self) -> None:
        self.feed.publish(self._send)

    def serve(self, where: NamespacePath, prompt: TokenIds) -> None:
        scene = self.scene
        lease = scene.acquire_loading(where, prompt, None)
        while lease is None:  # copies to lower tiers first make room
            scene.end_copies()
            lease = scene.acquire_loading(where, prompt, None)
        while not lease.ready:
            scene.end_copies()
        scene.compute(lease, prompt, lease.cached_tokens, len(prompt))
        scene.commit(lease, prompt)
        scene.release(lease)

    def deliver(self) -> None:
        if self.on_the_way:
            one = self.on_the_way.pop(0)
            self.old = [*self.old[-3:], one]
            self.subscription.receive(one)

    def held(self) -> dict[bytes, str]:
        return {
            node.edge.key(at): tier.value
            for node in self.scene.cache.tree.nodes()
            for tier in self.scene.cache.capacity.allocators
            for at in range(*node.edge.run_in(tier))
        }


class Chaos(RuleBasedStateMachine):
    """Caches that change while messages are lost, repeated and late: an index error costs at most a
    miss.
    """

    @initialize()
    def start(self) -> None:
        self.index = CacheIndex()
        self.wires = {name: Wire(name, self.index) for name in REPLICAS}
        self.served = 100

    @rule(
        name=st.sampled_from(REPLICAS),
        prompts=st.lists(st.tuples(st.sampled_from(PATHS), st.sampled_from(PROMPTS)), max_size=3),
        flushes=st.sampled_from((False, False, False, True)),
        fates=st.lists(st.sampled_from(["deliver", "lose", "repeat", "later"]), max_size=4),
    )
    def step(
        self,
        name: str,
        prompts: list[tuple[NamespacePath, TokenIds]],
        flushes: bool,
        fates: list[str],
    ) -> None:
        """Let an engine serve these prompts, and report its changes over the faulty network."""
        wire = self.wires[name]
        if flushes:
            wire.scene.cache.flush()
        for where, prompt in prompts:
            wire.serve(where, prompt)
        wire.publish()
        for fate in fates:
            if fate == "repeat":
                wire.on_the_way += wire.old[:1]
            elif fate == "later":
                wire.on_the_way = wire.on_the_way[1:] + wire.on_the_way[:1]
            elif fate == "lose":
                del wire.on_the_way[:1]
            else:
                wire.deliver()

    @rule(name=st.sampled_from(REPLICAS), is_replaced=st.sampled_from((False, False, True)))
    def heal(self, name: str, is_replaced: bool) -> None:
        """Repair the network. After a snapshot the index must be right."""
        if is_replaced:  # another engine with an empty cache replaces this engine
            self.index.forget(name)
            self.wires[name] = Wire(name, self.index)
        wire = self.wires[name]
        for number in range(3):  # each message reveals the loss of the message before it
            wire.serve(PATHS[0], tokens(50 + number, self.served, self.served))
            self.served += 1
            wire.publish()
            while wire.on_the_way or wire.feed.has_more:
                while wire.on_the_way:
                    wire.deliver()
                wire.publish()
        assert wire.listener.held == wire.held()
        assert self.index.blocks(name) == len(wire.held())

    @invariant()
    def answers_as_who_takes_events_literally(self) -> None:
        for where in PATHS:
            for prompt in PROMPTS:
                block_keys = self.wires["one"].scene.keys(where, prompt)
                found = self.index.find(keys_of(block_keys), REPLICAS)
                for name, wire in self.wires.items():
                    got = found.get(name, NOTHING)
                    assert 0 <= got.blocks <= len(block_keys) // KEY_BYTES
                    if is_closed(wire.listener, block_keys):
                        exact = literal(wire.listener, block_keys)
                        assert (got.blocks, got.is_lower) == (sum(exact), any(exact[1:]))
                        assert by_tier(self.index, block_keys, name) == exact


def is_closed(listener: CacheListener, block_keys: bytes) -> bool:
    """Return whether the listener has only a beginning of the prompt, with faster tiers first."""
    levels = [
        ("device", "host", "disk").index(listener.held[key]) if key in listener.held else 3
        for key in split_keys(block_keys)
    ]
    return levels == sorted(levels)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pieces small, so that a snapshot of about ten blocks takes several messages."""
    monkeypatch.setattr(cache_feed, "PIECE_BLOCKS", 4)


def test_whatever_the_network_does_the_index_is_right_after_a_snapshot() -> None:

    run_state_machine_as_test(
        Chaos,
        settings=settings(stateful_step_count=30),
    )


def test_every_replica_is_asked_at_once() -> None:
    index = CacheIndex()
    index.apply("long", cached(*range(100)))
    index.apply("short", cached(*range(7)))
    index.apply("other", cached(*range(1, 100)))
    found = index.find(keys_of(chained(*range(200))), ["long", "short", "other", "unknown"])
    assert found == {"long": FoundBlocks(100), "short": FoundBlocks(7)}
    assert index.find(keys_of(b""), ["long"]) == {}
    assert index.find(keys_of(chained(*range(3))[:-1]), ["long"]) == {
        "long": FoundBlocks(2)
    }  # cuts off the keys


def test_blocks_are_counted_by_their_tiers() -> None:
    index, keys = CacheIndex(), chained(*range(10))
    index.apply("r", events(Added("device", keys)))
    index.apply("r", events(Moved("host", keys[4 * KEY_BYTES :]), Moved("disk", keys[-KEY_BYTES:])))
    assert index.find(keys_of(keys), ["r"]) == {"r": FoundBlocks(10, is_lower=True)}
    assert by_tier(index, keys, "r") == (4, 5, 1)
    assert by_tier(index, keys[: 6 * KEY_BYTES], "r") == (4, 2, 0)
    assert index.find(keys_of(keys[: 4 * KEY_BYTES]), ["r"]) == {"r": FoundBlocks(4)}
    index.apply("r", events(Removed(keys[8 * KEY_BYTES :])))
    assert by_tier(index, keys, "r") == (4, 4, 0)
    index.apply("r", events(Cleared()))
    assert index.find(keys_of(keys), ["r"]) == {}


def test_of_a_long_prompt_tiers_are_told_to_a_part_of_it() -> None:
    index, keys, step = CacheIndex(), chained(*range(640)), 10
    for device, host in ((0, 0), (5, 0), (320, 7), (333, 200), (399, 33), (600, 40), (640, 0)):
        lower = keys[device * KEY_BYTES :]
        index.apply("r", events(Cleared(), Added("device", keys), Moved("host", lower)))
        index.apply("r", events(Moved("disk", lower[host * KEY_BYTES :])))
        on_device, in_host, on_disk = by_tier(index, keys, "r")
        assert on_device + in_host + on_disk == 640, "that is told to the block"
        assert device - step < on_device <= device
        assert device + host - step < on_device + in_host <= device + host
        assert index.find(keys_of(keys[: 555 * KEY_BYTES]), ["r"])["r"].blocks == 555


@examples(4)
@given(st.data())
def test_all_lengths_are_found(data: st.DataObject) -> None:
    total = data.draw(st.integers(1, 40))
    keys = chained(*range(total))
    index, expected = CacheIndex(), dict[str, tuple[int, int, int]]()
    for number in range(6):
        ends = sorted(data.draw(st.tuples(*[st.integers(0, total)] * 3)))
        at = [KEY_BYTES * end for end in ends]
        name = str(number)
        index.apply(name, events(Added("device", keys[: at[0]])))
        index.apply(name, events(Added("host", keys[at[0] : at[1]])))
        index.apply(name, events(Added("disk", keys[at[1] : at[2]])))
        if ends[2]:
            expected[name] = ends[0], ends[1] - ends[0], ends[2] - ends[1]
    found = index.find(keys_of(keys), [str(number) for number in range(6)])
    assert found == {
        name: FoundBlocks(sum(exact), any(exact[1:])) for name, exact in expected.items()
    }
    assert {name: by_tier(index, keys, name) for name in found} == expected


@examples(4)
@given(st.data())
def test_where_blocks_are_missing_in_between_an_answer_ends_at_one_that_is_there(
    data: st.DataObject,
) -> None:
    """Count up to a block that is present, even if blocks before it are missing, as after a
    snapshot.

    The count may end before any missing block, since the engine itself knows its blocks.
    """
    total = data.draw(st.integers(1, 30))
    contents, index = [*range(total)], CacheIndex()
    keys = split_keys(chained(*contents))
    held = data.draw(st.lists(st.sets(st.sampled_from(keys)), min_size=1, max_size=5))
    for number, some in enumerate(held):
        tier = data.draw(st.sampled_from(TIERS))
        index.apply(str(number), events(Added(tier, b"".join(some))))
    found = index.find(keys_of(b"".join(keys)), [str(number) for number in range(len(held))])
    for number, some in enumerate(held):
        assert (str(number) in found) is (keys[0] in some)
        blocks = found.get(str(number), NOTHING).blocks
        assert not blocks or keys[blocks - 1] in some
        assert blocks == total or keys[blocks] not in some
        device, host, disk = by_tier(index, b"".join(keys), str(number))
        assert min(device, host, disk) >= 0


@given(st.binary(max_size=100))
def test_keys_that_are_none_harm_nothing(garbage: bytes) -> None:
    index = CacheIndex()
    index.apply("r", events(Added("device", garbage), Removed(garbage), Moved("disk", garbage)))
    assert index.blocks("r") <= 6


@pytest.mark.parametrize("is_ordered", [True, False])
def test_a_lost_message_is_noticed_and_only_because_of_its_number(is_ordered: bool) -> None:
    index = CacheIndex()
    wire = Wire("one", index)
    wire.serve(PATHS[0], PROMPTS[0])
    wire.publish()
    wire.deliver()
    wire.scene.cache.flush()
    wire.publish()
    wire.on_the_way.clear()  # loses the messages that are being sent
    wire.serve(PATHS[1], PROMPTS[1])
    for _ in range(4):
        wire.publish()
        while wire.on_the_way:
            if is_ordered:
                wire.deliver()
            else:
                wire._hear(wire.on_the_way.pop(0))
    assert (index.blocks("one") == len(wire.held())) is is_ordered
