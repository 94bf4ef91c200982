"""Lines on standard error, written without typer, so that the supervisor need not load it."""

import sys


def write_line(text: str) -> None:
    """Write a line at once to standard error. Raises OSError if it is closed."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
