"""The table of products that ships is one that the tool prints."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import typer

from benchmarks.tune_products import main, rendered
from kernels import product_table


def test_the_table_that_ships_is_printed_as_it_stands() -> None:
    printed = rendered(product_table.VERSION, product_table.TABLE)
    assert printed == Path(product_table.__file__).read_text()


def test_another_table_is_another_module() -> None:
    """The control: what is printed are the entries and the version given."""
    other = {weight: {8: (1, 2, 3)} for weight in product_table.TABLE}
    printed = rendered(7, other)
    names: dict[str, object] = {}
    exec(compile(printed, "table", "exec"), names)
    assert (names["VERSION"], names["TABLE"]) == (7, other)


def test_without_the_library_it_says_so() -> None:
    if torch.version.cuda is not None:
        pytest.skip("this torch has the library")
    with pytest.raises(typer.BadParameter, match="cuBLASLt"):
        main()
