"""How a benchmark says what it found: one JSON object a line on standard output.

What a person should see meanwhile goes to standard error. `benchmarks.everything` gathers the
lines of all; alone each is readable too.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def tell(name: str, **numbers: Any) -> None:
    """One thing measured. The unit of a number is the end of its name."""
    print(json.dumps({"name": name, **{key: _short(value) for key, value in numbers.items()}}))
    sys.stdout.flush()


def progress(words: str) -> None:
    """What is going on."""
    print(words, file=sys.stderr, flush=True)


def _short(value: Any) -> Any:
    """Four digits tell apart what two runs can."""
    return float(f"{value:.4g}") if isinstance(value, float) else value
