"""Properties that all formats of calls share, whatever their markers."""

from __future__ import annotations

import json

import pytest

from gateway.turn_formats.pieces import CallArguments, CallStarted, Piece, TextPiece
from tests.gateway.turn_formats.formats import FORMATS, Call, Written
from tests.gateway.turn_formats.turns import calls_of, check, read, text, ways_to_cut

OSLO: Call = ("get_weather", {"city": "Oslo"})
TIME: Call = ("clock", {})
HARD: Call = (
    "get_weather",
    {
        "city": ' } ] ) ; , \' " \\ \\n \n\t </a> ``` {"name": "clock"} \u2028 \N{GRINNING FACE}',
        "where": {"a": [{"b": []}, -1.5e-7, None, True, 'it\'s "so"'], "c": {}},
        "tags": ["", "\u00e9", "]"],
        "days": 0,
        "exact": False,
    },
)
MANY: dict[str, list[Call]] = {
    "one": [OSLO],
    "two": [OSLO, TIME],
    "three": [TIME, TIME, OSLO],
    "hard": [HARD],
    "empty": [TIME],
}

every = pytest.mark.parametrize("written", FORMATS.values(), ids=FORMATS)


def arguments_of(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, CallArguments))


@every
@pytest.mark.parametrize("calls", MANY.values(), ids=MANY)
def test_calls_are_read(written: Written, calls: list[Call]) -> None:
    for parts in ways_to_cut(written.turn(*calls)):
        pieces = read(written.parser(), parts)
        assert calls_of(pieces) == calls
        assert not any(isinstance(piece, TextPiece) for piece in pieces)


@every
def test_text_without_calls_is_sent_as_it_is(written: Written) -> None:
    for turn in ("It is  cold. \n\n", "a { b } [c] (d) <e> </f> `g`", " \n", "\0 1 < 2 [", ""):
        check(written.parser, (turn, [text(turn)] if turn else []))


@pytest.mark.parametrize(
    "written",
    [one for one in FORMATS.values() if not one.starts_turn],
    ids=lambda one: one.format.name,
)
def test_space_between_text_and_calls_is_not_text(written: Written) -> None:
    turn = f"Let me see. \n\n{written.after_text}{written.turn(OSLO)}\n\nDone. "
    for parts in ways_to_cut(turn):
        pieces = read(written.parser(), parts)
        if written.keeps_space:
            assert (pieces[0], pieces[-1]) == (text("Let me see. \n\n"), text("\n\nDone. "))
        else:
            assert (pieces[0], pieces[-1]) == (text("Let me see."), text("Done. "))
        assert calls_of(pieces[1:-1]) == [OSLO]


@every
def test_a_call_of_an_unknown_tool_is_text(written: Written) -> None:
    for calls in ([("rm", {"path": "/"})], [("rm", {}), ("rm", {"a": ["b"]})]):
        turn = written.turn(*calls)
        check(written.parser, (turn, [text(turn)]))
        check(lambda: written.parser(()), (turn, [text(turn)]))


@every
def test_a_turn_that_is_cut_off_shows_no_mark_and_no_more_than_there_is(written: Written) -> None:
    turn = written.turn(HARD)
    whole = arguments_of(read(written.parser(), [turn]))
    for end in range(len(turn)):
        pieces = read(written.parser(), [turn[:end]], is_cut=True)
        assert pieces[:1] in ([], [CallStarted("get_weather")])
        assert not any(isinstance(piece, TextPiece) for piece in pieces)
        assert whole.startswith(arguments_of(pieces))


@every
def test_a_turn_that_the_model_ends_too_soon_is_a_call_or_text(written: Written) -> None:
    turn = written.turn(HARD)
    for end in range(len(turn)):
        pieces = read(written.parser(), [turn[:end]])
        if isinstance(next(iter(pieces), None), CallStarted):
            assert len(pieces) == 2
            assert isinstance(json.loads(arguments_of(pieces)), dict)
        else:
            bare = turn[:end].removeprefix(written.text_end).lstrip()
            assert pieces in ([], [text(turn[:end])], [text(bare)])


@every
def test_arguments_come_as_they_are_written(written: Written) -> None:
    """Pass on each character of a long argument as soon as it is read."""
    turn = written.turn(("get_weather", {"city": "x" * 5000}))
    parser = written.parser()
    begin = turn.index("x" * 100) + 100
    parser.feed(turn[:begin])
    sent = sum(len(arguments_of(parser.feed("x"))) for _ in range(1000))
    assert sent == (0 if written.holds_arguments else 1000)


@every
def test_what_is_read_is_valid_json(written: Written) -> None:
    assert json.loads(arguments_of(read(written.parser(), [written.turn(HARD)]))) == HARD[1]
