"""A request's body in a file, or on standard input."""

import sys
from pathlib import Path
from typing import Any

import msgspec

from cli.errors import CliError

STANDARD_INPUT = "-"


def read_request(path: str) -> dict[str, Any]:
    """Read a JSON object from a file, `-` for standard input; raise CliError for other content."""
    try:
        body = sys.stdin.buffer.read() if path == STANDARD_INPUT else Path(path).read_bytes()
        value = msgspec.json.decode(body)
    except OSError as error:
        raise CliError(f"{path}: {error.strerror}") from None
    except (msgspec.DecodeError, RecursionError):
        raise CliError(f"{path} is not JSON") from None
    if not isinstance(value, dict):
        raise CliError(f"{path} is not a JSON object")
    return value
