"""The counters of the gaps between tokens, for sequences with a target."""

from __future__ import annotations

import msgspec

MOST_LATE_GAPS = 0.01  # maximum share of late gaps for which a target counts as met


class GapStats(msgspec.Struct, frozen=True, kw_only=True):
    """The gaps between tokens of sequences that have a target, since the engine started.

    `recent_gaps` and `recent_late` count gaps of the last minute. Targets count as missed while
    more than 1 % of these gaps are late.
    """

    target_s: float = 0.0  # the engine's own target (`--target-itl-ms`); 0: no target
    gaps: int = 0
    late: int = 0
    recent_gaps: int = 0
    recent_late: int = 0
    one_s: float = 0.0  # predicted seconds of a step with one sequence; 0: not measured
    # Predicted seconds that the last late step would have taken without its prompts.
    alone_s: float = 0.0

    def __add__(self, other: GapStats) -> GapStats:
        """Add the counts. Take the maximum of the targets and of each predicted time."""
        return GapStats(
            target_s=max(self.target_s, other.target_s),
            gaps=self.gaps + other.gaps,
            late=self.late + other.late,
            recent_gaps=self.recent_gaps + other.recent_gaps,
            recent_late=self.recent_late + other.recent_late,
            one_s=max(self.one_s, other.one_s),
            alone_s=max(self.alone_s, other.alone_s),
        )

    @property
    def is_missed(self) -> bool:
        """True if more than 1 % of the last minute's gaps were late."""
        return self.recent_late > self.recent_gaps * MOST_LATE_GAPS

    @property
    def is_too_short(self) -> bool:
        """True if the engine's target is too short: a step with one sequence takes longer."""
        return 0 < self.target_s < self.one_s

    def describe(self) -> str:
        """Return a sentence that says how often targets are missed, and how long decodes take."""
        if self.is_too_short:
            return (
                f"the target of {1e3 * self.target_s:.3g} ms between tokens cannot be kept: a step "
                f"of one sequence takes {1e3 * self.one_s:.3g} ms"
            )
        share = 100 * self.recent_late / max(self.recent_gaps, 1)
        return (
            f"{share:.2g} % of the last minute's gaps between tokens exceed their targets; the "
            f"decodes of the last late step take {1e3 * self.alone_s:.3g} ms without prompts"
        )
