"""Hit rate against size as an SVG that needs nothing beside itself.

pygal is loaded when there is something to draw and not before: it puts a finder of its own, of a
kind that Python no longer knows, into the import system. `_load_pygal` takes it out again.

Knows: pygal. Does not know: how the points came about.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cli.errors import CliError
from cli.simulation.results import Point


def draw(curves: Mapping[str, Sequence[Point]], title: str) -> bytes:
    """One curve for each policy: tokens of all tiers across, hit rate in percent up."""
    chart = _load_pygal().XY(
        title=title,
        x_title="tokens in all tiers (millions)",
        y_title="cached input tokens (%)",
        range=(0, max(_percent(one) for points in curves.values() for one in points) or 1.0),
        js=(),  # the tooltips' script would be fetched from another server
    )
    for name, points in curves.items():
        chart.add(name, [(one.tokens / 1e6, _percent(one)) for one in points])
    rendered: bytes = chart.render()
    return rendered


def write(path: Path, svg: bytes) -> None:
    """Put the plot in a file; CliError where that cannot be."""
    try:
        path.write_bytes(svg)
    except OSError as error:
        raise CliError(f"{path}: {error.strerror}") from error


def _percent(point: Point) -> float:
    return 100 * point.token_hit_rate


def _load_pygal() -> Any:
    pygal = importlib.import_module("pygal")
    # Only that one: the others that came along are right, and one has taken an older one's place.
    sys.meta_path[:] = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
    return pygal
