"""The volatile parts of texts that should stay the same: dates, times, ids, counts."""

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

VolatileKind = Literal["billing_header", "uuid", "date", "time", "epoch", "random_id", "number"]

_BILLING = r"x-anthropic-billing-header:[^\n]*"
# Claude Code writes this header as its first system block, with a hash that varies.
_BILLING_HEADER = re.compile(rf"\A\s*{_BILLING}(\n|\Z)", re.IGNORECASE)
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?"
# The first kind that matches is used. A number counts as volatile only if it differs between two
# prompts.
_SPELLED: tuple[tuple[VolatileKind, str], ...] = (
    ("billing_header", _BILLING),
    ("uuid", r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"),
    (
        "date",
        r"\b(?:\d{4}-\d\d?-\d\d?|\d\d?[/.]\d\d?[/.]\d{4}|\d{4}/\d\d?/\d\d?"
        rf"|\d\d?\.?\s{_MONTH}\s\d{{4}}|{_MONTH}\s\d\d?(?:st|nd|rd|th)?,?\s\d{{4}})"
        r"(?:[T ]\d\d:\d\d(?::\d\d)?(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?)?",
    ),
    ("time", r"\b\d?\d:\d\d(?::\d\d)?(?:\.\d+)?(?:\s?[AaPp][Mm]\b)?"),
    ("epoch", r"\b1[5-9]\d{8}(?:\d{3}|\d{6}|\d{9})?(?:\.\d+)?\b"),
    # At least two digits and two letters, so that no long word matches.
    (
        "random_id",
        r"\b(?:[A-Za-z]{2,12}[_-])?(?=[A-Za-z0-9]*\d[A-Za-z0-9]*\d)"
        r"(?=[0-9]*[A-Za-z][A-Za-z0-9]*[A-Za-z])[A-Za-z0-9]{16,}\b",
    ),
)
_NUMBER = re.compile(r"\d[\d.,]*")
_ANY = re.compile("|".join(f"(?P<{kind}>{spelled})" for kind, spelled in _SPELLED), re.IGNORECASE)


class Volatile(NamedTuple):
    """A volatile part of a text, likely to differ in the next request, and its span in the text."""

    kind: VolatileKind
    start: int
    end: int


def volatile_in(text: str) -> Iterator[Volatile]:
    """Yield the volatile parts of `text`, in order, except plain numbers."""
    for found in _ANY.finditer(text):
        kind: VolatileKind = found.lastgroup  # type: ignore[assignment]
        yield Volatile(kind, found.start(), found.end())


def kind_at(text: str, at: int) -> VolatileKind | None:
    """Name the kind of volatile part at character `at` of `text`, or return None."""
    for one in volatile_in(text):
        if one.start <= at <= one.end:
            return one.kind
    numbers = (found.span() for found in _NUMBER.finditer(text))
    return "number" if any(start <= at <= end for start, end in numbers) else None


def without_billing_header(system: str) -> str:
    """Return `system` without a billing header and its newline at the beginning."""
    return _BILLING_HEADER.sub("", system, count=1)
