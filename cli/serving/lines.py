"""Lines on the standard streams, without the command line's library."""

from __future__ import annotations

import sys


def write_line(text: str, *, err: bool = True) -> None:
    """Write a line at once to standard error or output; OSError if the stream is closed."""
    stream = sys.stderr if err else sys.stdout
    stream.write(f"{text}\n")
    stream.flush()
