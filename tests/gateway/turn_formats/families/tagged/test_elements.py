"""MiniMax-M3's XML elements become arguments by the schema, also nested or cut off."""

from __future__ import annotations

import pytest

from gateway.turn_formats.families.tagged.elements import MiniMaxM3Format
from gateway.turn_formats.pieces import CallArguments
from gateway.turn_formats.turn_format import ToolSpec
from tests.gateway.turn_formats.formats import NS
from tests.gateway.turn_formats.turns import calls_of, read, text, ways_to_cut

_KEYS = {"type": "array", "items": {"type": "object", "properties": {"k": {"type": "boolean"}}}}
_WHERE = {"n": {"type": "integer"}, "s": {"type": "string"}, "l": _KEYS}
_NUMBERS = {"anyOf": [{"type": "array", "items": {"type": "number"}}, {"type": "null"}]}
TOOL = ToolSpec(
    "look",
    {
        "type": "object",
        "properties": {
            "where": {"type": "object", "properties": _WHERE},
            "numbers": _NUMBERS,
            "said": {"type": "string"},
        },
    },
)


def element(name: str, *inner: str) -> str:
    return f"{NS}<{name}>{''.join(inner)}{NS}</{name}>"


KEYS = element("l", element("item", element("k", "true")), element("item", element("k", "false")))
TURN = (
    f'{NS}<tool_call>\n{NS}<invoke name="look">'
    + element("where", element("n", "3"), element("s", "x < y"), KEYS)
    + element("numbers", element("item", "1.5"), element("item", "2"))
    + element("said", "  a\n")
    + element("other", element("item", "b"))
    + f"{NS}</invoke>\n{NS}</tool_call>"
)
ARGUMENTS = {
    "where": {"n": 3, "s": "x < y", "l": [{"k": True}, {"k": False}]},
    "numbers": [1.5, 2],
    "said": "  a\n",
    "other": ["b"],
}


def test_elements_are_members_and_items_by_the_schema() -> None:
    for parts in ways_to_cut(f"So.{TURN}"):
        pieces = read(MiniMaxM3Format().parser([TOOL]), parts)
        assert pieces[0] == text("So.")
        assert calls_of(pieces[1:]) == [("look", ARGUMENTS)]


def test_a_call_that_ends_too_soon_has_an_object_and_one_that_is_cut_off_a_part_of_it() -> None:
    whole = "".join(_arguments(TURN))
    for end in range(TURN.index("look") + 8, len(TURN)):
        assert isinstance(
            calls_of(read(MiniMaxM3Format().parser([TOOL]), [TURN[:end]]))[0][1], dict
        )
        assert whole.startswith("".join(_arguments(TURN[:end], is_cut=True)))


def _arguments(turn: str, *, is_cut: bool = False) -> list[str]:
    pieces = read(MiniMaxM3Format().parser([TOOL]), [turn], is_cut=is_cut)
    return [piece.text for piece in pieces if isinstance(piece, CallArguments)]


@pytest.mark.parametrize("mark", ["<where>", "</where>", "<", "", '<invoke name="look">'])
def test_marks_again_and_again_end_as_one_call_or_as_text(mark: str) -> None:
    """Read markers repeated many times as one call or as text: nesting is bounded, and text is read
    only once.
    """
    turn = f'{NS}<tool_call>\n{NS}<invoke name="look">{NS}<where>' + f"{NS}{mark}" * 20_000
    pieces = read(MiniMaxM3Format().parser([TOOL]), [turn])
    assert all(isinstance(arguments, dict) for _, arguments in calls_of(pieces))
