"""The cache of compiled grammars stays within its memory, and drops those unused for longest."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest

from engine.errors import InvalidGrammar, QueueFull
from engine.grammars.cache import GrammarCache
from engine.grammars.check import checked_over
from engine.grammars.compilation import Compilation
from engine.grammars.grammars import Grammars
from engine.grammars.limits import GROWTH_BYTES_PER_S, LEAST_BYTES, MAX_BYTES, REFUSED_BYTES
from engine.grammars.token_mask import GrammarConstraint
from engine.grammars.vocabulary import Vocabulary
from engine.link.messages import Grammar
from tests.doubles.waiting import wait_for
from tests.engine.grammars.test_grammars import asked, ready

MB = 1_000_000
ONE, TWO, THREE = (Grammar("regex", text) for text in "abc")
Keep = Callable[[str, Grammar, int], Compilation]


@pytest.fixture
def cache() -> GrammarCache:
    return GrammarCache(flow_bytes=10 * MB, all_bytes=20 * MB)


@pytest.fixture
def keep(cache: GrammarCache) -> Keep:
    def kept(flow: str, grammar: Grammar, num_bytes: int) -> Compilation:
        compilation = Compilation(compiled_bytes=num_bytes)
        cache.keep(flow, grammar, compilation)
        return compilation

    return kept


def found(cache: GrammarCache, flow: str) -> list[str]:
    """Return the texts, of three, whose grammars the flow still has in the cache."""
    cache.make_room(flow)
    return [one.text for one in (ONE, TWO, THREE) if cache.find(flow, one) is not None]


def test_what_was_not_used_for_longest_goes_first(cache: GrammarCache, keep: Keep) -> None:
    keep("a", ONE, 4 * MB)
    keep("a", TWO, 4 * MB)
    assert cache.find("a", ONE) is not None
    assert found(cache, "a") == ["a", "b"]
    assert cache.find("a", ONE) is not None
    keep("a", THREE, 4 * MB)
    assert found(cache, "a") == ["a", "c"]


def test_masks_make_a_grammar_weigh_more(cache: GrammarCache, keep: Keep) -> None:
    keep("a", ONE, 1 * MB)
    keep("a", TWO, 1 * MB).masks_s = 8 * MB / GROWTH_BYTES_PER_S
    assert found(cache, "a") == ["a", "b"]
    keep("a", THREE, 1 * MB)
    assert found(cache, "a") == ["b", "c"]


def test_small_ones_are_bounded_too(cache: GrammarCache, keep: Keep) -> None:
    for number in range(200):
        keep("a", Grammar("regex", str(number)), 0)
    cache.make_room("a")
    assert len(cache._flows["a"].grammars) == 10 * MB // LEAST_BYTES


class Weighed(Compilation):
    """A compiled grammar that counts how often its size is computed."""

    times = 0

    @property
    def num_bytes(self) -> int:
        self.times += 1
        return LEAST_BYTES


def test_a_request_weighs_what_is_in_use_or_under_way_and_nothing_else(cache: GrammarCache) -> None:
    idle, used, under_way = (Weighed(failure=("code", "why")) for _ in range(3))
    under_way.failure = None
    user = GrammarConstraint(used)
    for grammar, one in zip((ONE, TWO, THREE), (idle, used, under_way), strict=True):
        cache.keep("a", grammar, one)
    for _ in range(5):
        cache.make_room("a")
    assert (idle.times, used.times, under_way.times) == (1, 5, 5)
    del user
    under_way.failure = "code", "why"
    for _ in range(5):
        cache.make_room("a")
    assert (idle.times, used.times, under_way.times) == (1, 6, 6)
    cache.find("a", ONE)
    cache.make_room("a")
    assert idle.times > 1, "it may have grown since it was found"


def test_what_takes_the_place_of_another_is_counted_once(cache: GrammarCache, keep: Keep) -> None:
    for _ in range(5):
        keep("a", ONE, 9 * MB)
        cache.make_room("a")
    keep("b", ONE, 9 * MB)
    assert found(cache, "b") == ["a"]
    assert found(cache, "a") == ["a"], "all have room for both"


def grown(work: Callable[[], object], times: int) -> int:
    """Call `work` repeatedly; return how many bytes of Python objects remain."""
    work()
    tracemalloc.start()
    kept = [work() for _ in range(times)]
    num_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del kept
    return num_bytes


def test_a_refused_grammar_leaves_its_digest_and_why_however_long_or_often_it_is_sent(
    grammars: Grammars,
) -> None:
    number = 0

    def text() -> str:
        nonlocal number
        number += 1
        return f"){number}" + 100_000 * "a" + "\N{GRINNING FACE}"

    def refuse(text: str) -> None:
        with pytest.raises(InvalidGrammar):
            ready(grammars, "regex", text)

    assert grown(lambda: refuse(text()), 5) < 5 * REFUSED_BYTES
    assert grown(lambda: refuse(")again"), 50) < REFUSED_BYTES
    assert grown(text, 5) > 50 * REFUSED_BYTES, "texts would be seen"


def test_what_is_in_use_stays_and_holds_up_its_own_flow_alone(
    cache: GrammarCache, keep: Keep
) -> None:
    users = [GrammarConstraint(keep("a", one, 6 * MB)) for one in (ONE, TWO)]
    with pytest.raises(QueueFull, match="memory"):
        cache.make_room("a")
    keep("b", ONE, 1 * MB)
    assert found(cache, "b") == ["a"]
    users.pop()
    assert found(cache, "a") == ["a"]


def test_of_all_flows_those_that_have_not_asked_for_longest_lose_first(
    cache: GrammarCache, keep: Keep
) -> None:
    for flow in "abc":
        keep(flow, ONE, 8 * MB)
        cache.make_room(flow)
    assert [cache.find(flow, ONE) is None for flow in "abc"] == [True, False, False]


def test_where_all_have_too_much_in_use_those_with_less_than_their_share_go_on(
    cache: GrammarCache, keep: Keep
) -> None:
    kept = [keep(flow, ONE, 9 * MB) for flow in "abc"]
    users = [GrammarConstraint(one) for one in kept]
    keep("d", ONE, 1 * MB)
    cache.make_room("d")
    with pytest.raises(QueueFull):
        cache.make_room("a")
    users.clear()
    cache.make_room("a")


@pytest.mark.parametrize("wears", ["breaks", "grows"])
def test_one_that_is_worn_is_compiled_anew_and_counted_while_it_is_used(
    cache: GrammarCache, keep: Keep, wears: str
) -> None:
    worn = keep("a", ONE, 6 * MB)
    user = [GrammarConstraint(worn)]
    assert found(cache, "a") == ["a"]
    worn.is_broken = wears == "breaks"
    worn.masks_s = 0.0 if wears == "breaks" else MAX_BYTES / GROWTH_BYTES_PER_S
    assert cache.find("a", ONE) is None
    user.append(GrammarConstraint(keep("a", ONE, 6 * MB)))
    with pytest.raises(QueueFull):
        cache.make_room("a")
    user.clear()
    cache.make_room("a")


def test_what_is_forgotten_is_counted_while_it_is_used(cache: GrammarCache, keep: Keep) -> None:
    user = [GrammarConstraint(keep("a", ONE, 11 * MB))]
    cache.forget(None)
    assert cache.find("a", ONE) is None
    with pytest.raises(QueueFull):
        cache.make_room("a")
    user.clear()
    cache.make_room("a")


def test_an_error_of_one_answer_is_not_the_next_ones(grammars: Grammars) -> None:
    """Keep a lexer error within one answer, although copies of the library's matcher share its
    lexer.
    """
    first = asked(grammars, ONE)
    wait_for(lambda: first.is_ready, 60.0, every_s=0.01)
    first.advance(ord("x"))
    first.allowed()
    assert first.error is not None
    second = asked(grammars, ONE)
    wait_for(lambda: second.is_ready, 60.0, every_s=0.01)
    assert second._compilation is not first._compilation
    assert second.allowed().any()
    assert asked(grammars, ONE)._compilation is second._compilation


def test_the_check_finds_what_a_grammar_takes(vocabulary: Vocabulary) -> None:
    texts = ", ".join(f'"a value of some length, number {n}"' for n in range(2500))
    small = checked_over(ONE, vocabulary)
    large = checked_over(Grammar("json_schema", f'{{"enum": [{texts}]}}'), vocabulary)
    # The size may be negative if memory of other tests is freed meanwhile.
    assert small.num_bytes < LEAST_BYTES
    assert 1 * MB < large.num_bytes < 10 * MB
