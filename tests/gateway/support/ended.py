"""The end of a choice, as the engine reports it, and as the choice then reports it."""

from __future__ import annotations

from engine.link.event_messages import Finished, Reused
from gateway.generation.choice import ChoiceEnded, EndReason
from gateway.requests.request_metrics import RequestMetrics


def engine_end(
    prompt_tokens: int, generated: int, reused: Reused | None = None, computed: int | None = None
) -> Finished:
    """Make the engine's report of a choice that was cancelled after `generated` tokens.

    `computed` defaults to the prompt tokens that were not cached.
    """
    reused = reused or Reused()
    return Finished(
        request_id="",
        reason="cancelled",
        prompt_tokens=prompt_tokens,
        reused=reused,
        computed_tokens=prompt_tokens - reused.tokens if computed is None else computed,
        completion_tokens=generated,
    )


def end_choice(
    request_metrics: RequestMetrics,
    index: int,
    reason: EndReason,
    generated: int,
    *,
    prompt_tokens: int,
    reused: Reused | None = None,
) -> None:
    """End a choice after `generated` tokens."""
    request_metrics.end(index, engine_end(prompt_tokens, generated, reused))
    request_metrics.see(ChoiceEnded(index, reason, generated))
