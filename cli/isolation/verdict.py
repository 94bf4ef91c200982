"""When tenants count as isolated.

Knows: what each result must be. Does not know: how it was measured or is shown.
"""

from __future__ import annotations

from collections.abc import Sequence

from cli.isolation.findings import Finding, Outcome
from cli.isolation.timing import Timing

TOLERANCE = 0.03  # of an AUC of 0.5
CONTROL_AUC = 0.95
_GOOD = (Outcome.PASSED, Outcome.ALLOWED)


def timing_outcome(timing: Timing) -> Outcome:
    """Whether hits and misses could be told apart by their times.

    Leaks: the whole interval lies outside the tolerance. Passed: it lies within, and the control
    shows that a hit would have been noticed. Anything else is inconclusive: too few samples, too
    much noise, or prompts that are too short.
    """
    across = timing.across
    if across.low > 0.5 + TOLERANCE or across.high < 0.5 - TOLERANCE:
        return Outcome.LEAKS
    if timing.control.auc <= CONTROL_AUC:
        return Outcome.INCONCLUSIVE
    within = across.low >= 0.5 - TOLERANCE and across.high <= 0.5 + TOLERANCE
    return Outcome.PASSED if within else Outcome.INCONCLUSIVE


def overall(findings: Sequence[Finding], timing: Timing | None) -> Outcome:
    """The worst of all outcomes; inconclusive if no cell could be tested.

    `timing` is None where the timing test was left out.
    """
    outcomes = {finding.outcome for finding in findings}
    was_tested = not outcomes.isdisjoint(_GOOD)
    if timing is not None:
        outcomes.add(timing_outcome(timing))
    if Outcome.LEAKS in outcomes:
        return Outcome.LEAKS
    if Outcome.INCONCLUSIVE in outcomes or not was_tested:
        return Outcome.INCONCLUSIVE
    return Outcome.PASSED
