"""Literals of Python become JSON, and texts that are no literals do not."""

from __future__ import annotations

import pytest

from gateway.turn_formats.shapes.python_literal import as_json
from gateway.turn_formats.shapes.values import typed

LITERALS = {
    "007": "7",
    "000": "0",
    "00.50": "0.50",
    "-00012e3": "-12e3",
    "+5": "5",
    "[1, 2,]": "[1, 2]",
    " 42 ": "42",
    "{1, 2}": "[1, 2]",
    "{'a': {True, None}}": '{"a": [true, null]}',
}
NONE = ("4 2", "[1 000, 2]", "nul l", "{1: 2}", "1e999", "0x1f", "1_0", "007x")
MANY = 300_000  # a number of characters for which quadratic work takes half an hour


@pytest.mark.parametrize("literal", LITERALS)
def test_a_literal_becomes_json(literal: str) -> None:
    assert as_json(literal) == LITERALS[literal]


@pytest.mark.parametrize("text", NONE)
def test_another_text_is_no_literal(text: str) -> None:
    assert as_json(text) is None
    assert typed(text, {"integer", "number"}) == f'"{text}"', "the client gets the text as it is"


@pytest.mark.parametrize("end", ["x", "e", "1.", "1e"])
def test_a_long_run_of_zeros_takes_linear_time(end: str) -> None:
    """A prompt can make a model write many zeros. Other tenants wait while these are read."""
    assert as_json("0" * MANY + end) is None
    assert as_json("0" * MANY + "7") == "7"
