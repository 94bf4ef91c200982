from __future__ import annotations

from dataclasses import replace

import pytest

from cli.isolation.cases import (
    CASES,
    ENTRY_POINTS,
    MODULE_CASES,
    PUBLISHED_CASES,
    Cell,
    TierCase,
    cells_of,
)
from cli.isolation.reading import Reading
from cli.isolation.timing.separation import Separation
from cli.isolation.timing.trials import TimingFinding
from cli.isolation.verdict import Finding, Outcome, judged, overall, timing_outcome, untested

FULL = Reading(72, 64, {"device": 64, "host": 0, "disk": 0})
PARTLY_HOST = Reading(72, 64, {"device": 16, "host": 48, "disk": 0})
FROM_HOST = Reading(72, 64, {"device": 0, "host": 64, "disk": 0})
COLD = Reading(72, 0)
CELL = Cell(CASES[0], TierCase.DEVICE, ENTRY_POINTS[0])


def finding(
    other: Reading | None, control: Reading = FULL, cell: Cell = CELL, published: int = 0
) -> Finding:
    return judged(cell, control, other, published, 16)


def test_nothing_reused_beside_a_full_control_passes() -> None:
    found = finding(COLD)
    assert (found.outcome, found.reused, found.control) == (Outcome.PASSED, 0, "64 of 64")


@pytest.mark.parametrize("control", [FULL, COLD])
def test_one_token_leaks_whatever_the_control_says(control: Reading) -> None:
    assert finding(Reading(72, 1), control).outcome is Outcome.LEAKS


@pytest.mark.parametrize("cached", [0, 48, 63])
def test_a_control_that_is_not_full_shows_nothing(cached: int) -> None:
    found = finding(COLD, Reading(72, cached, {"device": cached}))
    assert found.outcome is Outcome.INCONCLUSIVE
    assert not found.control_full
    assert "not whole from device" in found.note


@pytest.mark.parametrize(
    ("prompt", "cached", "full"), [(64, 48, True), (65, 64, True), (65, 63, False)]
)
def test_full_is_all_whole_blocks_before_the_last_token(
    prompt: int, cached: int, full: bool
) -> None:
    assert Reading(prompt, cached).is_full(16) == full


@pytest.mark.parametrize(
    ("tier", "cached", "full"),
    [("device", 80, True), ("device", 79, False), ("host", 48, True), ("disk", 47, False)],
)
def test_full_is_all_modules_but_the_last_blocks_of_those_in_lower_tiers(
    tier: str, cached: int, full: bool
) -> None:
    reading = Reading(90, cached, {tier: cached}, module_tokens=80, cached_module_tokens=cached)
    assert reading.is_full(16) == full


def test_a_control_from_another_tier_shows_nothing_of_this_one() -> None:
    host = replace(CELL, tier=TierCase.HOST)
    assert finding(COLD, FULL, host).outcome is Outcome.INCONCLUSIVE
    assert finding(COLD, PARTLY_HOST, host).outcome is Outcome.INCONCLUSIVE
    assert finding(COLD, FROM_HOST, host).outcome is Outcome.PASSED


def test_a_refusal_passes_and_is_named() -> None:
    found = finding(None)
    assert (found.outcome, found.note) == (Outcome.PASSED, "refused with 400")


def test_members_of_a_group_may_share() -> None:
    member = next(case for case in CASES if case.expected == "anything")
    for other in (FULL, COLD):
        assert finding(other, cell=replace(CELL, case=member)).outcome is Outcome.ALLOWED


def test_exactly_what_is_published() -> None:
    def shared(cached: int) -> Outcome:
        cell = replace(CELL, case=PUBLISHED_CASES[0])
        return finding(Reading(72, cached), cell=cell, published=32).outcome

    assert [shared(n) for n in (31, 32, 33)] == [
        Outcome.INCONCLUSIVE,
        Outcome.PASSED,
        Outcome.LEAKS,
    ]


def test_what_is_published_for_a_group_is_nothing_to_a_stranger() -> None:
    stranger = next(c for c in PUBLISHED_CASES if c.publishes and c.expected == "nothing")
    found = finding(Reading(72, 32), cell=replace(CELL, case=stranger), published=32)
    assert found.outcome is Outcome.LEAKS


def test_behind_what_is_published_all_must_have_come_from_the_tier() -> None:
    host = replace(CELL, tier=TierCase.HOST, case=PUBLISHED_CASES[0])

    def outcome(device: int, lower: int) -> Outcome:
        lay = {"device": device, "host": lower, "disk": 0}
        control = Reading(72, device + lower, lay)
        return finding(Reading(72, 40), control, host, published=40).outcome

    # 8 of the host's tokens are published, so they are no leak
    assert outcome(32, 32) is Outcome.PASSED
    assert outcome(48, 16) is Outcome.INCONCLUSIVE
    assert outcome(64, 0) is Outcome.INCONCLUSIVE


def between(low: float, high: float) -> Separation:
    return Separation(
        samples=2000,
        auc=(low + high) / 2,
        low=low,
        high=high,
        best_advantage=0.0,
        auc_of_tens=None,
        hit_median_s=0.01,
        miss_median_s=0.01,
    )


@pytest.mark.parametrize(
    ("low", "high", "control", "outcome"),
    [
        (0.48, 0.52, 0.99, Outcome.PASSED),
        (0.48, 0.52, 0.90, Outcome.INCONCLUSIVE),  # the attack was too weak to notice a leak
        (0.48, 0.54, 0.99, Outcome.INCONCLUSIVE),
        (0.46, 0.50, 0.99, Outcome.INCONCLUSIVE),
        (0.54, 0.60, 0.99, Outcome.LEAKS),
        (0.54, 0.60, 0.90, Outcome.LEAKS),
        (0.30, 0.40, 0.99, Outcome.LEAKS),  # a slower answer reveals as much as a faster answer
    ],
)
def test_the_clock(low: float, high: float, control: float, outcome: Outcome) -> None:
    timing = TimingFinding(
        prompt_tokens=64, across=between(low, high), control=between(control, control)
    )
    assert timing_outcome(timing) is outcome
    assert overall([finding(COLD)], timing_outcome(timing)) is outcome


def test_the_worst_decides() -> None:
    passed, leaks = finding(COLD), finding(FULL)
    unsure = untested(CELL, Outcome.INCONCLUSIVE, "why")
    nothing = Finding(dimension="model", case="another", outcome=Outcome.NOT_APPLICABLE)
    assert overall([nothing, passed], None, None) is Outcome.PASSED
    assert overall([passed, unsure], None, None) is Outcome.INCONCLUSIVE
    assert overall([passed, unsure, leaks], None, None) is Outcome.LEAKS
    assert overall([nothing], None, None) is Outcome.INCONCLUSIVE


@pytest.mark.parametrize(("cut", "outcome"), [(1, Outcome.PASSED), (2, Outcome.INCONCLUSIVE)])
def test_a_run_that_left_out_more_than_a_tenth_shows_nothing(cut: int, outcome: Outcome) -> None:
    left_out = untested(CELL, Outcome.LEFT_OUT, "there was no time")
    nothing = Finding(dimension="model", case="another", outcome=Outcome.NOT_APPLICABLE)
    findings = [left_out] * cut + [finding(COLD)] * (10 - cut) + [nothing] * 20
    assert overall(findings, None, None) is outcome
    assert overall([*findings, finding(FULL)], None, None) is Outcome.LEAKS


def test_in_turn_every_case_has_a_place_in_every_tier_by_different_entry_points() -> None:
    entries: dict[str, list[str]] = {}
    for tier in TierCase:
        cells = cells_of(tier, each_entry=False)
        assert [cell.case for cell in cells] == [*CASES, *PUBLISHED_CASES, *MODULE_CASES]
        assert {cell.entry for cell in cells} == set(ENTRY_POINTS)
        for cell in cells:
            entries.setdefault(f"{cell.case.dimension} {cell.case.name}", []).append(
                cell.entry.name
            )
    for names in entries.values():
        assert len(set(names)) == len(TierCase)
    every = cells_of(TierCase.DEVICE)
    assert len(every) == (len(CASES) + len(PUBLISHED_CASES) + len(MODULE_CASES)) * len(ENTRY_POINTS)
