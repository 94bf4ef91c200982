"""Reads `keys.env`, the file of NAME=value lines that the first start leaves in the data directory.

Knows: where it lies and how it is written. Does not know: what the keys open.
"""

from __future__ import annotations

from pathlib import Path

KEYS_FILE = "keys.env"
ADMIN_KEY = "RATOON_ADMIN_KEY"
DEMO_KEY = "RATOON_DEMO_KEY"


def keys_path(data_dir: Path) -> Path:
    """Where the first keys of `data_dir` are."""
    return data_dir / KEYS_FILE


def find_key(data_dir: Path, name: str) -> str | None:
    """The key called `name`; None when the file or the line is not there or cannot be read."""
    try:
        lines = keys_path(data_dir).read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        left, _, value = line.strip().removeprefix("export ").partition("=")
        if left == name:
            return value.strip("\"'")
    return None
