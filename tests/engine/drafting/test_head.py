"""Tokens that a draft head proposes are used after the sample with which they came. Steps wait for
them while they are mostly right.
"""

from __future__ import annotations

from engine.drafting.draft import Draft
from engine.drafting.drafting import ChosenDrafts
from engine.drafting.head import HeadDraft
from engine.drafting.lengths import Payoff
from tests.engine.drafting.rows import give, row


def test_tokens_count_after_the_sample_that_they_came_with() -> None:
    sequence = row([1, 2, 3], 9)
    head = HeadDraft(sequence)
    assert head.draft(3, 5) == ()
    give(sequence, 4)
    sequence.head_draft = 4, (77, 78)
    assert head.draft(4, 5) == (77, 78)
    assert head.draft(4, 1) == (77,)
    assert head.draft(4, 0) == head.draft(5, 5) == ()
    sequence.head_draft = 5, ()
    assert head.draft(5, 5) == ()


def test_its_next_draft_is_worth_waiting_for() -> None:
    """Wait for the pending step: its result brings a longer draft.

    The one-token draft is already the pending token, and the head has drafted the token after it.
    """
    sequence = row([1, 2, 3], 30)
    chosen = ChosenDrafts([HeadDraft], Payoff(lambda rows: 1 + 0.01 * rows))
    for known in range(4, 12):
        give(sequence, known)
        sequence.head_draft = known, (known + 1,)
        sequence.num_pending = 1
        assert chosen.is_worth_waiting([sequence])
        sequence.num_pending = 0
    draft = chosen.propose([sequence])[sequence]
    assert draft[:2] == Draft((12,), "mtp")[:2]


def test_a_head_that_is_mostly_wrong_is_not_waited_for() -> None:
    sequence = row([1, 2, 3], 60)
    chosen = ChosenDrafts([HeadDraft], Payoff(lambda rows: 1 + 0.2 * rows))
    for known in range(4, 40):
        give(sequence, known)
        sequence.head_draft = known, (0,)
        chosen.propose([sequence])
    sequence.num_pending = 1
    chosen.is_worth_waiting([sequence])
    assert not chosen.is_worth_waiting([sequence])
