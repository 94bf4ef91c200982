"""Hit rate against size as an SVG that needs nothing beside itself.

Knows: pygal. Does not know: how the points came about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pygal  # type: ignore[import-untyped]
from pygal.style import CleanStyle  # type: ignore[import-untyped]

from cli.errors import CliError
from cli.simulation.results import Point


def draw(curves: Mapping[str, Sequence[Point]], title: str) -> bytes:
    """One curve for each policy: tokens of all tiers across, hit rate in percent up."""
    chart = pygal.XY(
        title=title,
        x_title="tokens in all tiers (millions)",
        y_title="cached input tokens (%)",
        style=CleanStyle,
        range=(0, None),
        js=(),  # the tooltips' script would be fetched from another server
        disable_xml_declaration=False,
        show_minor_x_labels=True,
    )
    for name, points in curves.items():
        chart.add(name, [(one.tokens / 1e6, 100 * one.token_hit_rate) for one in points])
    rendered: bytes = chart.render()
    return rendered


def write(path: Path, svg: bytes) -> None:
    """Put the plot in a file; CliError where that cannot be."""
    try:
        path.write_bytes(svg)
    except OSError as error:
        raise CliError(f"{path}: {error.strerror}") from error
