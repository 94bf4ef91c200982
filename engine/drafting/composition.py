"""The drafters of an engine, composed.

The order is that of trust in long drafts: an expected answer, what followed the same prefix before,
what a grammar forces (certain, and mostly short), the sequence's own text, other answers, the head
that the checkpoint brings.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from engine.drafting.answers import EarlierAnswers
from engine.drafting.draft import BeginDrafts
from engine.drafting.drafting import ChosenDrafts
from engine.drafting.forced import forced_tokens
from engine.drafting.head import HeadDraft
from engine.drafting.lengths import Payoff, StepSeconds, no_seconds
from engine.drafting.own_text import own_text
from engine.drafting.prediction import predicted_text
from engine.drafting.tree_walk import tree_walk
from prefix_cache.tree.tree import RadixTree


def choose_drafts(
    tree: RadixTree,
    step_seconds: StepSeconds,
    host_seconds: Callable[[], float] = no_seconds,
    most_rows: int | None = None,
    answers: EarlierAnswers | None = None,
    *,
    has_states: bool = False,
    has_head: bool = False,
) -> ChosenDrafts:
    """Compose the choice of drafts from all sources that need no weights.

    `step_seconds(rows)` predicts the seconds of a step of so many rows of one token, 0 or None if
    that is unknown. `host_seconds()` is what a step takes longer because it is decided only when
    the step before it has been settled. A step has at most `most_rows` rows and drafted tokens
    together. `answers` takes the place of those of each namespace apart. `has_states`: the model
    has recurrent layers; `has_head`: a head that drafts.
    """
    answers = answers or EarlierAnswers(tree)
    texts = predicted_text, partial(tree_walk, tree), forced_tokens, own_text, answers.begin
    sources: tuple[BeginDrafts, ...] = (*texts, HeadDraft) if has_head else texts
    payoff = Payoff(step_seconds, host_seconds, most_rows, has_states=has_states)
    return ChosenDrafts(sources, payoff, answers.keep)
