"""Words on the standard streams: the only way out for text that may come from a server."""

import typer

from gateway.telemetry.harmless import harmless


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print `text` for a terminal, which obeys none of its control characters."""
    typer.echo(harmless(text), err=err, nl=nl)
