"""When tenants count as isolated.

Knows: what each result must be. Does not know: how it was got or is shown.
"""

from __future__ import annotations

from collections.abc import Sequence

from cli.isolation.findings import Finding, Outcome
from cli.isolation.timing import Timing

TOLERANCE = 0.03  # of an AUC of 0.5
CONTROL_AUC = 0.95
_GOOD = (Outcome.PASSED, Outcome.ALLOWED)


def timing_outcome(timing: Timing) -> Outcome:
    """Leaks: the interval lies beyond the tolerance. Passed: within, and the control is heard.

    Anything else is inconclusive: too few samples, too much noise, or prompts too short.
    """
    across = timing.across
    if across.low > 0.5 + TOLERANCE or across.high < 0.5 - TOLERANCE:
        return Outcome.LEAKS
    if timing.control.auc <= CONTROL_AUC:
        return Outcome.INCONCLUSIVE
    within = across.low >= 0.5 - TOLERANCE and across.high <= 0.5 + TOLERANCE
    return Outcome.PASSED if within else Outcome.INCONCLUSIVE


def paired_outcome(findings: Sequence[Finding]) -> Outcome:
    """Of all cells: one that leaks decides, then one that showed nothing."""
    outcomes = {finding.outcome for finding in findings}
    for worse in (Outcome.LEAKS, Outcome.INCONCLUSIVE):
        if worse in outcomes:
            return worse
    return Outcome.PASSED if outcomes & set(_GOOD) else Outcome.INCONCLUSIVE


def overall(findings: Sequence[Finding], timing: Timing | None) -> Outcome:
    """Of everything that was asked for; `timing` is None where it was left out."""
    paired = paired_outcome(findings)
    outcomes = {paired, paired if timing is None else timing_outcome(timing)}
    for worse in (Outcome.LEAKS, Outcome.INCONCLUSIVE):
        if worse in outcomes:
            return worse
    return Outcome.PASSED
