"""`ratoon audit` lists changes, and shows a run of `verify-isolation` as one row.

The gateway is real, with a fake engine.
"""

from __future__ import annotations

from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import pytest

from cli.operating.admin_client import AdminClient
from cli.operating.audit import MARK, enough, rows_of
from tests.cli.console import Ratoon


def test_the_audit_log_lists_a_change(ratoon: Ratoon) -> None:
    ratoon("tenants create audited")
    newest = ratoon("audit --limit 1 --json").json
    assert [entry["action"] for entry in newest] == ["tenant.create"]
    table = ratoon("audit").out
    assert "tenant.create" in table
    assert "name=audited" in table


def test_a_change_of_several_fields_is_shown_as_json(ratoon: Ratoon) -> None:
    ratoon("tenants create quoted")
    ratoon("tenants quota quoted --floor 0.25")
    assert 'cache={"floor":0.25}' in ratoon("audit --limit 1").out


def test_a_run_of_verify_isolation_is_one_row(ratoon: Ratoon) -> None:
    ratoon("tenants create before")
    for number in range(3):
        name = f"{MARK}-{number}"
        ratoon(f"tenants create {name}")
        ratoon(f"tenants keys create {name}")
        ratoon(f"tenants delete {name} --yes")
    ratoon("tenants create after")
    _, _, after, tests, before = ratoon("audit --limit 3").out.splitlines()
    assert "name=after" in after
    assert tests.split("\t")[2:4] == ["9 changes", MARK]
    assert "name=before" in before
    for line in ("audit --limit 11 --json", "audit --limit 11 --all"):
        assert ratoon(line).out.count("tenant.delete") == 3


def entry(action: str, target: str, **detail: Any) -> dict[str, Any]:
    return {"time": 0.0, "actor": "operator", "action": action, "target": target, "detail": detail}


def test_what_others_change_in_between_stays_in_its_place() -> None:
    made = entry("tenant.create", "tn_1", name=f"{MARK}-x")
    same = [
        entry("group.create", "gr_1", name="tn_1"),
        entry("cache.flush", "tn_1", blocks=1),
        entry("key.create", "key_1", tenant="tn_1"),
    ]
    others = entry("tenant.create", "tn_2", name="acme")
    rows = rows_of([entry("tenant.delete", "tn_1"), *same, others, made])
    assert [(row[2], row[3]) for row in rows] == [
        ("4 changes", MARK),
        ("tenant.create", "tn_2"),
        ("tenant.create", "tn_1"),
    ]


class PagedLog:
    """A server's audit log in pages, which stands in for `AdminClient`."""

    def __init__(self, entries: list[dict[str, Any]]) -> None:
        self._entries = entries
        self.asked = 0

    async def rows(self, path: str, name: str) -> list[dict[str, Any]]:
        assert name == "entries"
        query = parse_qs(urlsplit(path).query)
        limit, skip = int(query["limit"][0]), int(query["skip"][0])
        self.asked += 1
        return self._entries[skip : skip + limit]


async def test_runs_of_more_than_a_page_are_read_until_there_are_rows_enough() -> None:
    run = [
        one
        for number in range(1200)
        for one in (
            entry("tenant.delete", f"tn_{number}"),
            entry("tenant.create", f"tn_{number}", name=f"{MARK}-{number}"),
        )
    ]
    others = [entry("tenant.create", f"tn_x{number}", name="acme") for number in range(5000)]
    log = PagedLog([*run, *others])
    entries = await enough(cast(AdminClient, log), 50)
    assert log.asked == 3, "two pages are one row"
    assert [row[2] for row in rows_of(entries)[:2]] == ["2400 changes", "tenant.create"]
    short = PagedLog(run)
    assert len(await enough(cast(AdminClient, short), 50)) == 2400


@pytest.mark.parametrize("name", ["acme", "my-verify-isolation"])
def test_what_has_another_name_is_a_row_each(name: str) -> None:
    entries = [entry("tenant.delete", "tn_1"), entry("tenant.create", "tn_1", name=name)]
    assert len(rows_of(entries)) == 2
