"""The output of benchmarks: lines on standard output, each a JSON object.

Progress for people goes to standard error. `benchmarks.everything` gathers the lines of all
benchmarks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from cli.load.percentiles import percentile


def emit(name: str, **numbers: Any) -> None:
    """Print a measurement. The names of numbers end with their units."""
    print(json.dumps({"name": name, **{key: _short(value) for key, value in numbers.items()}}))
    sys.stdout.flush()


def progress(words: str) -> None:
    """Print a line of progress for people."""
    print(words, file=sys.stderr, flush=True)


def p50_and_p99(seconds: Sequence[float]) -> dict[str, float]:
    """Compute the median and 99th percentile of times, in milliseconds."""
    ordered = sorted(seconds)
    return {f"p{percent}_ms": percentile(ordered, percent) * 1e3 for percent in (50, 99)}


def _short(value: Any) -> Any:
    """Round to four significant digits, since repeated runs agree on no more."""
    return float(f"{value:.4g}") if isinstance(value, float) else value
