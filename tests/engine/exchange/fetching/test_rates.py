"""Blocks are fetched if this is predicted to be faster than computing. Untried paths are tried."""

from __future__ import annotations

import numpy as np
import pytest

from engine.exchange.fetching.fetch import LATE, SILENT, Fetch, Wanted
from engine.exchange.fetching.rates import FIRST_GUESS, FIRST_WORD_S, FetchRates
from prefix_cache.leases.refusals import RETRY
from prefix_cache.namespace import Namespace, NamespacePath
from storage.copies import Passed
from tests.doubles.constant_rate import NOTHING_MEASURED, ConstantRate

SIZE, BLOCK_BYTES = 16, 1 << 20
WHERE = "there"


def rates(tokens_per_second: float) -> FetchRates:
    times = ConstantRate(1 / tokens_per_second)
    return FetchRates(times, block_size=SIZE, block_bytes=BLOCK_BYTES)


def is_worth_it(
    rates: FetchRates,
    blocks: int = 100,
    *,
    before: int = 0,
    waiting: int = 0,
    way: str = "socket",
    flow: str = "flow",
) -> bool:
    return rates.is_worth_it(WHERE, way, flow, 0, blocks, before=before, waiting=waiting)


def test_what_is_predicted_to_be_faster_is_done() -> None:
    slow, fast = rates(1_000.0), rates(3e5)
    assert is_worth_it(slow)
    fast.measured("socket", 10_000, FIRST_WORD_S, 10.0)  # computing takes 0.5 s
    assert not is_worth_it(fast, 10_000)
    assert is_worth_it(fast, 10_000, way="device")


@pytest.mark.parametrize("way", FIRST_GUESS)
def test_a_way_that_was_never_tried_is_tried_however_fast_computing_is(way: str) -> None:
    """Fetch once by an untried path, however fast computing is.

    The guessed rate of an untried path may be below the rate of computing with a small model, so no
    fetch would ever measure the path.
    """
    fast = rates(5e6)
    assert is_worth_it(fast, 10_000, way=way)
    assert not is_worth_it(fast, 100, way=way), "computed before the first word would come"
    fast.measured(way, 10_000, FIRST_WORD_S, 1.0)
    assert not is_worth_it(fast, 10_000, way=way), "it is known now"


def ended(why: str, blocks: int, seconds: float, request_id: str | None = None) -> Fetch:
    """Return a fetch of 100 blocks that ended after `seconds` with `blocks` blocks fetched."""
    wanted = Wanted(
        address=WHERE,
        path=NamespacePath.single(Namespace(bytes(16))),
        tokens=np.zeros(100 * SIZE, np.int32),
        block_keys=b"",
        block_ids=np.arange(100, dtype=np.int32),
        first=0,
        end=100,
        flow="flow",
        request_id=request_id,
        deadline=0.0,
        after=Passed(),
    )
    began, answered = 10.0, 10.01
    return Fetch(
        wanted, blocks, began, "socket", why=why, answered=answered, ended=answered + seconds
    )


@pytest.mark.parametrize(
    ("fetch", "is_tried_again"),
    [
        (ended("", 100, 0.5), False),
        (ended(LATE, 40, 0.2), False),
        (ended(LATE, 1, 0.2), False),
        (ended(LATE, 0, 0.2), False),
        (ended(LATE, 0, 0.002), True),
        (ended("", 1, 0.2), True),
        (ended(SILENT, 40, 2.0), True),
        (ended("refused: busy", 40, 0.2), True),
        (ended("", 100, 0.5, "r~p"), True),
        (ended("", 100, 0.01), True),
    ],
)
def test_a_fetch_that_was_given_up_as_too_slow_is_a_measurement_too(
    fetch: Fetch, is_tried_again: bool
) -> None:
    """Count an abandoned fetch as a measurement. Otherwise each request would try a slow path, wait
    in vain, and compute.
    """
    compared = rates(10_000.0)  # computing 100 blocks takes 0.16 s
    compared.learn(fetch)
    assert is_worth_it(compared) == is_tried_again


def test_measurements_decide() -> None:
    compared = rates(10_000.0)  # computing 100 blocks takes 0.16 s
    assert is_worth_it(compared)
    compared.measured("socket", 100, 0.01, 0.5)
    assert not is_worth_it(compared)
    assert is_worth_it(compared, way="tcp")  # each path has its own rate
    for _ in range(50):
        compared.measured("socket", 100, 0.01, 0.01)
    assert is_worth_it(compared)


def test_few_blocks_teach_only_how_soon_the_first_word_comes() -> None:
    compared = rates(1e5)
    for _ in range(50):
        compared.measured("device", 1, 0.5, 10.0)
    assert not is_worth_it(compared, 10, way="device")
    assert is_worth_it(compared, 10_000, way="device")  # 0.7 s to fetch, 1.6 s to compute


def test_work_before_it_speaks_for_fetching_and_others_fetches_against() -> None:
    compared = rates(1e5)  # computing 100 blocks takes 16 ms
    compared.measured("socket", 100, 0.01, 0.02)
    assert not is_worth_it(compared)
    assert is_worth_it(compared, before=3_000)
    assert not is_worth_it(compared, before=3_000, waiting=1_000)


def test_without_anything_measured_of_computing_it_is_tried() -> None:
    assert is_worth_it(FetchRates(NOTHING_MEASURED, block_size=SIZE, block_bytes=BLOCK_BYTES))
    assert set(FIRST_GUESS) == {"socket", "tcp", "device"}


def test_every_so_often_what_is_refused_is_tried_again() -> None:
    compared = rates(1e6)
    compared.measured("socket", 100, 0.01, 0.1)
    assert [is_worth_it(compared, 1_000) for _ in range(2 * RETRY)].count(True) == 2


def test_a_flow_cannot_count_what_was_refused_to_others() -> None:
    compared = rates(1e6)
    compared.measured("socket", 100, 0.01, 0.1)
    tried = [is_worth_it(compared, 1_000, flow="spy") for _ in range(RETRY)]
    assert tried == [False] * (RETRY - 1) + [True]  # positive control
    for flow in ("victim", "another", "victim"):
        is_worth_it(compared, 1_000, flow=flow)
    assert [is_worth_it(compared, 1_000, flow="spy") for _ in range(RETRY)] == tried
