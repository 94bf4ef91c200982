"""The choice of a step's drafts: from which source, for which rows, and how long.

Each row has a guess: the draft of its best source, verified or not. The tokens that the row then
gets show how much of the guess was right, so that a source's acceptance is learned also while its
drafts do not pay. A row whose guesses are wrong, or that has none, is looked at less often.

Nothing that is learned of one row is used for another, nor kept when it ends.

Knows: sequences, guesses. Does not know: how sources find drafts, or how drafts are verified.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field

from engine.drafting.acceptance import PRIORS, Acceptance
from engine.drafting.draft import Draft, Drafter, DraftSource
from engine.drafting.lengths import MOST_DRAFTS, Payoff
from engine.sequences.sequence import Sequence

PATIENCE = 24  # tokens without a right guess, before a row is looked at less often
OUTWEIGHS = 4  # wrong or missing guesses of a token that a right one makes up for
LONGEST_REST = 16  # tokens between two looks at it
GOOD = 0.5  # acceptance of a source with which no other one is asked


@dataclass(slots=True)
class DraftedRow:
    """One sequence's guess, and the acceptance of its sources."""

    drafters: list[Drafter]  # those asked first come first
    known: int = 0  # tokens of the sequence when it was last looked at; 0: never
    guess: Draft | None = None  # what was expected to follow them
    acceptances: dict[DraftSource, Acceptance] = field(default_factory=dict)
    missed: int = 0  # tokens without a right guess
    rests_until: int = 0  # number of tokens up to which it is not looked at

    def acceptance(self, source: DraftSource) -> Acceptance:
        """Return what is known of a source's drafts for this row."""
        found = self.acceptances.get(source)
        if found is None:
            found = self.acceptances[source] = Acceptance(PRIORS[source])
        return found

    def look(self, sequence: Sequence) -> Draft | None:
        """Learn from the sequence's new tokens, and return a guess of what follows them."""
        known = sequence.num_tokens
        if known != self.known:
            if self.known:
                self._learn(sequence.tokens[self.known : known].tolist())
            self.known, self.guess = known, None
            if known >= self.rests_until:
                self.guess = self._ask(sequence)
                if self.missed > PATIENCE:
                    self.rests_until = known + 1 + min(self.missed // PATIENCE, LONGEST_REST)
        return self.guess

    def _learn(self, token_ids: list[int]) -> None:
        """Compare new tokens with the guess."""
        right, guess = 0, self.guess
        if guess is not None:
            guessed = guess.token_ids[: len(token_ids)]
            right = count = len(guessed)
            if guessed != tuple(token_ids[:count]):
                right = next(at for at in range(count) if guessed[at] != token_ids[at])
            self.acceptance(guess.source).learn(right, is_rejected=right < count)
        if right:
            self.missed, self.rests_until = max(self.missed - OUTWEIGHS * right, 0), 0
        else:
            self.missed += len(token_ids)

    def _ask(self, sequence: Sequence) -> Draft | None:
        """Return the first good guess, or the best one."""
        best, highest = None, 0.0
        for drafter in self.drafters:
            guess = drafter.propose(sequence, MOST_DRAFTS)
            if guess is not None:
                probability = self.acceptance(guess.source).probability
                if probability >= GOOD:
                    return guess
                if probability > highest:
                    best, highest = guess, probability
        return best


class ChosenDrafts:
    """Choice of the drafts of a step from several sources; implements `Drafting`."""

    def __init__(self, drafters: Iterable[Drafter], payoff: Payoff) -> None:
        """Ask the first of `drafters` first."""
        self._drafters = list(drafters)
        self._payoff = payoff
        self._rows: dict[Sequence, DraftedRow] = {}
        self._has_paid = False  # whether the last step that was decided here has drafts

    def is_worth_waiting(self, decodes: list[Sequence]) -> bool:
        if self._has_paid:
            self._has_paid = False  # asked once more before the next step is decided, it looks
            return True
        if not self._payoff.can_pay(len(decodes)):
            return False
        pending = max(sequence.num_pending for sequence in decodes)
        return any(length for _, _, length in self._chosen(decodes, pending))

    def propose(self, decodes: list[Sequence]) -> dict[Sequence, Draft]:
        drafts = {
            sequence: Draft(guess.token_ids[:length], guess.source)
            for sequence, guess, length in self._chosen(decodes, 0)
            if length
        }
        self._has_paid = bool(drafts)
        return drafts

    def ended(self, sequence: Sequence) -> None:
        self._rows.pop(sequence, None)
        for drafter in self._drafters:
            drafter.ended(sequence)

    def _chosen(
        self, decodes: list[Sequence], pending: int
    ) -> Ordered[tuple[Sequence, Draft, int]]:
        """Return the rows with a guess, and how much of each guess to verify."""
        guesses: list[tuple[Sequence, Draft]] = []
        chances: list[tuple[float, int]] = []
        for sequence in decodes:
            row = self._rows.get(sequence)
            if row is None:
                row = self._rows[sequence] = DraftedRow(self._drafters)
            elif row.known < sequence.num_tokens < row.rests_until:
                continue
            guess = row.look(sequence)
            if guess is not None:
                most = min(len(guess.token_ids), len(sequence.tokens) - row.known - 1)
                guesses.append((sequence, guess))
                chances.append((row.acceptance(guess.source).probability, most))
        lengths = self._payoff.lengths(len(decodes), chances, pending)
        return [(*guess, length) for guess, length in zip(guesses, lengths, strict=True)]
