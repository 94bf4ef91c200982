"""The router used in service weighs caches, queues and rates, and spreads herds of requests."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from msgspec.structs import replace

from engine.link.cache_events import Added, Cleared, Removed
from gateway.routing.known.rates import COMPUTE_S, DISK_S, HOST_S, UNTRIED, ReplicaRates
from gateway.routing.routers.by_name import ROUTERS, RouterName, router_by_name
from gateway.routing.routers.choose import Balance
from gateway.routing.routers.fetching import FetchLimits
from gateway.routing.routers.first_token import FirstTokenRouter
from tests.gateway.routing.requests import (
    BLOCK,
    cached,
    chained,
    events,
    request,
    reused,
    timing,
)

READY = ("a", "b", "c")
SOURCES = {name: f"/exchange/{name}" for name in READY}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def router() -> FirstTokenRouter:
    return FirstTokenRouter(Clock())


def send(one: FirstTokenRouter, name: str, *contents: object) -> str:
    asked = request(name, *contents)
    replica = one.choose(asked, READY).replica
    one.sent(replica, asked)
    return replica


def test_the_replica_that_has_the_most_of_the_prompt_is_chosen() -> None:
    one = router()
    one.heard("a", cached(*range(10)))
    one.heard("b", cached(*range(100)))
    assert one.choose(request("r", *range(120)), READY).replica == "b"
    assert one.choose(request("r", *range(120)), ("a", "c")).replica == "a"
    one.heard("b", events(Removed(chained(*range(100))[16 * 5 :])))
    assert one.choose(request("r", *range(120)), READY).replica == "a"


def test_what_lies_in_a_slower_tier_is_worth_less() -> None:
    one = router()
    one.heard("a", cached(*range(100), tier="disk"))
    one.heard("b", cached(*range(100), tier="host"))
    assert one.choose(request("r", *range(110)), READY).replica == "b"
    one.heard("c", cached(*range(99)))
    assert one.choose(request("r", *range(110)), READY).replica == "c"


def test_what_is_predicted_has_the_load_in_it() -> None:
    one, asked = router(), request("r", *range(100))
    one.heard("a", cached(*range(100)))
    one.heard("b", cached(*range(100), tier="host"))
    one.heard("c", cached(*range(100), tier="disk"))
    predicted = [one.choose(asked, (name,)).first_token_s for name in READY]
    tokens = BLOCK * 100 + 1
    loads = [tokens * load_s for load_s in (0.0, HOST_S, DISK_S)]
    assert predicted == pytest.approx([COMPUTE_S + load_s for load_s in loads])


def test_a_long_queue_outweighs_what_is_cached() -> None:
    one = router()
    one.heard("b", cached(*range(100)))
    waiting = request("w", *("other", *range(900)))
    one.sent("b", waiting)
    assert one.choose(request("r", *range(110)), READY).replica == "a"
    one.began("b", "w", None, None)
    assert one.choose(request("r", *range(110)), READY).replica == "b"


def test_a_request_follows_one_that_begins_alike_and_is_not_computed_yet() -> None:
    one = router()
    for replica, kind in (("a", "x"), ("b", "y"), ("c", "z")):
        one.sent(replica, request(kind, *((kind, n) for n in range(64))))
    for kind, replica in (("x", "a"), ("z", "c")):
        alike = request("r", *((kind, n) for n in range(64)), "more")
        assert one.choose(alike, READY).replica == replica


def test_choices_of_one_prompt_wait_for_the_first_of_them_though_others_are_idle() -> None:
    def replicas_of(one: FirstTokenRouter) -> set[str]:
        return {send(one, f"choice {number}", *range(64)) for number in range(4)}

    assert len(replicas_of(router())) == 1
    assert len(replicas_of(FirstTokenRouter(Clock(), Balance(others=0.0)))) > 1  # positive control


def test_a_herd_is_spread_when_waiting_costs_more_than_computing() -> None:
    one = router()
    one.heard("a", cached(*range(50)))
    chosen = Counter(send(one, f"r{number}", *range(50), number) for number in range(60))
    assert set(chosen) == set(READY)
    assert chosen["a"] > max(chosen["b"], chosen["c"])
    assert max(chosen.values()) <= 4 + 1.5 * 20 + 1


def test_new_conversations_are_spread_though_one_replica_has_their_common_begin() -> None:
    one, given = router(), Counter[str]()
    for number in range(60):
        contents = ["common", *((number, n) for n in range(20))]
        replica = send(one, f"r{number}", *contents)
        given[replica] += 1
        one.began(replica, f"r{number}", None, None)
        one.ended(replica, f"r{number}")
        one.heard(replica, events(Added("device", chained(*contents))))
    assert max(given.values()) - min(given.values()) <= 4


def test_the_faster_replica_is_given_more() -> None:
    clock = Clock()
    one = FirstTokenRouter(clock)
    for number in range(30):
        for replica, seconds in (("a", 0.1), ("b", 0.4), ("c", 0.4)):
            clock.now += 1.0
            asked = request(f"{replica}{number}", (number, replica), *range(60))
            one.sent(replica, asked)
            one.began(replica, asked.request_id, reused(), timing(prefill=seconds))
            one.ended(replica, asked.request_id)
    assert one.choose(request("r", *range(1000, 1100)), READY).replica == "a"


def test_a_replica_of_which_little_is_known_is_taken_to_be_like_the_others() -> None:
    """Assume that a little-known replica is like the others.

    Its first prompts run together, so each seems to take the time of all.
    """
    clock = Clock()
    one = FirstTokenRouter(clock)

    def compute(replica: str, number: int, seconds: float) -> float:
        clock.now += 1.0
        one.sent(replica, request(f"{replica}{number}", *((number, n) for n in range(250))))
        one.began(replica, f"{replica}{number}", reused(), timing(prefill=seconds))
        one.ended(replica, f"{replica}{number}")
        return one._loads.of(replica).rates.compute.per_token

    like_others = [compute("a", number, 0.12) for number in range(30)][-1]
    assert like_others == pytest.approx(30e-6, rel=0.1)
    assert compute("b", 0, 0.36) < 2 * like_others
    own = [compute("b", number, 0.36) for number in range(1, 40)][-1]
    assert own == pytest.approx(90e-6, rel=0.1), "the control: it is slower, and that is learned"


def test_fetching_that_was_not_tried_stays_a_fifth_of_what_computing_is_taken_to_take() -> None:
    clock = Clock()
    one = FirstTokenRouter(clock)
    load_of = one._loads.of
    assert load_of("b").rates.compute.per_token == COMPUTE_S
    for number in range(30):
        clock.now += 1.0
        one.sent("a", request(f"r{number}", *((number, n) for n in range(250))))
        one.began("a", f"r{number}", reused(), timing(prefill=0.04))
    untried = load_of("b").rates
    assert untried.compute.per_token < UNTRIED * COMPUTE_S, "the control: it is taken to be like a"
    for rate in untried.fetch.values():
        assert rate.per_token <= UNTRIED * untried.compute.per_token * 1.001


def test_nothing_is_known_of_a_replica_that_is_gone() -> None:
    one = router()
    one.heard("a", cached(*range(100)))
    one.sent("a", request("r1", *range(100)))
    one.gone("a")
    fresh = router()
    fresh.sent("b", request("r2", "x"))
    one.sent("b", request("r2", "x"))
    asked = request("r3", *range(100))
    assert one.choose(asked, READY).replica == fresh.choose(asked, READY).replica
    one.began("a", "r1", None, None)  # a report that arrives late
    one.ended("a", "r1")


def test_a_request_without_the_cache_goes_where_least_waits() -> None:
    one = router()
    one.heard("a", cached(*range(100)))
    one.sent("a", request("w", "x", "y"))
    asked = request("r", *range(100), use_cache=False)
    assert one.choose(asked, READY).replica == "b"
    one.sent("b", asked)
    one.began("b", "r", reused(), timing(prefill=1.0))
    # the prompt is shorter than a block
    assert one.choose(request("short", tail=3), READY).replica in READY


class Calls(RuleBasedStateMachine):
    """Random calls in any order: all counts add up, and are 0 once all requests have ended."""

    @initialize()
    def start(self) -> None:
        eager = FetchLimits(least_tokens=1, margin=0.0)
        self.router, self.where = FirstTokenRouter(Clock(), fetches=eager), dict[str, str]()
        self.fetches, self.begun = dict[str, str | None](), set[str]()

    @rule(
        name=st.sampled_from(("r1", "r2", "r3", "r4")),
        length=st.integers(0, 80),
        kind=st.sampled_from((1, 2)),
    )
    def send(self, name: str, length: int, kind: int) -> None:
        asked = request(name, *((kind, n) for n in range(length)))
        choice = self.router.choose(asked, READY, SOURCES)
        self.where[name], self.begun = choice.replica, self.begun - {name}
        self.fetches[name] = None if choice.source is None else choice.source.address
        self.router.sent(choice.replica, replace(asked, source=choice.source))

    @rule(name=st.sampled_from(("r1", "r2", "r3", "r4")), replica=st.sampled_from(READY))
    def begin(self, name: str, replica: str) -> None:
        self.router.began(replica, name, reused(device=BLOCK), timing(prefill=0.01))
        if self.where.get(name) == replica:
            self.begun = self.begun | {name}

    @rule(name=st.sampled_from(("r1", "r2", "r3", "r4")), replica=st.sampled_from(READY))
    def end(self, name: str, replica: str) -> None:
        self.router.ended(replica, name)
        if self.where.get(name) == replica:
            del self.where[name]

    @rule(replica=st.sampled_from(READY), length=st.integers(0, 80))
    def hear(self, replica: str, length: int) -> None:
        keys = chained(*((1, n) for n in range(length)))
        self.router.heard(replica, events(Cleared(), Added("device", keys)))

    @rule(replica=st.sampled_from(READY))
    def go(self, replica: str) -> None:
        self.router.gone(replica)
        self.where = {name: where for name, where in self.where.items() if where != replica}

    @invariant()
    def what_is_running_is_what_was_sent_and_is_not_over(self) -> None:
        loads = {replica: self.router._loads.of(replica) for replica in READY}
        running = Counter(self.where.values())
        for replica, load in loads.items():
            assert load.running == running[replica]
            assert load.queued >= 0
            if not running[replica]:
                assert load.queued == 0
                assert not load.expected

    @invariant()
    def what_is_fetched_is_what_was_to_be_fetched_and_has_not_begun(self) -> None:
        under_way = [self.fetches[name] for name in self.where if name not in self.begun]
        for address in SOURCES.values():
            assert self.router._loads.fetches_from(address) == under_way.count(address)


def test_whatever_is_called_in_whichever_order_the_counts_add_up() -> None:
    run_state_machine_as_test(Calls, settings=settings(stateful_step_count=30))


class TestRates:
    def test_overlapping_prompts_count_their_time_once(self) -> None:
        rates = ReplicaRates()
        # four prompts at a time, each of 1 s: 0.25 s per thousand tokens
        for number in range(1, 60):
            rates.began(1000, reused(), timing(prefill=1.0), now=0.25 * number)
        assert rates.compute.per_token == pytest.approx(0.25e-3, rel=0.02)

    def test_what_was_idle_does_not_count(self) -> None:
        rates = ReplicaRates()
        for number in range(1, 60):
            rates.began(1000, reused(), timing(prefill=0.5), now=100.0 * number)
        assert rates.compute.per_token == pytest.approx(0.5e-3, rel=0.02)

    def test_whoever_hears_late_learns_the_same(self) -> None:
        """Learn the same rates in a busy gateway, which reads many first tokens at once, some time
        later.
        """
        on_time, late = ReplicaRates(), ReplicaRates()
        for number in range(1, 61):
            told = timing(prefill=1.0, at=7e6 + 0.25 * number)
            on_time.began(1000, reused(), told, now=0.25 * number)
            late.began(1000, reused(), told, now=5.0 * (number // 20))
        assert on_time.compute.per_token == pytest.approx(0.25e-3, rel=0.02)
        assert late.compute.per_token == on_time.compute.per_token

    def test_what_one_of_several_gateways_says_late_is_not_counted_twice(self) -> None:
        rates = ReplicaRates()
        for number in range(2, 60, 2):  # the later token of each pair is reported first
            for one in (number, number - 1):
                rates.began(1000, reused(), timing(prefill=1.0, at=7e6 + 0.25 * one), now=number)
        assert rates.compute.per_token == pytest.approx(0.25e-3, rel=0.1)

    def test_a_clock_that_begins_anew_is_followed(self) -> None:
        rates = ReplicaRates()
        for start in (7e6, 0.0):
            for number in range(1, 60):
                told = timing(prefill=1.0, at=start + 0.25 * number)
                rates.began(1000, reused(), told, now=number)
        assert rates.compute.per_token == pytest.approx(0.25e-3, rel=0.02)

    def test_what_is_cached_takes_no_time_from_what_is_computed_meanwhile(self) -> None:
        rates = ReplicaRates()
        for number in range(1, 600):
            rates.began(1000, reused(device=990), timing(prefill=0.1), now=0.1 * number)
            if number % 10 == 0:
                rates.began(10_000, reused(), timing(prefill=1.0), now=0.1 * number)
        assert rates.compute.per_token == pytest.approx(1e-4, rel=0.02)

    def test_a_step_for_a_few_tokens_says_nothing_of_many(self) -> None:
        rates = ReplicaRates()
        rates.began(1000, reused(device=990), timing(prefill=0.02), now=1.0)
        assert rates.compute.per_token == COMPUTE_S

    def test_tiers_are_told_apart(self) -> None:
        rates = ReplicaRates()
        for number in range(1, 80):
            rates.began(1000, reused(host=900), timing(load=0.009), now=number)
            rates.began(2000, reused(host=900, disk=1000), timing(load=0.109), now=number)
        assert rates.host.per_token == pytest.approx(1e-5, rel=0.05)
        assert rates.disk.per_token == pytest.approx(1e-4, rel=0.05)


@pytest.mark.parametrize("name", ROUTERS)
def test_every_router_keeps_to_those_that_are_ready(name: RouterName) -> None:
    one = router_by_name(name, Clock())
    ready = list(READY)
    for number in range(40):
        asked = request(f"r{number}", number % 3, number)
        replica = one.choose(asked, ready).replica
        assert replica in ready
        one.sent(replica, asked)
        one.began(replica, f"r{number}", reused(), timing(prefill=0.1))
        one.heard(replica, events(Added("device", asked.block_keys)))
        if number % 2:
            one.ended(replica, f"r{number}")
        if number == 20:
            one.gone("a")
            ready.remove("a")
            one.ended("a", "r0")


def test_a_session_stays_where_it_is_as_long_as_that_is_ready() -> None:
    one = router_by_name("session", Clock(), session_blocks=2)
    homes = {
        session: one.choose(request("r", "system", session, 1), READY).replica
        for session in range(60)
    }
    assert set(homes.values()) == set(READY)
    for session, home in homes.items():
        assert one.choose(request("r", "system", session, 2, 3), READY).replica == home
        fewer = [replica for replica in READY if replica != "a"]
        if home != "a":
            assert one.choose(request("r", "system", session, 1), fewer).replica == home


def test_outstanding_tokens_are_those_of_prompts_that_are_not_over() -> None:
    one = router_by_name("least-outstanding", Clock())
    for name, replica, length in (("x", "a", 9), ("y", "b", 3), ("z", "c", 5)):
        one.sent(replica, request(name, *range(length)))
    assert one.choose(request("r", 1), READY).replica == "b"
    one.ended("a", "x")
    assert one.choose(request("r", 1), READY).replica == "a"


def test_the_cached_share_counts_before_all_else() -> None:
    one = router_by_name("cached-share", Clock())
    one.heard("b", cached(*range(10)))
    one.sent("b", request("x", *range(900)))
    assert one.choose(request("r", *range(20)), READY).replica == "b"
    assert one.choose(request("r", "new"), READY).replica == "a"


@pytest.mark.parametrize(
    ("shared", "own", "split"), [(4, 1, (6, 2)), (8, 1, (8, 0)), (2, 1, (4, 4)), (4, 4, (4, 4))]
)
def test_short_prompts_that_begin_alike_are_split_so_that_first_tokens_come_soon(
    shared: int, own: int, split: tuple[int, int]
) -> None:
    """Split eight short prompts so that first tokens come soon; six and two may be best.

    One of two replicas has their prefix cached. The other replica computes the prefix first, so its
    prompts wait for that. The others wait for the prompts before them.
    """
    one, counts = router(), Counter[str]()
    one.heard("a", cached(*range(shared)))
    for number in range(8):
        asked = request(f"r{number}", *range(shared), *((number, n) for n in range(own)))
        chosen = one.choose(asked, "ab").replica
        one.sent(chosen, asked)
        counts[chosen] += 1
    assert (counts["a"], counts["b"]) == split

    def waited(away: int) -> int:
        """Return the sum of tokens computed before each first token, if `away` prompts go to the
        empty replica.
        """
        tokens, here = own * BLOCK + 1, 8 - away
        ones = (here * (here + 1) + away * (away + 1)) // 2
        return away * shared * BLOCK + ones * tokens

    assert waited(split[1]) <= 1.05 * min(map(waited, range(9)))
