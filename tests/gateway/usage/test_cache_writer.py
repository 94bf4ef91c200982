"""The usage store has one row for each label of a cache writer, and no other rows."""

from __future__ import annotations

import pytest

from engine.sequences.request_checks import MAX_ID_CHARS
from gateway.state.records import Tenant
from gateway.usage.aggregator import UsageKey

ROW = UsageKey("2026-01-31", "tn_0123456789abcdef", "key_0123456789abcdef")


@pytest.mark.parametrize(
    "row",
    [
        ROW,
        UsageKey("2026-01-31", "a/b", "key:*\r\n"),
        UsageKey("0001-01-01", "日本語 🌱", '","'),
        UsageKey("2026-01-31", "x", "a\x00b"),
    ],
)
def test_a_row_comes_back_from_its_label(row: UsageKey) -> None:
    assert UsageKey.of(row.label()) == row


def test_the_labels_of_two_rows_are_two() -> None:
    rows = [ROW, ROW._replace(day="2026-02-01"), ROW._replace(key_id=ROW.key_id + "0")]
    rows += [UsageKey("2026-01-31", "a", "b,c"), UsageKey("2026-01-31", "a,b", "c")]
    assert len({row.label() for row in rows}) == len(rows)


def test_the_engine_takes_a_label_that_the_gateway_makes() -> None:
    tenant = Tenant.new("acme", created_at=0.0)
    assert len(ROW._replace(tenant_id=tenant.id).label()) < MAX_ID_CHARS // 2


@pytest.mark.parametrize(
    "label",
    [
        "",
        "tn_a/key_1/2026-01-31",
        "null",
        "{}",
        "[]",
        '["2026-01-31","tn_a"]',
        '["2026-01-31","tn_a","key_1","more"]',
        '["2026-01-31","tn_a",7]',
        '["2026-01-31","","key_1"]',
        '["2026-01-31","tn_a",""]',
        '["20260131","tn_a","key_1"]',
        '["2026-02-30","tn_a","key_1"]',
        '["today","tn_a","key_1"]',
        '["2026-01-31","tn_a","key_1"] ["2026-01-31","tn_a","key_1"]',
        "\ud800",
        "[" * 200,
    ],
)
def test_any_other_text_is_no_row(label: str) -> None:
    assert UsageKey.of(label) is None
