"""The names of the eviction policies (`policies`).

Apart from these, so that flags and configs can name a policy without the code that it needs.

Knows: names. Does not know: what they stand for.
"""

from __future__ import annotations

from typing import Literal

PolicyName = Literal["lru", "slru", "tinylfu", "value", "saving"]
