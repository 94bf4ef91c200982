"""Advice for an inconclusive verdict: the flag to change, and its new value."""

import math
from collections.abc import Iterator, Sequence

from cli.isolation.eviction import LEVELS, EvictionFinding
from cli.isolation.timing.separation import Separation
from cli.isolation.timing.trials import TimingFinding
from cli.isolation.verdict import (
    CONTROL_AUC,
    CONTROL_BITS,
    TOLERANCE,
    Finding,
    Outcome,
    eviction_outcome,
    leaves_out_too_much,
    timing_outcome,
)

_STEP = 100  # numbers of samples are rounded up to multiples of this number
# Maximum share of the tolerance for half of an interval. Chance also moves the interval's middle.
# With this share, a server that leaks nothing passes 99 times in a hundred.
_ROOM = 0.4


def advice(
    findings: Sequence[Finding],
    timing: TimingFinding | None,
    gaps: TimingFinding | None,
    eviction: EvictionFinding | None,
    modules: TimingFinding | None = None,
) -> Iterator[str]:
    """Yield a sentence or two of advice for each inconclusive test."""
    unsure = sum(finding.outcome is Outcome.INCONCLUSIVE for finding in findings)
    if unsure:
        yield f"{unsure} cells are inconclusive; 'What did not pass' says why each is."
    if leaves_out_too_much(findings):
        cut = sum(finding.outcome is Outcome.LEFT_OUT for finding in findings)
        yield (
            f"There was no time for {cut} cells: give the run longer with --within-s, or the "
            "server less to do meanwhile."
        )
    if timing is not None and timing_outcome(timing) is Outcome.INCONCLUSIVE:
        longer = f"longer prompts (--timing-tokens, now {timing.prompt_tokens}), "
        yield from _of_timing(timing, "timing test", longer)
    if gaps is not None and timing_outcome(gaps) is Outcome.INCONCLUSIVE:
        yield from _of_timing(gaps, "timing test of gaps")
    if modules is not None and timing_outcome(modules) is Outcome.INCONCLUSIVE:
        longer = f"longer prompts (--timing-tokens, now {modules.prompt_tokens}), "
        yield from _of_timing(modules, "timing test of modules", longer)
    if eviction is not None and eviction_outcome(eviction) is Outcome.INCONCLUSIVE:
        yield _of_eviction(eviction)


def _of_timing(timing: TimingFinding, test: str, longer: str = "") -> Iterator[str]:
    across, control = timing.across, timing.control
    if across.low < 0.5 - TOLERANCE or across.high > 0.5 + TOLERANCE:
        yield (
            f"The {test} needs more samples: with {across.samples} the interval is "
            f"{across.low:.3f} to {across.high:.3f}, and it must lie within {TOLERANCE} of 0.5. "
            f"Try --samples {_samples(across)}, under a load that is steady."
        )
    if control.auc <= CONTROL_AUC:
        yield (
            f"The {test} could not have noticed a leak: its control's AUC is "
            f"{control.auc:.3f}, and must be above {CONTROL_AUC}. Try {longer}under "
            "less load."
        )


def _samples(across: Separation) -> int:
    """Return how many samples make the interval narrow enough.

    The interval's width falls with the root of the number of samples.
    """
    half = (across.high - across.low) / 2
    wanted = across.samples * max(2.0, (half / (TOLERANCE * _ROOM)) ** 2)
    return math.ceil(wanted / _STEP) * _STEP


def _of_eviction(eviction: EvictionFinding) -> str:
    if eviction.control.trials <= len(LEVELS):
        why = "with one of each number nothing can be told from chance, not even in the control"
    elif eviction.control.bits <= CONTROL_BITS:
        why = f"its control learnt {eviction.control.bits:.2f} bits of {CONTROL_BITS}"
    else:
        why = f"what it learnt may be chance ({eviction.across.chance:.2f})"
    return f"The eviction test needs more trials: {why}. Try more --eviction-trials."
