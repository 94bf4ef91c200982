"""The choice of a step's drafts: their sources, rows and lengths.

Each row has a guess, the draft of its best source. The row's next tokens show how much of the guess
was right, even if the guess was not verified. A row whose guesses were wrong gets guesses less
often. Nothing learned from one row is used for another row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Ordered

from engine.drafting.acceptance import MOST_DRAFTS, PRIORS, Acceptance
from engine.drafting.draft import BeginDrafts, Draft, DraftSource
from engine.drafting.lengths import Payoff
from engine.sequences.sequence import Sequence

PATIENCE = 24  # number of tokens without a right guess, after which guesses become rare
OUTWEIGHS = 4  # number of wrongly guessed tokens that one rightly guessed token makes up for
LONGEST_REST = 16  # maximum number of tokens between two guesses for a row
GOOD = 0.5  # acceptance at which a full draft is taken without asking later sources


class DraftedRow:
    """The guess for one sequence, and the acceptance of each of its sources."""

    __slots__ = ("_guessed", "_missed", "_sources", "_tokens", "guess", "known", "rests_until")

    def __init__(self, sequence: Sequence, sources: Iterable[BeginDrafts]) -> None:
        """Draft for a sequence from `sources`, which are asked in order."""
        drafters = [drafter for begin in sources if (drafter := begin(sequence)) is not None]
        self._sources = [(drafter, Acceptance(PRIORS[drafter.source])) for drafter in drafters]
        self._tokens = sequence.tokens.data
        self.known = 0
        self.guess: tuple[int, ...] = ()
        self._guessed: tuple[DraftSource, Acceptance] | None = None
        self._missed = 0
        self.rests_until = 0

    def look(self, known: int) -> bool:
        """Learn from new tokens and guess the next tokens. Return whether there is a guess."""
        before = self.known
        if known != before:
            if before:
                self._learn(self._tokens[before:known].tolist())
            self.known, self.guess = known, ()
            if known >= self.rests_until:
                self._ask(known)
                if self._missed > PATIENCE:
                    self.rests_until = known + 1 + min(self._missed // PATIENCE, LONGEST_REST)
        return bool(self.guess)

    def chance(self, pending: int) -> tuple[float, int]:
        """Return the acceptance of a guessed token, and the maximum number of drafted tokens.

        The draft head drafts anew after each of the `pending` tokens.
        """
        assert self._guessed is not None
        source, acceptance = self._guessed
        size = len(self.guess) + (pending if source == "mtp" else 0)
        left = len(self._tokens) - self.known - 1
        return acceptance.probability, size if size < left else left

    def draft(self, length: int) -> Draft:
        """Return the first `length` tokens of the guess."""
        assert self._guessed is not None
        source, acceptance = self._guessed
        return Draft(self.guess[:length], source, acceptance.probability)

    def _learn(self, token_ids: list[int]) -> None:
        right, guess = 0, self.guess
        if guess and self._guessed is not None:
            for expected, token_id in zip(guess, token_ids, strict=False):
                if expected != token_id:
                    break
                right += 1
            is_rejected = right < len(token_ids) and right < len(guess)
            self._guessed[1].learn(right, is_rejected=is_rejected)
        if right:
            missed = self._missed - OUTWEIGHS * right
            self._missed, self.rests_until = missed if missed > 0 else 0, 0
        else:
            self._missed += len(token_ids)

    def _ask(self, known: int) -> None:
        highest = 0.0
        for drafter, acceptance in self._sources:
            if acceptance.most_expected <= highest:
                continue
            token_ids = drafter.draft(known, MOST_DRAFTS)
            if not token_ids:
                continue
            if len(token_ids) == MOST_DRAFTS:
                expected = acceptance.most_expected
                is_good = acceptance.probability >= GOOD
            else:
                expected, is_good = acceptance.expected(len(token_ids)), False
            if expected > highest:
                highest, self.guess = expected, token_ids
                self._guessed = drafter.source, acceptance
                if is_good:
                    return


class ChosenDrafts:
    """The choice of a step's drafts from several sources. Implements `Drafting`."""

    def __init__(
        self,
        sources: Iterable[BeginDrafts],
        payoff: Payoff,
        keep: Callable[[Sequence], None] | None = None,
    ) -> None:
        """Ask `sources` in order. Call `keep` with each sequence that has ended."""
        self._sources = tuple(sources)
        self._payoff, self._keep = payoff, keep
        self._rows: dict[Sequence, DraftedRow] = {}
        self._has_paid = False

    def begin(self, sequence: Sequence) -> None:
        if sequence not in self._rows:
            self._rows[sequence] = DraftedRow(sequence, self._sources)

    def is_worth_waiting(self, decodes: list[Sequence]) -> bool:
        if self._has_paid:
            self._has_paid = False
            return True
        if not self._payoff.can_pay(len(decodes)):
            return False
        pending = max(sequence.num_pending for sequence in decodes)
        return any(self._chosen(decodes, pending)[1])

    def propose(self, decodes: list[Sequence]) -> dict[Sequence, Draft]:
        chosen = zip(*self._chosen(decodes, 0), strict=True)
        drafts = {sequence: row.draft(length) for (sequence, row), length in chosen if length}
        self._has_paid = bool(drafts)
        return drafts

    def ended(self, sequence: Sequence) -> None:
        self._rows.pop(sequence, None)
        if self._keep is not None:
            self._keep(sequence)

    def _chosen(
        self, decodes: list[Sequence], pending: int
    ) -> tuple[Ordered[tuple[Sequence, DraftedRow]], Ordered[int]]:
        guessed = list[tuple[Sequence, DraftedRow]]()
        for sequence in decodes:
            known, row = sequence.num_tokens, self._rows.get(sequence)
            if row is None:
                row = self._rows[sequence] = DraftedRow(sequence, self._sources)
            elif row.known < known < row.rests_until:
                continue
            if row.look(known):
                guessed.append((sequence, row))
        chances = [row.chance(pending) for _, row in guessed]
        return guessed, self._payoff.lengths(len(decodes), chances, pending)
