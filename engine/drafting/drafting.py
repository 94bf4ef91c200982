"""The choice of a step's drafts: their sources, rows and lengths.

Each row has a guess, the draft of its best source. The row's next tokens show how much of the guess
was right, even if the guess was not verified. A row whose guesses were wrong gets guesses less
often. Nothing learned from one row is used for another row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Ordered

from engine.drafting.acceptance import MOST_DRAFTS, PRIORS, Acceptance
from engine.drafting.alignment import Alignment
from engine.drafting.draft import BeginDrafts, Draft, Drafter
from engine.drafting.lengths import Payoff
from engine.sequences.sequence import Sequence

PATIENCE = 24  # number of tokens without a right guess, after which guesses become rare
OUTWEIGHS = 4  # number of wrongly guessed tokens that one rightly guessed token makes up for
LONGEST_REST = 16  # maximum number of tokens between two guesses for a row
GOOD = 0.5  # acceptance at which a full draft is taken without asking later sources


class DraftedRow:
    """The guess for one sequence, and the acceptance of each of its sources."""

    __slots__ = (
        "_coming",
        "_guessed",
        "_learned",
        "_missed",
        "_own",
        "_sources",
        "_tokens",
        "_verified",
        "guess",
        "known",
        "rests_until",
    )

    def __init__(self, sequence: Sequence, sources: Iterable[BeginDrafts]) -> None:
        """Draft for a sequence from `sources`, which are asked in order."""
        drafters = [drafter for begin in sources if (drafter := begin(sequence)) is not None]
        self._sources = [(drafter, Acceptance(PRIORS[drafter.source])) for drafter in drafters]
        texts = (one for one in drafters if isinstance(one, Alignment))
        self._own = next((one for one in texts if one.source == "own"), None)
        self._tokens = sequence.tokens.data if self._own is None else self._own.index.tokens
        self.known = 0
        self.guess: tuple[int, ...] = ()
        self._guessed: tuple[Drafter, Acceptance] | None = None
        self._verified = 0  # number of the guess's tokens that the launched step verifies
        self._coming: list[int] = []  # next tokens for which the next guess is prepared
        self._learned = 0.0, 0.0, 0.0  # update of the source if the tokens in `_coming` come
        self._missed = 0
        self.rests_until = 0

    def look(self, known: int) -> bool:
        """Learn from new tokens and guess the next tokens. Return whether there is a guess."""
        before = self.known
        if known != before:
            if self.guess:
                self._learn(self._tokens[before:known].tolist())
            elif before:
                self._missed += known - before
            self.known, self.guess, self._verified = known, (), 0
            if known >= self.rests_until:
                self._ask(known)
                if self._missed > PATIENCE:
                    self.rests_until = known + 1 + min(self._missed // PATIENCE, LONGEST_REST)
        return bool(self.guess)

    def chance(self, pending: int) -> tuple[float, int]:
        """Return the acceptance of a guessed token, and the maximum number of drafted tokens.

        The draft head's guess follows the `pending` tokens. These tokens then count as drafted too.
        """
        assert self._guessed is not None
        drafter, acceptance = self._guessed
        size = len(self.guess) + (pending if pending and drafter.source == "mtp" else 0)
        left = len(self._tokens) - self.known - 1
        return acceptance.probability, size if size < left else left

    def draft(self, length: int) -> Draft:
        """Return the first `length` tokens of the guess."""
        assert self._guessed is not None
        drafter, acceptance = self._guessed
        self._verified = length
        return Draft(self.guess[:length], drafter.source, acceptance.probability)

    def prepare(self) -> None:
        """Prepare the next guess, while a launched step samples the next tokens."""
        if self._own is not None and self.known:
            self._own.catch_up(self.known)
        if self.guess and self._guessed is not None:
            drafter, acceptance = self._guessed
            if isinstance(drafter, Alignment):
                self._coming = drafter.prepare(self.known, self._verified + 1, MOST_DRAFTS)
                right = min(len(self._coming), len(self.guess))
                self._learned = acceptance.after(right, is_rejected=False)

    def _learn(self, token_ids: list[int]) -> None:
        assert self._guessed is not None
        right, guess = 0, self.guess
        drafter, acceptance = self._guessed
        coming, self._coming = self._coming, []
        if token_ids == coming and isinstance(drafter, Alignment):
            right = min(len(token_ids), len(guess))
            drafter.advance(len(token_ids))
            acceptance.take(self._learned)
        else:
            for expected, token_id in zip(guess, token_ids, strict=False):
                if expected != token_id:
                    break
                right += 1
            is_rejected = right < len(token_ids) and right < len(guess)
            acceptance.learn(right, is_rejected=is_rejected)
        if right:
            missed = self._missed - OUTWEIGHS * right
            self._missed, self.rests_until = missed if missed > 0 else 0, 0
        else:
            self._missed += len(token_ids)

    def _ask(self, known: int) -> None:
        highest = 0.0
        for drafter, acceptance in self._sources:
            if highest and acceptance.most_expected <= highest:
                continue
            token_ids = drafter.draft(known, MOST_DRAFTS)
            if not token_ids:
                continue
            is_good = len(token_ids) == MOST_DRAFTS and acceptance.probability >= GOOD
            if is_good and not highest:
                self.guess, self._guessed = token_ids, (drafter, acceptance)
                return
            expected = acceptance.expected(len(token_ids))
            if expected > highest:
                highest, self.guess = expected, token_ids
                self._guessed = drafter, acceptance
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

    def prepare(self, sequence: Sequence) -> None:
        row = self._rows.get(sequence)
        if row is None:
            self._rows[sequence] = DraftedRow(sequence, self._sources)
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
                row = self._rows[sequence] = DraftedRow(sequence, self._sources)
            elif row.known < known < row.rests_until:
                continue
            if row.look(known):
                guessed.append((sequence, row))
        chances = [row.chance(pending) for _, row in guessed]
        return guessed, self._payoff.lengths(len(decodes), chances, pending)
