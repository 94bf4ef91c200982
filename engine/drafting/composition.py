"""The composition of an engine's drafters.

Sources with more reliable long drafts are asked first.
"""

from __future__ import annotations

import sys
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
    most_rows: int = sys.maxsize,
    answers: EarlierAnswers | None = None,
    *,
    has_states: bool = False,
    has_head: bool = False,
) -> ChosenDrafts:
    """Compose the choice of drafts from all sources.

    `step_seconds(rows)` predicts the seconds of a step with `rows` rows of one token each, or
    returns None. `host_seconds()` returns the extra seconds that a step takes if it waits for the
    tokens of the step before. `most_rows` bounds the sum of a step's rows and drafted tokens. If
    given, `answers` holds the earlier answers of each namespace.
    """
    answers = answers or EarlierAnswers(tree)
    texts = predicted_text, partial(tree_walk, tree), forced_tokens, own_text, answers.begin
    sources: tuple[BeginDrafts, ...] = (*texts, HeadDraft) if has_head else texts
    payoff = Payoff(step_seconds, host_seconds, most_rows, has_states=has_states)
    return ChosenDrafts(sources, payoff, answers.keep)
