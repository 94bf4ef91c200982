"""The choice of a step's drafts: their sources, rows and lengths.

Each row has a guess, the draft of its best source. The row's next tokens show how much of the guess
was right, even if the guess was not verified. A row whose guesses were wrong gets guesses less
often. Nothing learned from one row is used for another row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Ordered

from engine.drafting.acceptance import MOST_DRAFTS, PRIORS, Acceptance, gains
from engine.drafting.alignment import Alignment
from engine.drafting.draft import BeginDrafts, Draft, Drafter
from engine.drafting.lengths import Payoff
from engine.sequences.sequence import Sequence

PATIENCE = 24  # number of tokens without a correct guess after which guesses become less frequent
OUTWEIGHS = 4  # number of wrongly guessed tokens that one correctly guessed token makes up for
LONGEST_REST = 16  # maximum number of tokens between two guesses for a row
RUN = 16  # number of successive correct tokens after which the acceptance learns of them
GOOD = 4.0  # expected number of accepted tokens that is enough to ask no further source


class DraftedRow:
    """The guess for one sequence, and the acceptance of each of its sources."""

    __slots__ = (
        "_acceptance",
        "_drafter",
        "_gains",
        "_guess",
        "_matched",
        "_missed",
        "_most_known",
        "_own",
        "_right",
        "_sequence",
        "_size",
        "_sources",
        "_text",
        "_tokens",
        "known",
        "rests_until",
    )

    def __init__(
        self, sequence: Sequence, sources: Iterable[BeginDrafts], gains: list[list[float]]
    ) -> None:
        """Draft for a sequence from `sources`, asked in this order.

        `gains` has the expected number of accepted tokens, by curve and then by draft length.
        """
        drafters = [drafter for begin in sources if (drafter := begin(sequence)) is not None]
        self._sources = [
            (one, one if isinstance(one, Alignment) else None, Acceptance(PRIORS[one.source]))
            for one in drafters
        ]
        texts = (text for _, text, _ in self._sources if text is not None)
        self._own = next((text.index for text in texts if text.source == "own"), None)
        self._tokens = sequence.tokens.data if self._own is None else self._own.tokens
        self._sequence, self._gains = sequence, gains
        self._most_known = len(sequence.tokens) - 1
        self.known = 0
        self._drafter: Drafter | None = None
        self._acceptance: Acceptance | None = None
        # The guess is the next tokens of `_text` if a text is followed. Otherwise the guess is
        # `_guess`.
        self._text: Alignment | None = None
        self._guess: tuple[int, ...] = ()
        self._size = 0  # number of guessed tokens
        self._matched = 0  # number of matched tokens of which the acceptance has learned
        self._right = 0  # number of later correct tokens, of which it has not learned yet
        self._missed = 0
        self.rests_until = 0

    def look(self, known: int) -> bool:
        """Learn from new tokens and guess the next tokens. Return whether there is a guess."""
        before = self.known
        if known == before:
            return self._size > 0
        self.known = known
        if self._size:
            if self._goes_on(before, known):
                return True
        elif before:
            self._missed += known - before
        if known >= self.rests_until:
            if self._own is not None:
                self._own.extend(before or known - 1)
            self._ask(known)
            if self._missed > PATIENCE:
                self.rests_until = known + 1 + min(self._missed // PATIENCE, LONGEST_REST)
        return self._size > 0

    def chance(self, pending: int) -> tuple[int, int]:
        """Return the index of the guess's curve, and the maximum number of drafted tokens.

        In a step, a row with a recurrent state or a ring passes at most one block's end. The draft
        head guesses the tokens after the `pending` tokens, so these count as drafted too.
        """
        assert self._drafter is not None
        assert self._acceptance is not None
        size, left, lease = self._size, self._most_known - self.known, self._sequence.lease
        if lease is not None and lease.states is not None:
            end = lease.states.most_end(self._sequence.num_computed)
            left = max(min(left, end - self.known), 0)
        if pending and self._drafter.source == "mtp":
            size += pending
        return self._acceptance.curve(self._matched + self._right), size if size < left else left

    def draft(self, length: int) -> Draft:
        """Return the first `length` tokens of the guess."""
        drafter, acceptance, text = self._drafter, self._acceptance, self._text
        assert drafter is not None
        assert acceptance is not None
        token_ids = self._guess[:length] if text is None else text.ahead(length)
        gains = self._gains[acceptance.curve(self._matched + self._right)]
        return Draft(token_ids, drafter.source, gains[length] - gains[length - 1])

    def prepare(self) -> None:
        """Index the sequence's own tokens. Call while a launched step samples the next tokens."""
        if self._own is not None and self.known:
            self._own.extend(self.known)

    def _goes_on(self, before: int, known: int) -> bool:
        """Learn how many new tokens were guessed correctly.

        Return whether all of them were, and the source can guess again.
        """
        text, count, guessed = self._text, known - before, self._size
        if text is not None:
            right = text.follow(known)
            self._size = text.find(MOST_DRAFTS) if right == count else 0
        else:
            right = self._guess_again(before, known)
        self._count(right, count)
        if right == count and self._size:
            return True
        assert self._acceptance is not None
        is_rejected = right < count and right < guessed
        self._acceptance.learn(self._matched, self._right, is_rejected=is_rejected)
        return False

    def _guess_again(self, before: int, known: int) -> int:
        """Guess again where no text is followed. Return how much of the last guess was right."""
        assert self._drafter is not None
        right = 0
        for expected, token_id in zip(self._guess, self._tokens[before:known], strict=False):
            if expected != token_id:
                break
            right += 1
        follows = before + right == known and self._drafter.source != "mtp"
        self._guess = self._drafter.draft(known, MOST_DRAFTS) if follows else ()
        self._size = len(self._guess)
        return right

    def _count(self, right: int, new: int) -> None:
        """Count how many of the `new` tokens were guessed correctly."""
        if not right:
            self._missed += new
            return
        self._right += right
        if self._right >= RUN:
            assert self._acceptance is not None
            self._acceptance.learn(self._matched, self._right, is_rejected=False)
            self._matched, self._right = self._matched + self._right, 0
        self.rests_until = 0
        if self._missed:
            self._missed = max(self._missed - OUTWEIGHS * right, 0)

    def _ask(self, known: int) -> None:
        gains, highest = self._gains, 0.0
        self._right, self._size, self._text = 0, 0, None
        for drafter, text, acceptance in self._sources:
            guess: tuple[int, ...] = ()
            if text is None:
                guess = drafter.draft(known, MOST_DRAFTS)
                size = len(guess)
            else:
                if text.known != known:
                    text.follow(known)
                size = text.find(MOST_DRAFTS)
            if size:
                matched = drafter.matched
                expected = gains[acceptance.curve(matched)][size]
                if expected > highest:
                    highest, self._size, self._matched = expected, size, matched
                    self._drafter, self._acceptance = drafter, acceptance
                    self._text, self._guess = text, guess
                    if expected >= GOOD:
                        break


class ChosenDrafts:
    """The choice of a step's drafts from several sources. Implements `Drafting`."""

    def __init__(
        self,
        sources: Iterable[BeginDrafts],
        payoff: Payoff,
        keep: Callable[[Sequence], None] | None = None,
    ) -> None:
        """Choose among `sources`, asked in order. Call `keep` with each sequence that has ended."""
        self._sources = tuple(sources)
        self._payoff, self._keep = payoff, keep
        self._gains = gains()
        self._rows: dict[Sequence, DraftedRow] = {}
        self._has_paid = False

    def prepare(self, sequence: Sequence) -> None:
        row = self._rows.get(sequence)
        if row is None:
            self._rows[sequence] = DraftedRow(sequence, self._sources, self._gains)
        else:
            row.prepare()

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
                row = self._rows[sequence] = DraftedRow(sequence, self._sources, self._gains)
            elif row.known < known < row.rests_until:
                continue
            if row.look(known):
                guessed.append((sequence, row))
        chances = [row.chance(pending) for _, row in guessed]
        return guessed, self._payoff.lengths(len(decodes), chances, pending)
