"""`ratoon version`.

Knows: where the version is kept. Does not know: what it says.
"""

from __future__ import annotations

from importlib.metadata import version as distribution_version

import typer


def version() -> None:
    """Print the version.

    Example:

        ratoon version
    """
    typer.echo(f"ratoon {distribution_version('ratoon')}")
