"""`ratoon groups`, `usage` and `audit` against a real gateway (its engine is a double)."""

from __future__ import annotations

from tests.cli.console import Ratoon


def test_a_group_lives_and_ends(ratoon: Ratoon) -> None:
    assert ratoon("groups create research").out.startswith("Created group research (gr_")
    [group] = ratoon("groups list --json").json
    assert group["id"] in ratoon("groups list").out
    assert ratoon("groups join research demo").out == "Tenant demo is now in group research.\n"
    demo = next(t for t in ratoon("tenants list --json").json if t["name"] == "demo")
    assert demo["group_id"] == group["id"]
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


def test_the_audit_log_lists_a_change(ratoon: Ratoon) -> None:
    ratoon("tenants create audited")
    newest = ratoon("audit --limit 1 --json").json
    assert [entry["action"] for entry in newest] == ["tenant.create"]
    table = ratoon("audit").out
    assert "tenant.create" in table
    assert "name=audited" in table


def test_no_usage_is_an_empty_table(ratoon: Ratoon) -> None:
    ratoon("tenants create unused")
    assert ratoon("usage --tenant unused --json").json == []
    assert ratoon("usage --tenant unused").status == 0
    refused = ratoon("usage --first tomorrow")
    assert refused.status == 1
    assert "(400)" in refused.err
