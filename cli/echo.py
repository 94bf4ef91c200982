"""Printing to the standard streams. All text that may come from a server is printed here."""

import typer

from gateway.telemetry.harmless import harmless


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print `text` with its control characters made harmless to a terminal."""
    typer.echo(harmless(text), err=err, nl=nl)
