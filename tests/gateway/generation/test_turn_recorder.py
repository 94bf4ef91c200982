from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from gateway.generation.choice import ChoiceEnded, Delta, EndReason
from gateway.generation.turn_recorder import TurnRecorder
from gateway.turn_formats.pieces import (
    CallArguments,
    CallStarted,
    Piece,
    ReasoningPiece,
    TextPiece,
)


def ended(index: int, stopped_by: int | None, reason: EndReason = "stop") -> ChoiceEnded:
    return ChoiceEnded(index, reason, 2, stopped_by)


def recorded(*events: Delta | ChoiceEnded) -> list[tuple[list[Piece], list[int]]]:
    found = []

    def remember(pieces: Sequence[Piece], token_ids: Sequence[int]) -> None:
        found.append((list(pieces), list(token_ids)))

    recorder = TurnRecorder(remember)
    for event in events:
        recorder.see(event)
    return found


def test_choices_are_told_apart() -> None:
    thought = (ReasoningPiece("hm"),)
    assert recorded(
        Delta(0, "", (1,), None, pieces=thought),
        Delta(1, "a", (2,), None),
        Delta(0, "", (3,), None, pieces=()),
        ended(1, 257),
        ended(0, None, "length"),
    ) == [([TextPiece("a")], [2]), ([ReasoningPiece("hm")], [1, 3])]


def test_what_was_not_all_shown_is_no_turn() -> None:
    delta = Delta(0, "a", (1, 2), None)
    assert recorded(delta, replace(ended(0, None), is_all_shown=False)) == []
    assert recorded(delta, ended(0, 7)) == [([TextPiece("a")], [1, 2])], "the control: a token"


def test_what_came_before_a_restart_is_no_part_of_the_turn() -> None:
    restart = Delta(0, "", (), None, is_restart=True)
    other = Delta(1, "c", (3,), None)
    assert recorded(
        Delta(0, "a", (1,), None),
        other,
        restart,
        Delta(0, "b", (2,), None),
        ended(0, 7),
        ended(1, 7),
    ) == [([TextPiece("b")], [2]), ([TextPiece("c")], [3])]


def test_what_has_not_ended_is_no_turn() -> None:
    assert recorded(Delta(0, "a", (1,), None)) == []


def test_neighbours_of_one_kind_are_one_piece() -> None:
    pieces: list[Piece] = [
        *(ReasoningPiece("so"), ReasoningPiece(" é"), TextPiece("a"), TextPiece("\ud800b")),
        *(CallStarted("f"), CallArguments("{"), CallArguments("}")),
        *(CallStarted("g"), CallStarted("h"), TextPiece("c"), ReasoningPiece("d")),
    ]
    deltas = [Delta(0, "", (i,), None, pieces=(piece,)) for i, piece in enumerate(pieces)]
    [(found, token_ids)] = recorded(*deltas, Delta(0, "", (11,), None, pieces=()), ended(0, 7))
    assert found == [
        *(ReasoningPiece("so é"), TextPiece("a\ud800b"), CallStarted("f"), CallArguments("{}")),
        *(CallStarted("g"), CallStarted("h"), TextPiece("c"), ReasoningPiece("d")),
    ]
    assert token_ids == list(range(12))
