"""The tables are made of what the gateway's own code makes of an engine's counters."""

from typing import Any

import msgspec
import pytest

from cli.cache_tables import percent, show
from engine.messages import (
    DiskStats,
    EngineStats,
    FlowStats,
    LowerTierStats,
    PoolStats,
    TierStats,
    TierTokens,
    WayStats,
    WindowStats,
)
from gateway.admin.cache import cache_stats

STATS = EngineStats(
    engine_id="e",
    fingerprint=bytes(range(16)),
    uptime_s=4321.5,
    running=3,
    waiting=4,
    preemptions=5,
    steps=678,
    generated_tokens=910,
    windows={
        "1m": WindowStats(queried_tokens=0, hit_tokens=0, computed_tokens=0),
        "all": WindowStats(queried_tokens=800, hit_tokens=600, computed_tokens=200),
    },
    pool=PoolStats(block_size=16, total=100, free=60, used=40, evictable=30, leased=10),
    tree_nodes=77,
    tree_depth=8,
    tiers=TierStats(
        block_bytes=2 << 20,
        found=TierTokens(device=8, host=32),
        lower={"host": LowerTierStats(total=40, used=20, loads_chosen=10, loads_refused=2)},
        ways=[WayStats(source="disk", target="device", blocks=9, failed=0, seconds=1, under_way=0)],
        evictions={"host": {"copied": 4, "no_room": 3}},
        disk=DiskStats(
            state="up", bytes=1, records=2, lost=0, refused=0, late=0, quarantines=3, failures=0
        ),
    ),
    flows={
        "tn_1": FlowStats(requests=11, prompt_tokens=1000, cached_tokens=250, blocks_held=22),
        "tn_2": FlowStats(evictions_caused=33, evictions_suffered=44),
    },
)


@pytest.fixture
def answer() -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(cache_stats(STATS, {"tn_1": "acme"}))
    return found


def row(out: str, first: str) -> list[str]:
    """The cells of the row that begins with `first`."""
    rows = ([cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines())
    return next(cells for cells in rows if cells and cells[0] == first)


def test_every_number_is_in_its_place(
    answer: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    show(answer)
    out = capsys.readouterr().out
    assert row(out, "1m") == ["1m", "0", "0", "0", "-"]
    assert row(out, "all") == ["all", "800", "600", "200", "75.0%"]
    assert row(out, "blocks") == ["blocks", "100", "60", "40", "30", "10"]
    assert row(out, "tokens") == ["tokens", "1600", "960", "640", "480", "160"]
    assert row(out, "acme") == ["acme", "11", "1000", "25.0%", "22", "0", "0"]
    assert row(out, "tn_2 (deleted)") == ["tn_2 (deleted)", "0", "0", "-", "0", "33", "44"]
    assert row(out, "running, waiting")[1] == "3, 4"
    assert row(out, "tree")[1] == "77 nodes, 8 deep"
    assert row(out, "preemptions")[1] == "5"
    assert row(out, "host") == ["host", "40", "20", "0.04", "32", "10", "2", "7"]
    assert row(out, "disk")[:2] == ["disk", "device"]
    assert row(out, "quarantines")[1] == "3"
    assert row(out, "fingerprint")[1] == bytes(range(16)).hex()


def test_the_tables_fit_a_narrow_terminal(
    answer: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    show(answer)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any("acme" in line and "25.0%" in line for line in lines)


@pytest.mark.parametrize(("rate", "text"), [(None, "-"), (0.0, "0.0%"), (0.4686, "46.9%")])
def test_shares(rate: float | None, text: str) -> None:
    assert percent(rate) == text
