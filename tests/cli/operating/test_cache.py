"""The cache tables have every count in its place, and fit a narrow terminal.

The gateway's own code computes the tables from an engine's counters.
"""

import sys
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from cli.operating.cache import percent, show, show_evictions
from engine.link.stats.flow_stats import FlowStats
from gateway.admin.cache.cache_stats import cache_stats
from tests.cli.console import Ratoon
from tests.gateway.support.operated_engine import some_stats, some_tiers

STATS = some_stats(
    tiers=replace(some_tiers(), block_bytes=1 << 30),
    flows={
        "tn_1": FlowStats(requests=11, prompt_tokens=1000, cached_tokens=250, blocks_held=22),
        "tn_2": FlowStats(evictions_caused=33, evictions_suffered=44),
    },
)


@pytest.fixture
def answer() -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(cache_stats(STATS, {"tn_1": "acme"}))
    return found


def row(out: str, *first: str) -> list[str]:
    """Return the cells of the table row that begins with `first`."""
    rows = (line.split("\t") for line in out.splitlines())
    return next(cells for cells in rows if tuple(cells[: len(first)]) == first)


def test_every_number_is_in_its_place(
    answer: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    show(answer)
    out = capsys.readouterr().out
    assert row(out, "1m") == ["1m", "0", "0", "0", "-"]
    assert row(out, "all") == ["all", "1000", "250", "750", "25.0%"]
    assert row(out, "blocks") == ["blocks", "100", "60", "40", "30", "10"]
    assert row(out, "tokens") == ["tokens", "1600", "960", "640", "480", "160"]
    assert row(out, "acme") == ["acme", "11", "1000", "25.0%", "22", "0", "0"]
    assert row(out, "tn_2 (deleted)") == ["tn_2 (deleted)", "0", "0", "-", "0", "33", "44"]
    assert row(out, "running, waiting")[1] == "3, 4"
    assert row(out, "tree")[1] == "21 nodes, 6 deep"
    assert row(out, "preemptions")[1] == "5"
    assert row(out, "host") == ["host", "9", "4", "4.00", "2", "5", "6", "7"]
    assert row(out, "host", "device")[2:] == ["3", "3.00", "0.50", "6.44", "1"]
    assert row(out, "quarantines")[1] == "6"
    assert row(out, "fingerprint")[1] == bytes(range(16)).hex()


def test_what_other_engines_sent_has_a_column_of_its_own(
    answer: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    answer["windows"]["all"] |= {"fetched_tokens": 150, "computed_tokens": 600}
    show(answer)
    out = capsys.readouterr().out
    assert row(out, "window")[2:5] == ["from the cache", "fetched", "computed"]
    assert row(out, "all") == ["all", "1000", "250", "150", "600", "25.0%"]
    assert row(out, "1m") == ["1m", "0", "0", "0", "0", "-"]


def test_deleted_tenants_are_one_row_of_sums(
    answer: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    [acme, gone] = answer["tenants"]
    held = {"device": {"held": 2, "floor": 0, "ceiling": 0, "fair": 0.0}}
    more = {**gone, "prompt_tokens": 100, "hit_tokens": 50, "tiers": held}
    answer["tenants"] = [
        gone | {"id": "tn_0", "tiers": held, "caused": {"device": {"no_room": 3}}},
        acme,
        *(more | {"id": f"tn_{n}", "caused": {"device": {"no_room": 4}}} for n in range(2, 500)),
    ]
    show(answer)
    out = capsys.readouterr().out
    counts = ["0", "49800", "50.0%", "0", str(499 * 33), str(499 * 44)]
    assert row(out, "499 deleted tenants") == ["499 deleted tenants", *counts]
    shares = row(out, "499 deleted tenants", "device")
    assert shares[2:7] == ["998", "0", "0", "0", f"{3 + 498 * 4} no_room"]
    assert "(deleted)" not in out
    assert row(out, "acme")[1:3] == ["11", "1000"]
    few = len(out.splitlines())
    show(answer, every=True)
    out = capsys.readouterr().out
    assert len(out.splitlines()) > few + 900
    assert row(out, "tn_2 (deleted)")[2] == "100"


def test_the_tables_fit_a_narrow_terminal(
    answer: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    show(answer)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any("acme" in line and "25.0%" in line for line in lines)


@pytest.mark.parametrize(("rate", "text"), [(None, "-"), (0.0, "0.0%"), (0.4686, "46.9%")])
def test_shares(rate: float | None, text: str) -> None:
    assert percent(rate) == text


def test_where_nothing_was_evicted_the_list_is_empty(ratoon: Ratoon) -> None:
    assert ratoon("cache evictions --json").json == []
    assert ratoon("cache evictions").status == 0


def test_an_eviction_is_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"time": 0.0, "of_tenant": "tn_a", "for_tenant": "tn_b", "tier": "host"}
    show_evictions([{**row, "reason": "no_room", "blocks": 7}])
    printed = capsys.readouterr().out
    for cell in ("1970-01-01", "7", "tn_a", "tn_b", "host", "no_room"):
        assert cell in printed


@pytest.mark.parametrize("line", ["cache flush", "cache flush --json"])
def test_forgetting_everything_is_confirmed(ratoon: Ratoon, line: str) -> None:
    refused = ratoon(line, answer="n\n")
    assert refused.status == 1
    assert "orgot" not in refused.out
    assert "flushed" not in refused.out
    assert "every tenant" in refused.err
    assert ratoon(line, answer="y\n").status == 0
    assert ratoon(f"{line} --yes").status == 0
    assert "every tenant" not in ratoon("cache flush --tenant demo").err, "one is not asked for"
