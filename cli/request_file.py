"""A request's body in a file, or on standard input."""

import sys
from pathlib import Path
from typing import Any

from cli.errors import CliError
from cli.json_text import NotJson, decode_json

STANDARD_INPUT = "-"


def read_request(path: str) -> dict[str, Any]:
    """Read a JSON object from a file or, for `-`, standard input. Raises CliError."""
    try:
        body = sys.stdin.buffer.read() if path == STANDARD_INPUT else Path(path).read_bytes()
        value = decode_json(body, Any)
    except OSError as error:
        raise CliError(f"{path}: {error.strerror}") from None
    except NotJson:
        raise CliError(f"{path} is not JSON") from None
    if not isinstance(value, dict):
        raise CliError(f"{path} is not a JSON object")
    return value
