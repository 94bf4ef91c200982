"""The choice by numbers alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.choose import Balance, Candidate, choose_replica

PLAIN = Balance()


def one(
    name: str, seconds: float = 1.0, *, compute: float = 0.0, running: int = 0, given: int = 0
) -> Candidate:
    return Candidate(name, seconds, compute, running, given)


def test_the_soonest_first_token_is_chosen() -> None:
    assert choose_replica([one("a", 0.9), one("b", 0.5), one("c", 0.7)], 1e6, PLAIN) == "b"


def test_about_as_soon_is_no_difference_and_the_idlest_is_chosen() -> None:
    both = [one("a", 1.0, running=3), one("b", 1.01, running=2)]
    assert choose_replica(both, 1e6, PLAIN) == "b"
    assert choose_replica([one("a", 1.0, running=3), one("b", 1.1, running=2)], 1e6, PLAIN) == "a"
    assert choose_replica([one("a", given=9), one("b", given=5)], 1e6, PLAIN) == "b"
    assert choose_replica([one("b"), one("a")], 1e6, PLAIN) == "a"


def test_what_has_computed_more_is_dearer_for_what_it_would_have_to_compute() -> None:
    ahead = one("a", 0.8, compute=0.8, given=200)  # it has the block that all have in common
    behind = one("b", 1.0, compute=1.0, given=0)
    assert choose_replica([ahead, behind], 1000.0, PLAIN) == "b"
    assert choose_replica([ahead, behind], 100_000.0, PLAIN) == "a"  # little of what a cache holds
    has_all = one("a", 0.1, compute=0.1, given=200)
    assert choose_replica([has_all, behind], 1000.0, PLAIN) == "a"


def test_one_that_runs_far_more_than_the_others_is_left_out() -> None:
    idle = [one(name, 1.0) for name in "bcd"]
    assert choose_replica([one("a", 0.0, running=6), *idle], 1e6, PLAIN) == "a"  # some are no herd
    assert choose_replica([one("a", 0.0, running=7), *idle], 1e6, PLAIN) == "b"


CANDIDATES = st.lists(
    st.builds(
        Candidate,
        st.sampled_from("abcdefgh"),
        st.floats(0, 100),
        st.floats(0, 100),
        st.integers(0, 100),
        st.integers(0, 10**9),
        st.floats(0, 100),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda candidate: candidate.replica,
)


@given(CANDIDATES, st.floats(0, 1e9))
def test_there_is_always_a_choice_and_the_order_does_not_matter(
    candidates: list[Candidate], cache_tokens: float
) -> None:
    name = choose_replica(candidates, cache_tokens, PLAIN)
    assert name in {candidate.replica for candidate in candidates}
    assert choose_replica(candidates[::-1], cache_tokens, PLAIN) == name
