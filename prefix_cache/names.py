"""Names by which flags, configs and requests choose the cache's behaviour.

They are apart from the code that they choose, so that naming it does not load it.
"""

from __future__ import annotations

from typing import Literal

PolicyName = Literal["lru", "value"]

Loads = Literal["auto", "always", "never"]
"""Whether prefixes that lie lower than the device are loaded: by measured curves, all, none."""
