"""The search finds the highest rate that a server of known capacity sustains, in bounded time."""

from collections.abc import Callable

import pytest

from cli.load.rate_search import FoundRate, ProbePlan, RateProbe, find_rate


def search_with_plans(
    meets: Callable[[float], bool | None],
    *,
    start: float = 1.0,
    share: float = 0.9,
    seconds: float = 100.0,
    probe_s: float = 1.0,
) -> tuple[FoundRate, list[ProbePlan]]:
    time, plans = 0.0, list[ProbePlan]()

    def probe(plan: ProbePlan) -> RateProbe:
        nonlocal time
        time += probe_s
        plans.append(plan)
        return RateProbe(
            rate=plan.rate, requests=10, ended=10, met=0, attained=meets(plan.rate), report=None
        )

    found = find_rate(probe, start=start, share=share, seconds=seconds, clock=lambda: time)
    return found, plans


def search(meets: Callable[[float], bool | None], **settings: float) -> FoundRate:
    return search_with_plans(meets, **settings)[0]


@pytest.mark.parametrize("start", [0.1, 1.0, 37.0, 5000.0])
def test_the_rate_is_found_from_both_sides(start: float) -> None:
    found = search(lambda rate: rate <= 37.0, start=start)
    assert found.highest is not None
    assert found.lowest_missed is not None
    assert found.highest <= 37.0 < found.lowest_missed <= 1.05 * found.highest


def test_what_never_meets_it_and_what_always_does_end() -> None:
    never = search(lambda _: False)
    assert never.highest is None
    assert never.lowest_missed is not None
    assert never.lowest_missed < 0.01
    always = search(lambda _: True)
    assert always.lowest_missed is None
    assert always.highest is not None
    assert always.highest > 1e5


def test_the_budget_ends_it_with_what_is_known() -> None:
    found, plans = search_with_plans(lambda rate: rate <= 37.0, seconds=3.5)
    assert [probe.rate for probe in found.probes] == [1.0, 2.0, 4.0, 8.0]
    assert (found.highest, found.lowest_missed, found.seconds) == (8.0, None, 4.0)
    assert [plan.after_s for plan in plans] == [3.5, 2.5, 1.5, 0.5]


def test_an_undecided_probe_ends_it() -> None:
    found = search(lambda rate: True if rate < 4 else None)
    assert (found.highest, found.lowest_missed, len(found.probes)) == (2.0, None, 3)


def test_luck_beyond_a_rate_that_missed_does_not_count() -> None:
    answers = {1.0: True, 2.0: True, 4.0: False}
    found = search(lambda rate: answers.get(rate, False))
    assert found.highest == 2.0
    assert found.lowest_missed is not None
    assert found.lowest_missed > 2.0


@pytest.mark.parametrize(
    ("start", "share", "requests", "most_missed"),
    [(1.0, 0.9, 10, 1), (1.0, 1.0, 10, 0), (10.0, 0.99, 100, 1), (10.0, 0.9, 100, 10)],
)
def test_a_probe_has_a_tenth_of_the_time_and_at_least_ten_requests(
    start: float, share: float, requests: int, most_missed: int
) -> None:
    _, plans = search_with_plans(lambda _: None, start=start, share=share)
    assert (plans[0].requests, plans[0].most_missed) == (requests, most_missed)
