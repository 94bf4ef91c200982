"""Which steps are asked for on the command line."""

from __future__ import annotations

import pytest
import typer

from benchmarks.step import even_shape


def test_rows_and_context_make_a_step() -> None:
    shape = even_shape("3x70")
    assert (shape.name, shape.contexts, shape.chunks) == ("3 x 70", (70, 70, 70), ())


def test_prompts_may_be_computed_beside_decodes_or_alone() -> None:
    shape = even_shape("3x70+2x5")
    assert (shape.name, shape.contexts) == ("3 x 70 + 2 x 5 new", (70, 70, 70))
    assert shape.chunks == ((5, 70), (5, 70))
    alone = even_shape("0x70+1x70")
    assert (alone.contexts, alone.chunks) == ((), ((70, 70),))


@pytest.mark.parametrize(
    "batch",
    [
        *("", "3", "3x", "x70", "0x70", "3x0", "3 x 70", "3x70x2", "-3x70"),
        *("3x70+", "3x70+5", "3x70+0x5", "3x70+2x0", "3x70+2x71", "3x70+2x5+2x5"),
    ],
)
def test_anything_else_is_refused(batch: str) -> None:
    with pytest.raises(typer.BadParameter, match="48x2030"):
        even_shape(batch)
