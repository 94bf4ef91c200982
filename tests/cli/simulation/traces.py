"""Writers of small traces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec


def row(
    at_ms: float, ids: Sequence[int], *, tail: int = 0, output: int = 5, **other: Any
) -> dict[str, Any]:
    """Return a trace line of 10-token blocks; the last block lacks `tail` tokens."""
    length = 10 * len(ids) - tail
    return {
        "timestamp": at_ms,
        "input_length": length,
        "output_length": output,
        "hash_ids": list(ids),
        **other,
    }


def write(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Write each row as a line of JSON."""
    path.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in rows))
    return path
