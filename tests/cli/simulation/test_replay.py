"""Small replays of traces, compared with results by hand and with an LRU cache of ten lines."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from cli.load.requests.trace import BlockTrace, read_trace
from cli.simulation.replay import Replay, Replayed, TierSizes, admit
from cli.simulation.results import hit_rates
from prefix_cache.names import PolicyName
from storage.move import Tier
from tests.cli.simulation.traces import row, write

Row = dict[str, Any]


@pytest.fixture
def replay(tmp_path: Any) -> Any:
    def run(
        rows: Sequence[Row],
        sizes: TierSizes,
        policy: PolicyName = "lru",
    ) -> Replayed:
        trace = read_trace(write(tmp_path / "t", rows), 10)
        replay = Replay(10, sizes, policy)
        replayed = replay.run(admit(trace), lambda _: None)
        replay.check()
        return replayed

    return run


def found(replayed: Replayed) -> list[tuple[int, int, int]]:
    return [(one.from_device, one.from_host, one.from_disk) for one in replayed.served]


def test_a_prompt_that_comes_again_is_cached_but_for_its_last_block(replay: Any) -> None:
    rows = [row(0, [1, 2, 3]), row(1, [1, 2, 3]), row(2, [1, 2, 3, 4], tail=2)]
    assert found(replay(rows, TierSizes(100))) == [(0, 0, 0), (20, 0, 0), (30, 0, 0)]


def test_a_block_that_is_not_full_is_not_shared(replay: Any) -> None:
    rows = [row(0, [1, 2], tail=1), row(1, [1, 2, 3])]
    assert found(replay(rows, TierSizes(100))) == [(0, 0, 0), (10, 0, 0)]
    rows = [row(0, [1, 2]), row(1, [1, 2, 3])]
    assert found(replay(rows, TierSizes(100))) == [(0, 0, 0), (20, 0, 0)]


def test_equal_ids_behind_others_are_other_content(replay: Any) -> None:
    rows = [row(0, [1, 2, 3]), row(1, [9, 2, 3]), row(2, [9, 2, 3])]
    assert found(replay(rows, TierSizes(100))) == [(0, 0, 0), (0, 0, 0), (20, 0, 0)]


def test_tenants_share_nothing(replay: Any) -> None:
    rows = [row(0, [1, 2, 3], tenant="a"), row(1, [1, 2, 3], tenant="b")]
    rows += [row(2, [1, 2, 3], tenant="a")]
    assert found(replay(rows, TierSizes(100))) == [(0, 0, 0), (0, 0, 0), (20, 0, 0)]


def test_what_leaves_the_device_is_found_in_the_host_and_then_on_disk(replay: Any) -> None:
    a, b, c = [1, 2, 3], [4, 5, 6], [7, 8, 9]
    rows = [row(0, a), row(1, b), row(2, a), row(3, c), row(4, b)]
    alone = replay(rows, TierSizes(30))
    assert found(alone) == [(0, 0, 0)] * 5
    with_host = replay(rows, TierSizes(30, 60))
    assert found(with_host) == [(0, 0, 0), (0, 0, 0), (0, 20, 0), (0, 0, 0), (0, 20, 0)]
    assert with_host.loaded[Tier.HOST] == 4


def test_disk_has_what_was_asked_for_twice(replay: Any) -> None:
    a, b = [1, 2, 3], [4, 5, 6]
    once = replay([row(0, a), row(1, b), row(2, a)], TierSizes(30, 0, 60))
    assert found(once) == [(0, 0, 0)] * 3
    twice = replay([row(0, a), row(1, a), row(2, b), row(3, a)], TierSizes(30, 0, 60))
    assert found(twice) == [(0, 0, 0), (20, 0, 0), (0, 0, 0), (0, 0, 20)]
    assert twice.written[Tier.DISK] >= twice.loaded[Tier.DISK] == 2


def test_a_prompt_longer_than_the_device_tier_leaves_nothing(replay: Any) -> None:
    replayed = replay([row(0, [1, 2, 3, 4]), row(1, [1, 2])], TierSizes(30))
    assert found(replayed) == [(0, 0, 0), (0, 0, 0)]
    assert replayed.too_long == 1


def test_the_rates_are_of_input_tokens(replay: Any) -> None:
    rates = hit_rates(replay([row(0, [1, 2]), row(1, [1, 2, 3], tail=5)], TierSizes(100)).served)
    assert (rates.requests, rates.input_tokens) == (2, 45)
    assert rates.token_hit_rate == pytest.approx(20 / 45)
    assert rates.by_tier == {"device": pytest.approx(20 / 45), "host": 0.0, "disk": 0.0}


def least_recently_used(trace: BlockTrace, capacity: int) -> list[int]:
    """Return each prompt's hits in a plain LRU cache of blocks; a prompt uses its deepest blocks
    first.
    """
    here: OrderedDict[tuple[int, ...], None] = OrderedDict()
    cached = []
    for request in trace.requests:
        whole = request.input_tokens // 10
        prefixes = [tuple(request.ids[: n + 1].tolist()) for n in range(whole)]
        known = next((n for n, one in enumerate(prefixes) if one not in here), whole)
        cached.append(min(known, (request.input_tokens - 1) // 10))
        for one in reversed(prefixes):
            here[one] = None
            here.move_to_end(one)
        while len(here) > capacity:
            here.popitem(last=False)
    return cached


@pytest.mark.parametrize("seed", range(3))
def test_lru_is_as_good_as_a_plain_one(seed: int, tmp_path: Any) -> None:
    random, rows = Random(seed), []
    for at in range(400):
        session, turns = random.randrange(40), random.randrange(1, 9)
        rows.append(row(at, [100 * session + n for n in range(turns)], tail=random.randrange(10)))
    trace = read_trace(write(tmp_path / "t", rows), 10)
    ours = Replay(10, TierSizes(600), "lru").run(admit(trace), lambda _: None)
    plain = 10 * sum(least_recently_used(trace, 60))
    # Ratoon reserves room for a request's own last block, unlike the plain cache.
    assert sum(one.cached for one in ours.served) == pytest.approx(plain, rel=0.05)
    assert 0 < plain < sum(one.input_tokens for one in ours.served)


def test_progress_is_reported_in_blocks(tmp_path: Any) -> None:
    told: list[int] = []
    trace = read_trace(write(tmp_path / "t", [row(0, [1]), row(1, [1, 2, 3])]), 10)
    Replay(10, TierSizes(100), "value").run(admit(trace), told.append)
    assert told == [1, 3]


def test_sizes_keep_their_shares() -> None:
    assert TierSizes(100, 200, 100).scaled(800) == TierSizes(200, 400, 200)
    assert TierSizes(1, 1, 1).scaled(100).total == 100


def test_a_request_is_what_a_line_says(tmp_path: Any) -> None:
    line = row(1500, [7, 5, 7], tail=4, tenant="a") | {"output_length": 3}
    (request,) = read_trace(write(tmp_path / "t", [line]), 10).requests
    assert (request.at, request.tenant) == (1.5, "a")
    assert (request.input_tokens, request.output_tokens) == (26, 3)
    assert request.ids.tolist() == [0, 1, 0]
