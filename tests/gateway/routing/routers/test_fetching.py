"""A replica fetches blocks if this is predicted to be faster, from the source that sends least."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec.structs import replace

from engine.link.event_messages import Reused, Timing
from engine.link.messages import FetchSource
from engine.link.stats.tier_stats import TierTokens
from gateway.routing.known.rates import (
    COMPUTE_S,
    FETCH_S,
    HOLD_OFF_S,
    MOST_HELD_OFF,
    OLD_S,
    ReplicaRates,
)
from gateway.routing.remote_prefill import (
    RemotePrefillLimits,
    answering,
    computing,
    is_late,
    is_short,
)
from gateway.routing.router import RoutingChoice
from gateway.routing.routers.fetching import FetchLimits
from gateway.routing.routers.first_token import FirstTokenRouter
from tests.gateway.routing.requests import BLOCK, cached, request
from tests.gateway.routing.routers.test_first_token import READY, SOURCES, Clock, router

HOT = range(64)  # contents of the blocks of a prefix


def send(one: FirstTokenRouter, name: str, *contents: object) -> RoutingChoice:
    """Choose a replica and send the request there, as the gateway does; report its prompt as
    computed at once.
    """
    asked = request(name, *contents)
    choice = one.choose(asked, READY, SOURCES)
    one.sent(choice.replica, replace(asked, source=choice.source))
    return choice


def fetched(tokens: int, seconds: float) -> tuple[Reused, Timing]:
    return Reused(fetched=tokens), Timing(0.0, 0.0, 0.0, 0.01, fetch=seconds)


def busy(one: FirstTokenRouter, replica: str, blocks: int = 400) -> None:
    """Give a replica so much work that no other request is sent there."""
    one.sent(replica, request(f"busy {replica}", *((replica, n) for n in range(blocks))))


def test_a_hot_prefix_is_fetched_where_waiting_for_it_would_take_longer() -> None:
    one = router()
    one.heard("a", cached(*HOT))
    assert one.choose(request("r", *HOT, "new"), READY, SOURCES).source is None
    busy(one, "a")
    choice = one.choose(request("r", *HOT, "new"), READY, SOURCES)
    assert choice.replica == "b"
    assert choice.source == FetchSource("/exchange/a", 64 * BLOCK)
    assert choice.computes == BLOCK + 1
    alone = one.choose(request("r", *HOT, "new"), READY)
    assert (alone.replica, alone.source, alone.computes) == ("b", None, 65 * BLOCK + 1)
    assert choice.first_token_s is not None
    assert alone.first_token_s is not None
    assert choice.first_token_s < alone.first_token_s


def test_a_herd_for_one_prefix_is_spread_sooner_than_where_each_has_to_compute_it() -> None:
    def spread(*, fetches: bool) -> Counter[str]:
        one, found = router(), Counter[str]()
        one.heard("a", cached(*HOT))
        for number in range(24):
            asked = request(f"r{number}", *HOT, *((number, n) for n in range(8)))
            choice = one.choose(asked, READY, SOURCES if fetches else {})
            one.sent(choice.replica, replace(asked, source=choice.source))
            found[choice.replica] += 1
        return found

    assert max(spread(fetches=True).values()) < max(spread(fetches=False).values())
    assert set(spread(fetches=True)) == set(READY)


def test_of_two_that_have_as_much_the_one_is_asked_that_sends_less() -> None:
    one = router()
    for name in "ab":
        one.heard(name, cached(*HOT))
        busy(one, name)
    first = send(one, "r1", *HOT, 1)
    assert first.source == FetchSource("/exchange/a", 64 * BLOCK)
    second = one.choose(request("r2", *HOT, 2), ["d"], SOURCES)
    assert second.source == FetchSource("/exchange/b", 64 * BLOCK)
    assert one._loads.fetches_from("/exchange/a") == 1
    one.began(first.replica, "r1", *fetched(64 * BLOCK, 0.01))
    assert one._loads.fetches_from("/exchange/a") == 0


def test_nobody_fetches_from_himself_or_what_he_has_or_a_few_tokens() -> None:
    one = router()
    one.heard("a", cached(*HOT))
    assert one.choose(request("r", *HOT, "x"), ["a"], SOURCES).source is None
    one.heard("b", cached(*range(62)))
    assert one.choose(request("r", *HOT, "x"), ["b"], SOURCES).source is None
    one.heard("b", cached(*range(20)))
    # positive control
    assert one.choose(request("r", *HOT, "x"), ["b"], SOURCES).source is not None
    assert one.choose(request("r", *HOT, "x"), ["b"], {"c": "/exchange/c"}).source is None


def test_what_the_other_one_has_to_load_first_counts() -> None:
    slow = FirstTokenRouter(Clock(), fetches=FetchLimits(margin=1.5))
    slow.heard("a", cached(*HOT, tier="disk"))
    assert slow.choose(request("r", *HOT, "x"), ["b"], SOURCES).source is None
    slow.heard("a", cached(*HOT, tier="host"))
    assert slow.choose(request("r", *HOT, "x"), ["b"], SOURCES).source is not None


def test_a_source_need_not_take_requests() -> None:
    one = router()
    one.heard("a", cached(*HOT))
    choice = one.choose(request("r", *HOT, "x"), ["b", "c"], SOURCES)
    assert choice.source is not None


def test_where_fetching_is_measured_to_be_slower_than_computing_nothing_is_fetched() -> None:
    clock = Clock()
    one = FirstTokenRouter(clock, fetches=FetchLimits(least_tokens=0))
    one.heard("a", cached(*HOT))
    for number in range(20):
        asked = request(f"r{number}", *HOT, number)
        choice = one.choose(asked, ["b"], SOURCES)
        if choice.source is None:
            break
        one.sent("b", replace(asked, source=choice.source))
        one.began("b", f"r{number}", *fetched(64 * BLOCK, 64 * BLOCK * 2 * COMPUTE_S))
        one.ended("b", f"r{number}")
    assert 0 < number < 19
    clock.now += OLD_S + 1
    one.sent("b", request("other", "y"))
    one.began("b", "other", Reused(), Timing(0.0, 0.0, 0.0, 0.01))
    one.ended("b", "other")
    assert one.choose(request("again", *HOT, "x"), ["b"], SOURCES).source is not None


def test_after_a_fetch_of_which_nothing_came_none_is_tried_for_a_while() -> None:
    clock = Clock()
    one = FirstTokenRouter(clock)
    one.heard("a", cached(*HOT))
    asked = request("r", *HOT, "x")
    choice = one.choose(asked, ["b"], SOURCES)
    assert choice.source is not None
    one.sent("b", replace(asked, source=choice.source))
    one.began("b", "r", *fetched(0, 0.0))
    later = request("r2", *HOT, "y")
    assert one.choose(later, ["b"], SOURCES).source is None
    others = replace(later, request_id="r3", namespace=b"b" * 16)
    # the keys of another request
    others = replace(others, block_keys=bytes(bytearray(later.block_keys)))
    assert one.choose(others, ["b"], SOURCES).source is not None, "another tenant's"
    clock.now += HOLD_OFF_S
    assert one.choose(request("r2", *HOT, "y"), ["b"], SOURCES).source is not None


def test_a_queue_is_as_long_as_what_is_left_to_compute_and_a_cache_as_full_as_what_came() -> None:
    one = router()
    asked = request("r", *HOT)
    one.sent("b", replace(asked, source=FetchSource("/exchange/a", 60 * BLOCK)))
    load = one._loads.of("b")
    assert (load.queued, load.given) == (4 * BLOCK + 1, 64 * BLOCK + 1)
    one.gone("b")
    assert one._loads.fetches_from("/exchange/a") == 0


def test_prompts_that_have_no_whole_block_are_told_apart() -> None:
    one = router()
    for tail in (3, 9):
        asked = request(f"r{tail}", tail=tail)
        assert one.choose(asked, ["a"]).computes == tail
        one.sent("a", asked)
    assert one._loads.of("a").queued == 12
    whole = request("w", *HOT)
    assert one.choose(whole, ["b"]).computes == 64 * BLOCK + 1
    assert one.choose(replace(whole, use_cache=False), ["b"]).computes == 64 * BLOCK + 1
    one.heard("b", cached(*HOT))
    assert one.choose(whole, ["b"]).computes == 1
    assert one.choose(replace(whole, use_cache=False), ["b"]).computes == 64 * BLOCK + 1


class TestRates:
    def test_ways_are_told_apart(self) -> None:
        rates = ReplicaRates()
        for number in range(1, 60):
            for address, seconds in (("/exchange/a", 0.01), ("tcp://h:1", 0.1)):
                source = FetchSource(address, 1000)
                reused, timing = fetched(1000, seconds)
                rates.began(1010, reused, timing, float(number), source)
        assert rates.fetch[False].per_token == pytest.approx(1e-5, rel=0.02)
        assert rates.fetch[True].per_token == pytest.approx(1e-4, rel=0.02)

    def test_waiting_for_a_prompt_that_is_computed_there_is_no_rate(self) -> None:
        rates = ReplicaRates()
        source = FetchSource("/exchange/a", 1000, "r~p")
        rates.began(1010, *fetched(1000, 5.0), 1.0, source)
        rates.began(1010, *fetched(0, 5.0), 1.0, source)
        assert not rates.fetch[False].is_measured
        assert rates.may_fetch(b"", 1.0)

    def test_who_asks_for_what_is_not_there_holds_off_itself_and_few_are_remembered(self) -> None:
        rates, source = ReplicaRates(), FetchSource("/exchange/a", 1000)
        names = [bytes([number % 256, number // 256]) for number in range(MOST_HELD_OFF + 1)]
        for name in names:
            rates.began(1010, *fetched(0, 0.0), 1.0, source, name)
        assert [rates.may_fetch(name, 2.0) for name in names] == [True] + [False] * MOST_HELD_OFF
        assert rates.may_fetch(b"another", 2.0)
        assert rates.may_fetch(names[-1], 1.0 + HOLD_OFF_S)

    def test_where_computing_is_fast_a_fetch_is_tried_all_the_same_and_what_it_takes_is_learned(
        self,
    ) -> None:
        """Try a fetch although computing is fast, and learn how long the fetch takes.

        The model is small and the GPU fast, so a fixed guess would always favour computing.
        """
        fast = COMPUTE_S / 20
        one = FirstTokenRouter(clock := Clock())
        one.heard("a", cached(*range(256)))
        for number in range(30):
            one.sent("b", request(f"r{number}", *((number, n) for n in range(64))))
            clock.now += 1.0
            seconds = 64 * BLOCK * fast
            one.began("b", f"r{number}", Reused(), Timing(0.0, 0.0, 0.0, seconds))
            one.ended("b", f"r{number}")
        rates = one._loads.of("b").rates
        assert rates.compute.per_token * 1.25 < FETCH_S
        asked = request("r", *range(256), "x")
        choice = one.choose(asked, ["b"], SOURCES)
        assert choice.source is not None
        for _ in range(9):
            one.sent("b", replace(asked, source=choice.source))
            one.began("b", "r", *fetched(256 * BLOCK, 256 * BLOCK * fast * 2))
            one.ended("b", "r")
        assert one.choose(asked, ["b"], SOURCES).source is None, "it is slower, and that is known"

    def test_what_came_was_not_computed(self) -> None:
        rates = ReplicaRates()
        rates.began(1000, Reused(TierTokens(100), fetched=800), Timing(0, 0, 0, 9.0), 1.0)
        assert rates.compute.per_token == COMPUTE_S


class TestRemotePrefill:
    def test_roles(self) -> None:
        roles = {"a": "prefill", "b": "decode", "c": "both"}
        assert answering("abc", roles.__getitem__) == ["b", "c"]  # type: ignore[arg-type]
        assert answering(["a"], roles.__getitem__) == ["a"]  # type: ignore[arg-type]
        assert computing("abc", roles.__getitem__) == ["a"]  # type: ignore[arg-type]

    def test_little_is_computed_where_it_is_answered(self) -> None:
        limits = RemotePrefillLimits(least_tokens=512)
        assert is_short(10_000, RoutingChoice("b", computes=511), limits)
        assert not is_short(10_000, RoutingChoice("b", computes=512), limits)
        assert not is_short(10_000, RoutingChoice("b"), limits), "nothing is known of caches"

    def test_engines_that_are_far_behind_compute_for_nobody(self) -> None:
        limits = RemotePrefillLimits(patience=4.0)
        answer = RoutingChoice("b", first_token_s=1.0)
        assert not is_late(answer, RoutingChoice("a", first_token_s=4.0), limits)
        assert is_late(answer, RoutingChoice("a", first_token_s=4.1), limits)
        assert not is_late(answer, RoutingChoice("a"), limits)
