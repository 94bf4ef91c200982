"""Names by which flags, configs and requests choose the cache's behaviour.

This file loads no code that the names choose.
"""

from __future__ import annotations

from typing import Literal

PolicyName = Literal["lru", "value"]

Loads = Literal["auto", "always", "never"]
"""The rule for loads from lower tiers: if predicted to be faster, always, or never."""
