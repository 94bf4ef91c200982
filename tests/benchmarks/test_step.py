"""Which steps are asked for on the command line."""

from __future__ import annotations

import pytest
import typer

from benchmarks.step import even_shape


def test_rows_and_context_make_a_step() -> None:
    shape = even_shape("3x70")
    assert (shape.name, shape.contexts, shape.chunks) == ("3 x 70", (70, 70, 70), ())


@pytest.mark.parametrize(
    "batch", ["", "3", "3x", "x70", "0x70", "3x0", "3 x 70", "3x70x2", "-3x70"]
)
def test_anything_else_is_refused(batch: str) -> None:
    with pytest.raises(typer.BadParameter, match="48x2030"):
        even_shape(batch)
