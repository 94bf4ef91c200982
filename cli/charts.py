"""Charts of curves, as SVG.

pygal is imported only when there is something to draw, because its import adds an outdated kind of
finder to the import system. `_load_pygal` removes this finder again.
"""

import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cli.errors import CliError

Curve = Sequence[tuple[float, float]]


def draw_curves(
    curves: Mapping[str, Curve], *, title: str, across: str, up: str, dots: bool = False
) -> bytes:
    """Draw each named curve as a line or dots. `across` and `up` label the two axes, with units."""
    highest = max((y for curve in curves.values() for _, y in curve), default=0.0)
    chart = _load_pygal().XY(
        title=title,
        x_title=across,
        y_title=up,
        range=(0, highest or 1.0),
        stroke=not dots,
        dots_size=2 if dots else 2.5,
        js=(),  # without the tooltips' script, which a browser would fetch from another server
    )
    for name, curve in curves.items():
        chart.add(name, list(curve))
    rendered: bytes = chart.render()
    return rendered


def write_chart(path: Path, svg: bytes) -> None:
    """Write a chart into an existing directory. Raises CliError."""
    try:
        path.write_bytes(svg)
    except OSError as error:
        raise CliError(f"{path}: {error.strerror}") from error


def _load_pygal() -> Any:
    pygal = importlib.import_module("pygal")
    # Drop only the outdated finder, since other finders added at the same time are valid.
    sys.meta_path[:] = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
    return pygal
