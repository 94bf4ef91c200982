"""The order of prompts that earlier steps have begun: within a flow, the shortest comes first.

Elsewhere: the waiting prompts that come before begun prompts (`queue.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from engine.link.messages import Priority
from engine.scheduling.scheduled_rows import next_kind, remaining_tokens
from engine.scheduling.step_builder import StepBuilder
from engine.sequences.sequence import Sequence
from engine.step import PREFILL


def without_row(builder: StepBuilder, sequences: Iterable[Sequence]) -> list[Sequence]:
    """Return those `sequences` that have no row in `builder` and several tokens to compute.

    Sequences that wait for a mask are left out.
    """
    given = {id(row.sequence) for row in builder.rows}
    return [one for one in sequences if _is_next(one) and id(one) not in given]


def _is_next(sequence: Sequence) -> bool:
    return next_kind(sequence) is PREFILL and not sequence.awaits_mask


def in_turn(prompts: list[Sequence], is_overdue: Callable[[Sequence], bool]) -> list[Sequence]:
    """Reorder the prompts of each flow: overdue prompts first, then the shortest."""
    shortest = sorted(prompts, key=lambda one: (not is_overdue(one), remaining_tokens(one)))
    alike = {kin: [one for one in shortest if _kin(one) == kin] for kin in map(_kin, prompts)}
    return [alike[_kin(one)].pop(0) for one in prompts]


def pass_over(waiting: Iterable[Sequence], prompt: Sequence) -> None:
    """Record that `prompt` was chosen before waiting sequences of its flow and priority."""
    for one in waiting:
        if _kin(one) == _kin(prompt):
            one.passed_over += 1


def _kin(sequence: Sequence) -> tuple[str, Priority]:
    return sequence.flow, sequence.priority
