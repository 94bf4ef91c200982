from __future__ import annotations

from msgspec.structs import replace

from cli.isolation.advice import advice
from cli.isolation.cases import CASES, ENTRY_POINTS, Cell, TierCase
from cli.isolation.eviction import LEVELS, EvictionFinding, Learnt
from cli.isolation.timing.separation import Separation
from cli.isolation.timing.trials import TimingFinding
from cli.isolation.verdict import Outcome, untested

CELL = untested(Cell(CASES[0], TierCase.DEVICE, ENTRY_POINTS[0]), Outcome.PASSED, "")
ALIKE = Separation(
    samples=200,
    auc=0.5,
    low=0.48,
    high=0.52,
    best_advantage=0.0,
    auc_of_tens=None,
    hit_median_s=0.01,
    miss_median_s=0.01,
)
APART = replace(ALIKE, auc=0.99, low=0.98, high=1.0)
TIMED = TimingFinding(prompt_tokens=512, across=ALIKE, control=APART)
NOTHING = Learnt(trials=20, readings=5, bits=0.0, chance=1.0)
ALL = Learnt(trials=20, readings=5, bits=2.0, chance=0.0)
EVICTED = EvictionFinding(filled_tokens=1000, across=NOTHING, control=ALL)


def said(
    timing: TimingFinding | None,
    eviction: EvictionFinding | None = None,
    gaps: TimingFinding | None = None,
) -> list[str]:
    return list(advice([CELL], timing, gaps, eviction))


def test_what_passed_needs_nothing() -> None:
    assert said(TIMED, EVICTED) == []
    assert said(None) == []


def test_a_run_that_left_out_much_needs_longer() -> None:
    cut = replace(CELL, outcome=Outcome.LEFT_OUT)
    [words] = advice([CELL, cut, cut], None, None, None)
    assert words.startswith("There was no time for 2 cells: give the run longer with --within-s")


def test_an_interval_that_is_too_wide_needs_more_samples() -> None:
    wide = replace(TIMED, across=replace(ALIKE, low=0.41, high=0.59))
    [words] = said(wide)
    assert "with 200 the interval is 0.410 to 0.590" in words
    assert "--samples 11300" in words, "7.5 times as narrow, 56 times as many"


def test_twice_as_many_are_the_least_that_is_proposed() -> None:
    beside = replace(TIMED, across=replace(ALIKE, auc=0.52, low=0.507, high=0.533))
    [words] = said(beside)
    assert "--samples 400" in words


def test_a_control_that_hears_nothing_needs_longer_prompts() -> None:
    [words] = said(replace(TIMED, control=replace(APART, auc=0.9)))
    assert "--timing-tokens, now 512" in words
    assert "--samples" not in words


def test_gaps_are_told_from_first_tokens() -> None:
    unsure = replace(TIMED, control=replace(APART, auc=0.9))
    [words] = said(TIMED, gaps=unsure)
    assert words.startswith("The timing test of gaps could not have noticed a leak")
    assert words.endswith("Try under less load."), "longer prompts do not help"
    assert said(TIMED, gaps=TIMED) == []


def test_both_are_said() -> None:
    across, control = replace(ALIKE, low=0.4, high=0.6), replace(APART, auc=0.9)
    assert len(said(replace(TIMED, across=across, control=control))) == 2


def test_an_eviction_test_that_shows_nothing_needs_more_trials() -> None:
    for unsure in (
        replace(EVICTED, control=NOTHING),
        replace(EVICTED, across=replace(NOTHING, bits=0.2, chance=0.4)),
    ):
        [words] = said(TIMED, unsure)
        assert "--eviction-trials" in words
    [words] = said(TIMED, replace(EVICTED, control=replace(NOTHING, trials=len(LEVELS))))
    assert "with one of each number nothing can be told from chance" in words


def test_leaks_are_not_explained_away() -> None:
    assert said(replace(TIMED, across=APART)) == []


def test_cells_are_counted() -> None:
    unsure = replace(CELL, outcome=Outcome.INCONCLUSIVE)
    assert list(advice([CELL, unsure, unsure], None, None, None)) == [
        "2 cells are inconclusive; 'What did not pass' says why each is."
    ]
