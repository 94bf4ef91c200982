"""Properties that every format's parser has for any text, in any pieces."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.prompts.chats.chat_json import arguments_of
from gateway.turn_formats.families.objects.hermes import HermesFormat
from gateway.turn_formats.pieces import CallArguments, CallStarted
from gateway.turn_formats.reasoning import THINK
from gateway.turn_formats.turn_format import ToolFormat, TurnParser
from tests.examples import examples
from tests.gateway.turn_formats.formats import FORMATS as WRITTEN
from tests.gateway.turn_formats.turns import TOOLS, WEATHER, read, text

FORMATS: dict[str, ToolFormat] = {name: one.format() for name, one in WRITTEN.items()}
COMMON = [
    "{",
    "}",
    "[",
    "]",
    '"',
    "\\",
    ",",
    ":",
    " ",
    "\n",
    "1",
    "-",
    "true",
    "a",
    "clock",
    "\u00e9",
]
COMMON += ["get_weather", "<", ">", "'", "=", "(", ")", "\N{GRINNING FACE}", "city", '"city"', "{}"]


def texts(name: str) -> st.SearchStrategy[list[str]]:
    """Draw pieces of text, many of which occur in the format."""
    one = WRITTEN[name]
    marks = [*one.special, *FORMATS[name].markers, *one.turn(("clock", {})).split("clock")]
    bits = st.sampled_from(
        [*filter(None, marks), one.turn(("clock", {"a": 1})), one.turn(("rm", {"b": "c"}))]
    )
    return st.lists(bits | st.sampled_from(COMMON) | st.text(max_size=3), max_size=25)


formats = pytest.mark.parametrize("name", FORMATS)


@formats
@examples(0.4)
@given(st.data(), st.booleans())
def test_how_a_text_is_cut_does_not_matter(name: str, data: st.DataObject, is_cut: bool) -> None:
    parts = data.draw(texts(name))
    whole = "".join(parts)
    expected = read(FORMATS[name].parser(TOOLS), [whole], is_cut=is_cut)
    assert read(FORMATS[name].parser(TOOLS), parts, is_cut=is_cut) == expected
    assert read(FORMATS[name].parser(TOOLS), whole, is_cut=is_cut) == expected


@pytest.mark.parametrize("name", [name for name, one in WRITTEN.items() if not one.marks_text])
@examples(0.4)
@given(st.data())
def test_without_tools_every_text_is_text(name: str, data: st.DataObject) -> None:
    parts = data.draw(texts(name))
    whole = "".join(parts)
    assert read(FORMATS[name].parser(()), parts) == ([text(whole)] if whole else [])


@formats
@examples(0.4)
@given(st.data())
def test_calls_are_of_tools_and_have_an_object_of_arguments(name: str, data: st.DataObject) -> None:
    pieces = read(FORMATS[name].parser(TOOLS), data.draw(texts(name)))
    for piece, after in pairwise([*pieces, text("")]):
        if isinstance(piece, CallStarted):
            assert piece.name in {tool.name for tool in TOOLS}
            assert isinstance(after, CallArguments)
            assert isinstance(arguments_of(after.text, "arguments"), dict), "it can be sent back"
        else:
            assert not isinstance(after, CallArguments)


@given(texts("hermes"), st.booleans(), st.booleans())
def test_how_reasoning_is_cut_does_not_matter(
    parts: list[str], is_open: bool, is_cut: bool
) -> None:
    def pieces(parts: list[str]) -> object:
        def made() -> TurnParser:
            return HermesFormat().parser([WEATHER])

        marks = HermesFormat.call_marks
        return read(THINK.parser(made, is_open=is_open, calls=marks), parts, is_cut=is_cut)

    whole = "".join(parts)
    assert pieces(parts) == pieces([whole]) == pieces(list(whole))
