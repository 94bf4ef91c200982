"""The cache's events for gateways: complete, in order, and no faster than they are read."""

from __future__ import annotations

from random import Random

import pytest

from engine.link.cache_events import CacheEvents, EventsTaken, Removed, Subscribe, TierName
from engine.link.query_messages import Flush
from engine.queries import cache_feed
from engine.queries.cache_feed import MOST_UNDER_WAY, CacheFeed
from prefix_cache.cache import PrefixCache
from prefix_cache.tiers.tier_pools import Tiers
from prefix_cache.tree.changes import MOST_KEYS
from storage.move import Tier
from tests.doubles.engine.cache_listener import CacheListener, split_keys
from tests.engine.rigs.rig import Rig, generate
from tests.engine.sequences.test_pins import pin
from tests.prefix_cache.support.scene import Scene, path, tokens

GATEWAY = b"gateway"
BLOCK = 16  # number of bytes in a key


def held_by(cache: PrefixCache) -> dict[bytes, TierName]:
    return {
        node.edge.key(at): tier.value
        for node in cache.tree.nodes()
        for tier in Tier
        for at in range(*node.edge.run_in(tier))
    }


class Gateway:
    """A gateway that reads the events sent to it, unless it is slow."""

    def __init__(self, name: bytes = GATEWAY) -> None:
        self.name = name
        self.listener = CacheListener()
        self.numbers: list[int] = []
        self.is_gone = False

    def take(self, client: bytes, events: CacheEvents) -> bool:
        assert client == self.name
        if not self.is_gone:
            self.numbers.append(events.number)
            self.listener.hear(events)
        return not self.is_gone


def test_a_gateway_that_subscribes_hears_all_and_then_what_changes() -> None:
    tiers = Tiers(host_blocks=12, disk_blocks=40)
    rig = Rig(num_blocks=24, context_len=48, tiers=tiers)
    rig.submit(generate("before", range(40)))
    rig.run()
    assert rig.cache.tree.changes is None  # without a listener no changes are recorded
    rig.link.say(Subscribe())
    listener, random = CacheListener(), Random(5)
    for number in range(30):
        start = random.randrange(4)
        prompt = [start, *range(2, 2 + random.randrange(3, 40)), random.randrange(60)]
        rig.submit(generate(f"r{number}", prompt))
        rig.run()
        if number == 20:
            rig.link.say(Flush(query_id="f"))
            rig.step()
        heard = [one for one in rig.link.sent[GATEWAY] if isinstance(one, CacheEvents)]
        rig.link.sent[GATEWAY].clear()
        for events in heard:
            listener.hear(events)
            rig.link.say(EventsTaken(events.number))
        assert listener.held == held_by(rig.cache)
        if number == 22:
            pinned = tuple(range(40, 52))
            rig.link.say(pin("rules", pinned))
            rig.run()
    assert {"Cleared", "Added", "Moved", "Removed"} == set(listener.kinds)
    assert set(split_keys(pin("rules", pinned).block_keys)) <= set(listener.held)


def test_a_large_tree_is_told_in_pieces_that_hold_no_turn_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cache_feed, "PIECE_BLOCKS", 20)
    scene = Scene(600, 2)
    for number in range(50):
        scene.run(path("tenant"), tokens(number, *range(100, 119)))
    feed, gateway = CacheFeed(scene.cache.tree), Gateway()
    feed.heard(GATEWAY, Subscribe())
    turns = 0
    while feed.has_more:
        feed.publish(gateway.take)
        feed.heard(GATEWAY, EventsTaken(gateway.numbers[-1]))
        turns += 1
        scene.run(path("tenant"), tokens(1, 2, turns))  # meanwhile the cache changes
    feed.publish(gateway.take)
    assert turns >= 25
    assert gateway.listener.held == held_by(scene.cache)
    assert gateway.listener.kinds.count("Cleared") == 1


def test_a_gateway_that_takes_nothing_is_sent_no_more_and_a_snapshot_when_it_has_caught_up() -> (
    None
):
    scene = Scene(600, 2)
    feed, gateway = CacheFeed(scene.cache.tree), Gateway()
    feed.heard(GATEWAY, Subscribe())
    for number in range(3 * MOST_UNDER_WAY):
        scene.run(path("tenant"), tokens(number, number, 7))
        feed.publish(gateway.take)
    assert len(gateway.numbers) == MOST_UNDER_WAY + 1
    assert not feed.has_more
    feed.heard(GATEWAY, EventsTaken(gateway.numbers[-1]))
    assert feed.has_more
    feed.publish(gateway.take)
    assert gateway.numbers == list(range(MOST_UNDER_WAY + 2))  # without gaps
    assert gateway.listener.held == held_by(scene.cache)
    assert gateway.listener.kinds.count("Cleared") == 2


def test_a_gateway_that_subscribes_again_gets_a_snapshot_whatever_has_become_of_the_rest() -> None:
    scene = Scene(600, 2)
    feed, gateway = CacheFeed(scene.cache.tree), Gateway()
    feed.heard(GATEWAY, Subscribe())
    # both these messages and the acknowledgements are lost
    for number in range(2 * MOST_UNDER_WAY):
        scene.run(path("tenant"), tokens(number, number, 7))
        feed.publish(gateway.take)
    assert gateway.listener.held != held_by(scene.cache)
    feed.heard(GATEWAY, Subscribe())
    feed.publish(gateway.take)
    assert gateway.listener.held == held_by(scene.cache)


def test_a_gateway_that_is_behind_and_gone_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_feed, "SIGN_EVERY", 5)
    scene = Scene(600, 2)
    feed, gateway = CacheFeed(scene.cache.tree), Gateway()
    feed.heard(GATEWAY, Subscribe())
    for number in range(MOST_UNDER_WAY + 8):
        scene.run(path("tenant"), tokens(number, number, 7))
        feed.publish(gateway.take)
    # the last message only shows that the engine is alive
    assert len(gateway.numbers) == MOST_UNDER_WAY + 2
    gateway.is_gone = True
    for _ in range(4):
        feed.publish(gateway.take)
    assert scene.cache.tree.changes is None


def test_more_changes_than_are_kept_are_made_good_by_a_snapshot() -> None:
    scene = Scene(8, 2)
    feed, gateway = CacheFeed(scene.cache.tree), Gateway()
    feed.heard(GATEWAY, Subscribe())
    feed.publish(gateway.take)
    assert scene.cache.tree.changes is not None
    scene.run(path("tenant"), tokens(1, 2, 3, 4))
    scene.cache.tree.changes.removed(bytes(BLOCK * (MOST_KEYS + 1)))
    feed.publish(gateway.take)
    assert gateway.listener.held == held_by(scene.cache) != {}
    assert gateway.listener.kinds == ["Cleared", "Cleared", "Added"]


def test_a_message_has_no_more_keys_than_about_a_piece() -> None:
    scene = Scene(8, 2)
    feed, gateway = CacheFeed(scene.cache.tree), Gateway()
    feed.heard(GATEWAY, Subscribe())
    feed.publish(gateway.take)
    assert scene.cache.tree.changes is not None
    for _ in range(4):
        scene.cache.tree.changes.removed(bytes(BLOCK * cache_feed.PIECE_BLOCKS))
        scene.cache.tree.changes.added(scene.cache.tree.root.edge)
        scene.run(path("tenant"), tokens(1, 2))
        scene.cache.flush()
    sizes: list[int] = []

    def measure(_: bytes, events: CacheEvents) -> bool:
        sizes.append(sum(len(one.keys) for one in events.changes if isinstance(one, Removed)))
        return True

    feed.publish(measure)
    assert len(sizes) >= 4
    assert max(sizes) <= cache_feed.MESSAGE_BYTES + BLOCK


def test_every_gateway_has_numbers_of_its_own_and_one_that_is_gone_costs_nothing_more() -> None:
    scene = Scene(64, 2)
    feed = CacheFeed(scene.cache.tree)
    gateways = {name: Gateway(name) for name in (b"one", b"two")}

    def send(client: bytes, events: CacheEvents) -> bool:
        return gateways[client].take(client, events)

    feed.heard(b"one", Subscribe())
    feed.publish(send)
    scene.run(path("tenant"), tokens(1, 2, 3, 4))
    feed.heard(b"two", Subscribe())
    feed.publish(send)
    assert gateways[b"one"].numbers == [0, 1]
    assert gateways[b"two"].numbers == [0]
    assert gateways[b"one"].listener.held == gateways[b"two"].listener.held != {}
    feed.heard(b"nobody", EventsTaken(3))
    feed.heard(b"two", EventsTaken(99))  # a number that was never sent
    for gateway in gateways.values():
        gateway.is_gone = True
    scene.run(path("tenant"), tokens(5, 6, 7, 8))
    feed.publish(send)
    assert scene.cache.tree.changes is None
