"""A plot of hit rate against size, as a self-contained SVG.

pygal is only imported when there is something to draw, because it adds a finder of a kind that
Python no longer supports to the import system. `_load_pygal` removes it again.

Knows: pygal. Does not know: how the points were computed.
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
    """Write the plot to a file; raises CliError."""
    try:
        path.write_bytes(svg)
    except OSError as error:
        raise CliError(f"{path}: {error.strerror}") from error


def _percent(point: Point) -> float:
    return 100 * point.token_hit_rate


def _load_pygal() -> Any:
    pygal = importlib.import_module("pygal")
    # Only the outdated kind: other finders that were added at the same time are valid.
    sys.meta_path[:] = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
    return pygal
