"""`ratoon tenants quota` changes each part of a quota, and refuses a floor above the ceiling.

The gateway is real.
"""

from __future__ import annotations

from tests.cli.console import Ratoon


def test_a_quota_is_shown_and_changed_a_part_at_a_time(ratoon: Ratoon) -> None:
    ratoon("tenants create roomy --weight 2")
    nothing = "Tenant roomy: floor 0, ceiling 1, weight 2\n"
    assert ratoon("tenants quota roomy").out == nothing
    ratoon("tenants quota roomy --ceiling 0.5")
    assert "floor 0.25, ceiling 0.5" in ratoon("tenants quota roomy --floor 0.25").out
    assert ratoon("tenants quota roomy --json").json["cache"] == {"floor": 0.25, "ceiling": 0.5}
    assert ratoon("tenants quota roomy --floor 0 --ceiling 1").out == nothing


def test_a_floor_above_the_ceiling_is_refused(ratoon: Ratoon) -> None:
    ratoon("tenants create crossed")
    refused = ratoon("tenants quota crossed --floor 0.5 --ceiling 0.25")
    assert refused.status == 1
    assert "(400)" in refused.err
    assert "ceiling 1" in ratoon("tenants quota crossed").out


def test_canonical_prompts_are_off_until_they_are_turned_on(ratoon: Ratoon) -> None:
    def is_on() -> bool:
        [found] = [one for one in ratoon("tenants list --json").json if one["name"] == "coder"]
        return bool(found["canonical_prompts"])

    ratoon("tenants create coder")
    assert not is_on()
    assert "canonical" in ratoon("tenants canonical-prompts coder --on").out
    assert is_on()
    ratoon("tenants canonical-prompts coder --off")
    assert not is_on()


def test_the_list_has_groups_limits_and_shares(ratoon: Ratoon) -> None:
    ratoon("tenants create listed --weight 3")
    ratoon("tenants limits listed --tokens-per-minute 3000 --budget 5 --priority batch")
    ratoon("tenants quota listed --ceiling 0.5")
    ratoon("groups create team")
    ratoon("groups join team listed")
    lines = [line.split("\t") for line in ratoon("tenants list").out.splitlines()]
    [cells] = [cells for cells in lines if cells[0] == "listed"]
    assert cells[1].startswith("tn_")
    assert cells[2:7] == [
        "enabled",
        "batch",
        "team",
        "tokens per minute: 3000, budget: 5 units, month",
        "floor 0, ceiling 0.5, weight 3",
    ]
    assert len(lines[1]) == len(cells) == 8
    ratoon("groups leave listed")
    ratoon("groups delete team")
    assert "\t-\tno limits\t" in ratoon("tenants list").out
