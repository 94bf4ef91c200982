"""A pinned prefix is computed once and kept while others are evicted. All pins are bounded.

The whole engine runs with the real cache and scheduler, and a runner without tensors.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from engine.errors import NumericFailure
from engine.link.messages import pack_token_ids
from engine.link.query_messages import Flush, Pin, Pinned, Unpin, Unpinned
from engine.link.stats.flow_stats import PinStats
from engine.sequences.pins import AWAITED_S, RETRY_S, TRIES, Pins, most_pinned
from prefix_cache.cache import PrefixCache
from prefix_cache.hashing import block_keys
from prefix_cache.namespace import Namespace, NamespacePath
from prefix_cache.tiers.tier_pools import Tiers
from tests.engine.rigs.rig import CLIENT, NAMESPACE, OTHER, Rig, generate

PUBLISHED = Namespace(b"p" * 16)
PREFIX = list(range(40, 56))  # tokens of four blocks


def rig(num_blocks: int = 64, **settings: Any) -> Rig:
    """Make a rig for requests of up to 16 blocks, so that half of the pool may be pinned."""
    return Rig(num_blocks=num_blocks, context_len=64, **settings)


def pin(
    pin_id: str = "rules-1",
    tokens: Iterable[int] = PREFIX,
    *,
    query_id: str = "q",
    namespace: bytes = PUBLISHED,
) -> Pin:
    ids = np.array(list(tokens), np.int32)
    keys = b""
    if len(namespace) == 16:
        keys = block_keys(NamespacePath.single(Namespace(namespace)), ids, 4)
    return Pin(
        query_id=query_id,
        pin_id=pin_id,
        token_ids=pack_token_ids(ids),
        namespace=namespace,
        block_keys=keys,
    )


def answers(rig: Rig, client: bytes = CLIENT) -> list[Pinned]:
    return [message for message in rig.link.sent[client] if isinstance(message, Pinned)]


def pins(rig: Rig) -> PinStats:
    return rig.core.stats().pins


def pin_and_run(rig: Rig, wanted: Pin | None = None) -> Pinned:
    rig.link.say(wanted or pin(), CLIENT)
    rig.run()
    return answers(rig)[-1]


def ask(rig: Rig, name: str, tail: list[int], flow: str = "tenant") -> int:
    """Send a request with the pinned prefix; return the number of cached tokens."""
    prompt = PREFIX + tail
    request = generate(name, prompt, flow=flow, max_tokens=2)
    path = NamespacePath(((0, PUBLISHED), (4, NAMESPACE)))
    keys = block_keys(path, np.array(prompt, np.int32), 4)
    rig.submit(
        type(request)(
            request_id=name,
            token_ids=request.token_ids,
            namespaces=path.spans,
            block_keys=keys,
            flow=flow,
            sampling=request.sampling,
        )
    )
    rig.run()
    return rig.finished(name).reused.tokens


@pytest.mark.parametrize("num_states", [0, 16])
def test_a_pinned_prefix_is_computed_once_and_is_a_hit_for_whoever_comes_first(
    num_states: int,
) -> None:
    """Compute a pinned prefix once; its first request finds it cached.

    With recurrent states, the prefix may have any length: the pin holds the state at its end.
    """
    cold, warm = rig(num_states=num_states), rig(num_states=num_states)
    assert ask(cold, "control", [1, 2, 3]) == 0
    assert pin_and_run(warm) == Pinned(query_id="q", blocks=4)
    assert ask(warm, "first", [1, 2, 3]) == 16
    assert pins(warm) == PinStats(most=32, claimed=4, pinned={"rules-1": 4})


def test_the_warming_sequence_sends_no_events_to_clients() -> None:
    warm = rig()
    pin_and_run(warm)
    assert [type(message) for message in warm.link.sent[CLIENT]] == [Pinned]
    assert set(warm.link.sent) == {CLIENT}


@pytest.mark.parametrize("num_states", [0, 16])
def test_a_pinned_prefix_is_never_evicted_while_others_are(num_states: int) -> None:
    warm = rig(num_states=num_states)
    pin_and_run(warm)
    warm.submit(generate("other", range(16), max_tokens=1, flow="push"))
    warm.run()
    for _ in range(6):
        warm.push_out(40)
    assert ask(warm, "later", [1, 2, 3]) == 16
    warm.submit(generate("again", range(16), max_tokens=1))
    warm.run()
    assert warm.finished("again").reused.tokens == 0


def test_an_unpinned_prefix_is_evicted_like_the_others() -> None:
    warm = rig()
    pin_and_run(warm)
    warm.link.say(Unpin(query_id="u", pin_id="rules-1"), CLIENT)
    warm.step()
    assert warm.link.sent[CLIENT][-1] == Unpinned(query_id="u", blocks=4)
    assert pins(warm) == PinStats(most=32)
    assert ask(warm, "still there", [1, 2, 3], flow="push") == 16
    for _ in range(6):
        warm.push_out(60)
    assert ask(warm, "gone", [1, 2, 3]) == 0
    warm.expect_nothing_left()


def test_unpinning_what_is_not_pinned_is_no_harm() -> None:
    warm = rig()
    warm.link.say(Unpin(query_id="u", pin_id="nothing"), CLIENT)
    warm.step()
    assert warm.link.sent[CLIENT] == [Unpinned(query_id="u", blocks=0)]


def test_several_gateways_ask_for_the_same() -> None:
    warm = rig()
    for client in (b"one", b"two"):
        warm.link.say(pin(query_id=client.decode()), client)
    warm.run()
    warm.link.say(pin(query_id="late"), b"one")
    warm.step()
    assert [a.query_id for a in answers(warm, b"one")] == ["one", "late"]
    assert [a.query_id for a in answers(warm, b"two")] == ["two"]
    assert all(a.blocks == 4 for client in (b"one", b"two") for a in answers(warm, client))
    assert pins(warm).claimed == 4
    assert warm.core.stats().windows["all"].computed_tokens == 16


def test_blocks_that_a_tenant_computed_are_charged_to_published_once_pinned() -> None:
    warm = rig()
    assert ask(warm, "before", [1, 2, 3, 4], flow="tenant") == 0
    assert warm.core.stats().flows["tenant"].blocks_held == 5
    pin_and_run(warm)
    assert warm.core.stats().flows["tenant"].blocks_held == 1
    assert warm.cache.capacity.owners()["published"].blocks_held == 4
    assert warm.core.stats().windows["all"].computed_tokens == 20  # no token was computed twice
    warm.link.say(Flush(query_id="f", flow="tenant"), CLIENT)
    warm.step()
    assert ask(warm, "after", [1, 2, 3, 4]) == 16


def test_two_versions_share_what_they_have_in_common() -> None:
    warm = rig()
    pin_and_run(warm)
    pin_and_run(warm, pin("rules-2", [*PREFIX[:8], *range(8)]))
    assert warm.core.stats().windows["all"].computed_tokens == 16 + 8
    warm.link.say(Unpin(query_id="u", pin_id="rules-1"), CLIENT)
    for _ in range(6):
        warm.push_out(56)
    assert ask(warm, "old", [1, 2, 3]) == 8
    warm.cache.check_invariants()


@pytest.mark.parametrize("namespace", [None, PUBLISHED])
def test_a_flush_computes_it_anew(namespace: Namespace | None) -> None:
    warm = rig()
    pin_and_run(warm)
    warm.link.say(Flush(query_id="f", namespace=namespace), CLIENT)
    warm.run()
    assert warm.core.stats().windows["all"].computed_tokens == 32
    assert pins(warm).pinned == {"rules-1": 4}
    assert ask(warm, "after", [1, 2, 3]) == 16


def test_a_pin_that_is_too_large_is_refused() -> None:
    warm = rig()
    assert pin_and_run(warm, pin(tokens=[1] * 33 * 4)).code == "pin_too_large"
    assert pins(warm).claimed == 0


def test_together_they_leave_room_for_the_longest_request() -> None:
    warm = rig(num_blocks=24)  # the longest request needs 16 blocks
    assert pin_and_run(warm, pin("a")).blocks == 4
    assert pin_and_run(warm, pin("b", range(16))).blocks == 4
    refused = pin_and_run(warm, pin("c", range(1, 17)))
    assert (refused.code, refused.blocks) == ("no_room_to_pin", 0)
    longest = generate("longest", [7] * 60, max_tokens=4)
    warm.submit(longest)
    warm.run()
    warm.expect_output(longest)
    warm.link.say(Unpin(query_id="u", pin_id="a"), CLIENT)
    assert pin_and_run(warm, pin("c", range(1, 17))).blocks == 4


@pytest.mark.parametrize(
    ("num_blocks", "longest", "most"), [(64, 16, 32), (24, 16, 8), (16, 16, 0), (10, 16, 0)]
)
def test_how_much_may_be_pinned(num_blocks: int, longest: int, most: int) -> None:
    assert most_pinned(num_blocks, longest) == most


@pytest.mark.parametrize(
    "bad",
    [
        pin(tokens=[]),
        pin(tokens=range(6)),
        pin(namespace=b"short"),
        pin(tokens=[1, 2, 3, 10**6]),
        Pin(query_id="q", pin_id="x", token_ids=b"123", namespace=PUBLISHED, block_keys=b""),
        Pin(
            query_id="q",
            pin_id="x",
            token_ids=pack_token_ids(PREFIX),
            namespace=PUBLISHED,
            block_keys=b"",
        ),
    ],
)
def test_a_malformed_pin_is_refused_and_claims_nothing(bad: Pin) -> None:
    warm = rig()
    assert pin_and_run(warm, bad).code == "invalid_request"
    assert pins(warm).claimed == 0
    warm.expect_nothing_left()


def test_an_engine_at_fault_says_so_and_the_next_try_is_good() -> None:
    warm = rig()
    warm.runner.raising = [MemoryError(), MemoryError()]
    assert pin_and_run(warm).code == "engine_failure"
    assert pins(warm).claimed == 0
    assert pin_and_run(warm).blocks == 4


def test_a_lost_pin_is_warmed_again_until_it_is_back() -> None:
    warm = rig()
    pin_and_run(warm)
    warm.runner.raising = [MemoryError(), MemoryError()]
    warm.link.say(Flush(query_id="f"), CLIENT)
    warm.run()
    assert pins(warm) == PinStats(most=32, claimed=4, pinned={})
    warm.clock.now += RETRY_S
    warm.run()
    assert pins(warm).pinned == {"rules-1": 4}
    assert len(answers(warm)) == 1


def test_a_prefix_that_does_not_stay_is_given_up_and_told() -> None:
    """Give up and report a pin whose prefix is flushed each time before it can be leased."""
    warm = rig(max_batch_tokens=8)
    computed = warm.runner.tokens_computed
    warm.link.say(pin(), CLIENT)
    for _ in range(12 * TRIES):
        warm.step()
        warm.cache.flush()
    [told] = answers(warm)
    assert (told.code, told.blocks) == ("engine_failure", 0)
    assert pins(warm) == PinStats(most=32)
    assert warm.runner.tokens_computed - computed == 16 * TRIES
    warm.run()
    assert pin_and_run(warm, pin(query_id="again")) == Pinned(query_id="again", blocks=4)


def test_a_failed_warming_is_retried_only_after_a_pause() -> None:
    warm = rig()
    pin_and_run(warm)
    warm.runner.raising = [MemoryError()] * 2
    warm.link.say(Flush(query_id="f"), CLIENT)
    warm.run()
    computed = warm.runner.tokens_computed
    warm.clock.now += RETRY_S / 2
    warm.run()
    assert (warm.runner.tokens_computed, pins(warm).pinned) == (computed, {})
    warm.clock.now += RETRY_S / 2
    warm.run()
    assert pins(warm).pinned == {"rules-1": 4}


def test_asked_for_again_it_is_leased_once() -> None:
    warm = rig()
    for name in ("q", "again", "and again"):
        assert pin_and_run(warm, pin(query_id=name)) == Pinned(query_id=name, blocks=4)
    assert warm.cache.capacity.pool().leased == 4
    warm.link.say(Unpin(query_id="u", pin_id="rules-1"), CLIENT)
    warm.run()
    warm.expect_nothing_left()


def test_unpinned_while_it_is_computed() -> None:
    warm = rig(max_batch_tokens=8)
    warm.link.say(pin(), CLIENT)
    warm.step()
    warm.link.say(Unpin(query_id="u", pin_id="rules-1"), CLIENT)
    warm.run()
    assert answers(warm)[0].code == "refused"
    assert pin_and_run(warm, pin(query_id="again")) == Pinned(query_id="again", blocks=4)


def test_a_full_queue_puts_it_off() -> None:
    warm = rig(max_waiting=1, max_running=1)
    warm.submit(generate("runs", range(6), max_tokens=6))
    warm.step()
    warm.submit(generate("waits", range(6)))
    warm.link.say(pin(), CLIENT)
    warm.run()
    [refused] = answers(warm)
    assert refused.code == "queue_full"
    assert pin_and_run(warm).blocks == 4


def test_a_draining_engine_ends_all_the_same() -> None:
    warm = rig(max_batch_tokens=8)
    warm.link.say(pin(), CLIENT)
    warm.step()
    warm.core.drain()
    warm.core.fail_all(NumericFailure("stopped"))
    assert answers(warm)[0].code == "numeric_failure"
    assert warm.core.is_idle


@pytest.mark.parametrize("by", ["published", "tenant"])
def test_a_prefix_in_a_lower_tier_is_loaded_and_pinned_whoever_owns_it(by: str) -> None:
    warm = Rig(num_blocks=32, context_len=64, max_batch_tokens=128, tiers=Tiers(host_blocks=64))
    for name in ("before", "again"):
        ask(warm, name, [1, 2, 3], flow=by)
    for number in range(2):  # together the pins would need all blocks
        prompt = range(number, number + 60)
        warm.submit(generate(f"large {number}", prompt, flow=f"{number}", namespace=OTHER))
    warm.run()
    warm.settle_copies()
    found = warm.cache.tree.match(NamespacePath.single(PUBLISHED), np.array(PREFIX, np.int32)).found
    assert (found.device + found.host, found.host) in ((4, 3), (4, 4))
    pin_and_run(warm)
    assert pins(warm).pinned == {"rules-1": 4}
    assert ask(warm, "after", [60, 61, 62]) == 16
    warm.cache.check_invariants()


class Awaited:
    """A cache's pins that wait for fetched prefixes of four blocks."""

    def __init__(self, most_blocks: int) -> None:
        self.cache = PrefixCache(num_blocks=32, block_size=4)
        self.pins = Pins(self.cache, most_blocks)

    def fetched(self, begin: int, now: float) -> Pin:
        """Fetch a prefix; return the message that pins it."""
        path, ids = NamespacePath.single(PUBLISHED), np.arange(begin, begin + 16, dtype=np.int32)
        said = pin(f"{begin}", ids.tolist())
        tokens = np.append(ids, np.int32(0))
        lease = self.cache.acquire(path, tokens, owner="published", now=now)
        assert lease is not None
        self.cache.commit(lease, tokens, len(ids), said.block_keys, now=now)
        self.cache.release(lease, now=now)
        self.pins.await_pin(path, ids, said.block_keys, now)
        return said

    @property
    def leased(self) -> int:
        self.cache.check_invariants()
        return self.cache.capacity.pool().leased


def test_what_was_fetched_is_held_until_it_is_pinned_or_for_a_moment() -> None:
    rig = Awaited(most_blocks=16)
    said = rig.fetched(0, now=0.0)
    rig.fetched(100, now=0.0)
    rig.fetched(100, now=0.0)  # fetched again, for another gateway
    assert rig.leased == 8
    [(_, pinned)] = rig.pins.ask(CLIENT, said, 0.0)
    assert pinned.blocks == 4
    rig.pins.due(AWAITED_S)
    assert rig.leased == 8
    rig.pins.due(AWAITED_S + 1)
    assert rig.leased == 4, "what is pinned stays"


def test_no_more_is_held_for_pins_than_may_be_pinned() -> None:
    rig = Awaited(most_blocks=8)
    others = [rig.fetched(begin, now=0.0) for begin in (0, 100, 200)]
    assert rig.leased == 8
    rig.pins.ask(CLIENT, others[2], 0.0)
    assert rig.leased == 8, "one that is pinned takes the place of one that is awaited"
