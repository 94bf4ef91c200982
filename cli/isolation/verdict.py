"""The verdict on findings: whether each shows that tenants are isolated.

the other tenant reused ...       the control found         outcome
--------------------------------------------------------------------
more than it may                  -                         leaks
exactly what it may               all, in the cell's tier   passed
exactly what it may               less                      inconclusive
any number (members of a group)   all                       allowed
"""

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from cli.isolation.cases import Cell, TierCase
from cli.isolation.eviction import EvictionFinding
from cli.isolation.reading import Reading
from cli.isolation.timing.trials import TimingFinding

TOLERANCE = 0.03  # maximum distance of an AUC from 0.5 that is no leak
CONTROL_AUC = 0.95
MOST_BITS = 0.05  # maximum information, in bits per trial of the eviction test, that is no leak
CONTROL_BITS = 0.5
MOST_CHANCE = 0.05  # maximum `chance` of a leak; with a higher `chance`, bits are no leak
MOST_LEFT_OUT = 0.1


class Outcome(StrEnum):
    """The outcomes of a test."""

    PASSED = "passed"
    ALLOWED = "allowed"  # tenants of one group may share KV blocks, but need not
    LEAKS = "leaks"
    INCONCLUSIVE = "inconclusive"
    NOT_APPLICABLE = "not applicable"
    LEFT_OUT = "left out"  # the run had no time for the test


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a cell, in tokens, without key or prompt."""

    dimension: str
    case: str
    tier: str = "any"
    entry: str = "any"
    outcome: Outcome
    reused: int | None = None
    may_reuse: int | None = None  # tokens that may be reused; None: any number
    control: str = "-"
    control_full: bool = False
    note: str = ""


def judged(
    cell: Cell, control: Reading, other: Reading | None, published: int, block_size: int
) -> Finding:
    """Judge a cell. `other` is None if the other request was refused.

    The first `published` tokens of the prompt are published.
    """
    whole = (control.prompt_tokens - 1) // block_size * block_size
    may_reuse = {"anything": None, "published": published}.get(cell.case.expected, 0)
    # If the other tenant may share the KV blocks, its earlier request has loaded them to the
    # device.
    in_place = may_reuse is None or _came_from(cell.tier, control, published)
    full = in_place and control.is_full(block_size)
    note = "refused with 400" if other is None else ""
    if not full and not note:
        tiers = ", ".join(f"{name} {tokens}" for name, tokens in control.tiers.items() if tokens)
        note = f"the control came from {tiers or 'nowhere'}, not whole from {cell.tier}"
    reused = may_reuse if other is None else other.cached_tokens
    return msgspec.structs.replace(
        untested(cell, outcome_of(reused, may_reuse, full=full), note),
        reused=None if other is None else other.cached_tokens,
        may_reuse=may_reuse,
        control=f"{control.cached_tokens} of {whole}",
        control_full=full,
    )


def untested(cell: Cell, outcome: Outcome, why: str) -> Finding:
    """Write the finding of a cell that could not be tested on this server."""
    return Finding(
        dimension=cell.case.dimension,
        case=cell.case.name,
        tier=cell.tier,
        entry=cell.entry.name,
        outcome=outcome,
        note=why,
    )


def timing_outcome(timing: TimingFinding) -> Outcome:
    """Judge whether the times of hits and misses could be told apart.

    Leaks: the whole interval lies outside the tolerance. Passed: the interval lies within, and the
    control shows that a hit would have been noticed. Anything else is inconclusive, for example
    with too few samples or too much noise.
    """
    across = timing.across
    if across.low > 0.5 + TOLERANCE or across.high < 0.5 - TOLERANCE:
        return Outcome.LEAKS
    within = across.low >= 0.5 - TOLERANCE and across.high <= 0.5 + TOLERANCE
    shows = within and timing.control.auc > CONTROL_AUC
    return Outcome.PASSED if shows else Outcome.INCONCLUSIVE


def eviction_outcome(eviction: EvictionFinding) -> Outcome:
    """Judge whether an attacker's own blocks revealed the size of a victim's prompt."""
    across = eviction.across
    if across.bits >= MOST_BITS and across.chance < MOST_CHANCE:
        return Outcome.LEAKS
    shows = across.bits < MOST_BITS and eviction.control.bits > CONTROL_BITS
    return Outcome.PASSED if shows else Outcome.INCONCLUSIVE


def overall(findings: Sequence[Finding], *others: Outcome | None) -> Outcome:
    """Return the worst outcome, or inconclusive if too many or all cells were untested.

    `others` are the outcomes of the timing and eviction tests, with None for a skipped test.
    """
    outcomes = {finding.outcome for finding in findings}
    was_tested = not outcomes.isdisjoint((Outcome.PASSED, Outcome.ALLOWED))
    outcomes.update(other for other in others if other is not None)
    if Outcome.LEAKS in outcomes:
        return Outcome.LEAKS
    if Outcome.INCONCLUSIVE in outcomes or not was_tested or leaves_out_too_much(findings):
        return Outcome.INCONCLUSIVE
    return Outcome.PASSED


def leaves_out_too_much(findings: Sequence[Finding]) -> bool:
    """Return whether the run skipped too many of its cells for lack of time."""
    counts = Counter(finding.outcome for finding in findings)
    applying = len(findings) - counts[Outcome.NOT_APPLICABLE]
    return counts[Outcome.LEFT_OUT] > MOST_LEFT_OUT * applying


def outcome_of(reused: int | None, may_reuse: int | None, *, full: bool) -> Outcome:
    """Judge the number of reused tokens, of which `may_reuse` were allowed.

    `reused` is None if the request was refused. `may_reuse` is None if any number was allowed.
    `full` means that the control found all tokens.
    """
    if reused is not None and may_reuse is not None and reused > may_reuse:
        return Outcome.LEAKS
    if not full:
        return Outcome.INCONCLUSIVE
    if reused is None or may_reuse is None:
        return Outcome.ALLOWED
    # Fewer than the allowed tokens mean that the published prefix was not cached.
    return Outcome.PASSED if reused == may_reuse else Outcome.INCONCLUSIVE


def _came_from(tier: TierCase, control: Reading, published: int) -> bool:
    """Return whether all of the control's own tokens came from `tier`, if it is a lower tier.

    The `published` tokens do not count, as they are always on the device.
    """
    own = control.cached_tokens - published
    return tier not in (TierCase.HOST, TierCase.DISK) or 0 < own <= control.tiers.get(tier, 0)
