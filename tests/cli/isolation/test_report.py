"""The report on a recorded run: its text in the file and on the terminal."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from cli.isolation.cases import CASES, Cell, TierCase, cells_of
from cli.isolation.eviction import EvictionFinding, Learnt
from cli.isolation.reading import Reading
from cli.isolation.report import Record, markdown, show
from cli.isolation.server import ServerFacts
from cli.isolation.verdict import Finding, Outcome, judged, overall, untested

FULL = Reading(72, 64, {"device": 64})
FACTS = ServerFacts(
    version="9.8",
    model="a|b",
    max_model_len=512,
    fingerprint="f00d",
    block_size=16,
    tier_tokens={"device": 1536},
)


def record(*findings: Finding, eviction: EvictionFinding | None = None) -> Record:
    return Record(
        began="then",
        ended="now",
        server=FACTS,
        tool_version="1",
        tiers=["device"],
        findings=list(findings),
        timing=None,
        timing_outcome=None,
        eviction=eviction,
        eviction_outcome=None if eviction is None else Outcome.LEAKS,
        verdict=overall(findings),
    )


def found(cell: Cell, reused: int) -> Finding:
    return judged(cell, FULL, Reading(72, reused), 0, 16)


def without_cells(report: str) -> str:
    return report.partition("## Every cell")[0]


def lines(report: str, word: str) -> list[str]:
    return [line for line in report.splitlines() if word in line]


CELLS = [cell for cell in cells_of(TierCase.DEVICE) if cell.case is CASES[0]]


def test_entry_points_are_counted_together_and_what_leaks_is_named() -> None:
    findings = [found(cell, 16 if cell is CELLS[2] else 0) for cell in CELLS]
    report = without_cells(markdown(record(*findings)))
    assert "| tenant | another tenant | device | 6 | 16 | 0 | 5 passed, 1 leaks |" in report
    leaks = "| tenant; another tenant; device; completions, text | leaks | 16 | 64 of 64 |  |"
    assert leaks in report
    assert "LEAKS" in report
    assert len(lines(report, "64 of 64")) == 1, "only the cell that leaks"


def test_each_cell_is_in_the_file() -> None:
    report = markdown(record(*(found(cell, 0) for cell in CELLS)))
    assert len(lines(report, "64 of 64")) == 6
    assert "## What did not pass\n\nNothing." in report
    assert "Isolated: nothing leaked" in report


@pytest.mark.parametrize("word", ["9.8", "a\\|b", "f00d", "device 1536", "then, now"])
def test_the_server_is_described(word: str) -> None:
    assert word in markdown(record(found(CELLS[0], 0)))


def test_what_is_not_applicable_is_said_once() -> None:
    missing = [untested(cell, Outcome.NOT_APPLICABLE, "no disk tier") for cell in CELLS]
    report = markdown(record(found(CELLS[0], 0), *missing))
    assert lines(without_cells(report), "no disk tier") == ["| not applicable | no disk tier |"]
    assert "| cells tested | 1 |" in report


@pytest.mark.parametrize("verdict", [Outcome.PASSED, Outcome.INCONCLUSIVE, Outcome.LEAKS])
def test_the_last_line_says_what_was_left_out(
    capsys: pytest.CaptureFixture[str], verdict: Outcome
) -> None:
    whole = replace(record(found(CELLS[0], 0)), verdict=verdict)
    show(replace(whole, left_out=["7 cells", "the eviction test"]))
    assert capsys.readouterr().out.endswith("Left out: 7 cells; the eviction test.\n")
    show(whole)
    assert "Left out:" not in capsys.readouterr().out.splitlines()[-1]


def test_a_test_that_was_left_out_and_one_that_was_not() -> None:
    across = Learnt(trials=20, readings=5, bits=1.7, chance=0)
    control = Learnt(trials=20, readings=4, bits=2.0, chance=0)
    eviction = EvictionFinding(filled_tokens=1536, across=across, control=control)
    report = markdown(record(found(CELLS[0], 0), eviction=eviction))
    assert "## Timing test\n\nLeft out." in report
    assert "leaks. The attacker asks for 1536 tokens" in report
    assert "|  | across tenants | control: one tenant |" in report
    assert "| readings | 5 | 4 |\n| bits | 1.7000 | 2.0000 |" in report


def test_what_to_do_stands_with_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    unsure = replace(record(), advice=["Try --samples 900."])
    assert "Inconclusive" in markdown(unsure)
    assert "could show it. Try --samples 900.\n" in markdown(unsure)
    show(unsure)
    assert "Try --samples 900." in capsys.readouterr().out


def test_the_terminal_shows_all_but_every_cell(capsys: pytest.CaptureFixture[str]) -> None:
    show(record(*(found(cell, 16 if cell is CELLS[2] else 0) for cell in CELLS)))
    shown = "".join(capsys.readouterr().out.split())
    for words in ("a|b", "5passed,1leaks", "64of64", "Timingtest:Leftout.", "Verdict:LEAKS"):
        assert words in shown
    assert shown.count("64of64") == 1, "only the cell that leaks"
    assert "Everycell" not in shown
