"""`ratoon groups` creates and deletes groups. `ratoon usage` prints every number in its column.

The gateway is real, with a fake engine.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import msgspec
import pytest

from cli.operating.usage import show_usage
from gateway.state.usage_records import Counters, UsageRow
from gateway.usage.routes import UsageView
from tests.cli.console import Ratoon

NAMES = {f"tn_{'0' * 16}": "acme"}
LARGEST = 987_654_321_987


def usage_row(**counted: float) -> dict[str, Any]:
    """Return a row of the gateway's usage answer, with ids as long as real ids."""
    row = UsageRow(
        day="2026-01-31",
        tenant_id=f"tn_{'0' * 16}",
        key_id=f"key_{'0' * 16}",
        counters=msgspec.convert(counted, Counters),
    )
    found: dict[str, Any] = msgspec.to_builtins(UsageView.of(row))
    return found


def shown_of(row: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """Return the cells of the row and of the totals line, as printed to a pipe."""
    show_usage([row], NAMES)
    return [line.split("\t") for line in capsys.readouterr().out.splitlines()[2:]]


def unstyled(out: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", out)


def test_a_group_lives_and_ends(ratoon: Ratoon) -> None:
    assert ratoon("groups create research").out.startswith("Created group research (gr_")
    [group] = ratoon("groups list --json").json
    assert group["id"] in ratoon("groups list").out
    assert ratoon("groups join research demo").out == "Tenant demo is now in group research.\n"
    demo = next(t for t in ratoon("tenants list --json").json if t["name"] == "demo")
    assert demo["group_id"] == group["id"]
    assert "\tdemo\t" in ratoon("groups list").out
    [group] = ratoon("groups list --json").json
    assert group["members"] == [{"id": demo["id"], "name": "demo"}]
    refused = ratoon("groups delete research")
    assert refused.status == 1
    assert "(409)" in refused.err
    assert ratoon("groups leave demo").status == 0
    assert ratoon(f"groups delete {group['id']}").status == 0
    assert ratoon("groups list --json").json == []


def test_a_group_that_is_not_there_is_named(ratoon: Ratoon) -> None:
    printed = ratoon("groups join nobody demo")
    assert printed.status != 0
    assert "nobody" in printed.err


def test_no_usage_is_an_empty_table(ratoon: Ratoon) -> None:
    ratoon("tenants create unused")
    assert ratoon("usage --tenant unused --json").json == []
    assert ratoon("usage --tenant unused").status == 0
    refused = ratoon("usage --first tomorrow")
    assert refused.status == 1
    assert "(400)" in refused.err


def test_every_number_of_usage_is_in_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    row = usage_row(
        requests=1,
        computed_tokens=2,
        cached_tokens=3,
        generated_tokens=4,
        saved_ms=5000.0,
        cache_written_tokens=60,
        cache_read_tokens=53,
    )
    counts = ["1", "5", "2", "3", "4", "60", "7"]
    assert shown_of(row, capsys) == [
        [row["day"], "acme", row["key_id"], *counts],
        ["all days", "all keys", "", *counts],
    ]


def test_totals_are_sums_of_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    measured, other = usage_row(requests=2, saved_ms=3000.0), usage_row(requests=5)
    show_usage([measured, other, {**other, "tenant_id": "tn_gone"}], NAMES)
    lines = capsys.readouterr().out.splitlines()
    assert "\ttn_gone (deleted)\t" in lines[-2]
    assert lines[-1].split("\t")[3:5] == ["12", "3"]


def test_deleted_tenants_are_one_row_a_day(capsys: pytest.CaptureFixture[str]) -> None:
    known = usage_row(requests=2)
    gone = [{**known, "tenant_id": f"tn_{n}", "key_id": f"key_{n}"} for n in range(1, 180)]
    other_day = {**gone[0], "day": "2026-02-01"}
    rows = [*gone, known, other_day, {**other_day, "key_id": "key_more"}]
    show_usage(rows, NAMES, every=False)
    lines = [line.split("\t")[:4] for line in capsys.readouterr().out.splitlines()[2:]]
    assert lines == [
        ["2026-01-31", "acme", known["key_id"], "2"],
        ["2026-01-31", "179 deleted tenants", "179 keys", "358"],
        ["2026-02-01", "tn_1 (deleted)", "key_1", "2"],
        ["2026-02-01", "tn_1 (deleted)", "key_more", "2"],
        ["all days", "all keys", "", "364"],
    ]
    show_usage(rows, NAMES, every=True)
    assert len(capsys.readouterr().out.splitlines()) == 2 + len(rows) + 1


def test_what_was_not_measured_is_left_empty(capsys: pytest.CaptureFixture[str]) -> None:
    (_, *cells), _ = shown_of(usage_row(requests=1), capsys)
    assert cells[2:5] == ["1", "", "0"]


@pytest.mark.parametrize(
    ("tokens", "shown"),
    [
        (9_999, "9999"),
        (10_000, "10k"),
        (12_345, "12.3k"),
        (999_499, "999k"),
        (999_500, "1M"),
        (LARGEST, "988G"),
        (1234 * 10**12, "1.23e+03T"),
    ],
)
def test_large_numbers_are_shown_to_three_digits(
    tokens: int, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (first, _) = shown_of(usage_row(computed_tokens=tokens), capsys)
    assert first[5] == shown


def test_usage_fits_80_columns_with_no_word_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counters = msgspec.structs.fields(Counters)
    row = usage_row(**{counter.name: LARGEST for counter in counters})
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    show_usage([row], NAMES)
    wide = unstyled(capsys.readouterr().out)
    assert max(map(len, (line.rstrip() for line in wide.splitlines()))) <= 80
    monkeypatch.setenv("COLUMNS", "80")
    show_usage([row], NAMES)
    narrow = unstyled(capsys.readouterr().out)
    assert [line.rstrip() for line in narrow.splitlines()] == [
        line.rstrip() for line in wide.splitlines()
    ]
