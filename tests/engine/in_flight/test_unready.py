"""Sequences whose constraints are not ready: those that start, fail, or are forgotten."""

from __future__ import annotations

from engine.errors import EngineError, InvalidGrammar
from engine.in_flight.unready import Unready
from engine.sequences.sequence import Sequence
from engine.sequences.token_constraint import TokenConstraint
from engine.step import Bitmask
from tests.doubles.constraints import bitmask
from tests.engine.rigs.sequences import waiting


class Compiling(TokenConstraint):
    """A constraint that becomes ready, or fails, when a test says so."""

    is_ready = False
    error: EngineError | None = None

    def allowed(self) -> Bitmask:
        return bitmask([1], 64)

    def advance(self, token_id: int) -> None:
        """Do nothing, since the mask is always the same."""


def added(unready: Unready, name: str) -> tuple[Sequence, Compiling]:
    sequence, constraint = waiting(name), Compiling()
    sequence.constraint, sequence.awaits_constraint = constraint, True
    unready.add(sequence)
    return sequence, constraint


def test_who_is_ready_starts_and_the_others_wait_on() -> None:
    unready = Unready()
    (first, its), (second, of_second) = added(unready, "first"), added(unready, "second")
    assert unready.take(lambda _: True) == []
    assert (first.awaits_constraint, second.awaits_constraint) == (True, True)
    its.is_ready = True
    assert unready.take(lambda _: True) == []
    assert (first.awaits_constraint, second.awaits_constraint) == (False, True)
    of_second.is_ready = True
    unready.take(lambda _: True)
    assert not second.awaits_constraint


def test_who_cannot_be_held_to_its_grammar_is_returned_once() -> None:
    unready, error = Unready(), InvalidGrammar("it is none")
    sequence, constraint = added(unready, "a")
    constraint.error = error
    assert unready.take(lambda _: True) == [(sequence, error)]
    assert unready.take(lambda _: True) == []


def test_who_is_gone_is_forgotten() -> None:
    unready = Unready()
    sequence, constraint = added(unready, "gone")
    constraint.error = InvalidGrammar("it is none")
    assert unready.take(lambda one: one is not sequence) == []
    assert unready.take(lambda _: True) == []
