"""What the readings of a cell mean.

    the second reused ...             the first's second time   outcome
    --------------------------------------------------------------------
    more than it may                  -                         leaks
    what it may                       full, from that tier      passed
    what it may                       anything less             inconclusive
    what members of a group may do    full                      allowed

Knows: readings and expectations. Does not know: how they were obtained (`paired`).
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from cli.isolation.asking import Reading
from cli.isolation.cells import Cell, Tier


class Outcome(StrEnum):
    """The outcome of a test."""

    PASSED = "passed"
    ALLOWED = "allowed"  # members of a group may share, and need not
    LEAKS = "leaks"
    INCONCLUSIVE = "inconclusive"
    NOT_APPLICABLE = "not applicable"


class Readings(msgspec.Struct, frozen=True, kw_only=True):
    """The readings of one cell. None: not asked or, for `other`, refused."""

    cold: Reading | None
    control: Reading | None  # the first, again
    other: Reading | None
    after: Reading | None = None  # the first once more, after the other
    refused: int | None = None  # the status that the other got
    published: int = 0  # tokens that the prompt begins with and that are published


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One cell's result. Tokens; no key, no prompt."""

    dimension: str
    case: str
    tier: str
    entry: str
    outcome: Outcome
    reused: int | None
    may_reuse: int | None  # None: any
    control: str  # such as 64 of 64
    control_full: bool
    evicted_between: bool = False  # the first's prompt was evicted before `after`
    note: str = ""


def judged(cell: Cell, readings: Readings, block_size: int) -> Finding:
    """The finding from a cell's readings."""
    control, other = readings.control, readings.other
    whole = 0 if control is None else (control.prompt_tokens - 1) // block_size * block_size
    # Someone who may share has brought the blocks up before the control is asked.
    may_share = cell.case.expected == "anything"
    lay = control is not None and (may_share or _lay_in(cell.tier, control, readings.published))
    may_reuse = _may_reuse(cell, readings)
    full = lay and control is not None and control.is_full(block_size)
    return Finding(
        dimension=cell.case.dimension,
        case=cell.case.name,
        tier=cell.tier,
        entry=cell.entry.name,
        outcome=_outcome(other, may_reuse, readings.refused, full=full),
        reused=None if other is None else other.cached_tokens,
        may_reuse=may_reuse,
        control="-" if control is None else f"{control.cached_tokens} of {whole}",
        control_full=full,
        evicted_between=readings.after is not None and not readings.after.is_full(block_size),
        note=_note(readings, control, full=full, tier=cell.tier),
    )


def not_applicable(cell: Cell, why: str) -> Finding:
    """A cell that this server does not have, such as one of a tier that is off."""
    return _untested(cell, Outcome.NOT_APPLICABLE, why)


def inconclusive(cell: Cell, why: str) -> Finding:
    """A cell whose conditions could not be set up."""
    return _untested(cell, Outcome.INCONCLUSIVE, why)


def absent(dimension: str, case: str, why: str) -> Finding:
    """A dimension that the server does not have, in any tier."""
    return _unread(dimension, case, "any", "any", Outcome.NOT_APPLICABLE, why)


def _untested(cell: Cell, outcome: Outcome, why: str) -> Finding:
    case = cell.case
    return _unread(case.dimension, case.name, cell.tier, cell.entry.name, outcome, why)


def _unread(
    dimension: str, case: str, tier: str, entry: str, outcome: Outcome, why: str
) -> Finding:
    """A finding without any reading."""
    return Finding(
        dimension=dimension,
        case=case,
        tier=tier,
        entry=entry,
        outcome=outcome,
        reused=None,
        may_reuse=None,
        control="-",
        control_full=False,
        note=why,
    )


def _outcome(
    other: Reading | None, may_reuse: int | None, refused: int | None, *, full: bool
) -> Outcome:
    if other is not None and may_reuse is not None and other.cached_tokens > may_reuse:
        return Outcome.LEAKS
    if not full or (other is None and refused is None):
        return Outcome.INCONCLUSIVE
    if may_reuse is None:
        return Outcome.ALLOWED
    if other is not None and other.cached_tokens < may_reuse:
        return Outcome.INCONCLUSIVE  # what is published was not there
    return Outcome.PASSED


def _may_reuse(cell: Cell, readings: Readings) -> int | None:
    if cell.case.expected == "anything":
        return None
    return readings.published if cell.case.expected == "published" else 0


def _lay_in(tier: Tier, control: Reading, published: int) -> bool:
    """Whether the control came from a lower tier, where that is what is tested.

    What is published is always on the device.
    """
    own = control.cached_tokens - published
    return tier not in (Tier.HOST, Tier.DISK) or 0 < own <= control.tiers.get(tier, 0)


def _note(readings: Readings, control: Reading | None, *, full: bool, tier: Tier) -> str:
    if readings.refused is not None:
        return f"refused with {readings.refused}"
    if control is not None and not full:
        lay = ", ".join(f"{name} {tokens}" for name, tokens in control.tiers.items() if tokens)
        return f"the control came from {lay or 'nowhere'}, not whole from {tier}"
    return ""
