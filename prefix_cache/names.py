"""Names by which flags, configs and requests choose the cache's behaviour.

They are in a file of their own, so that reading a name does not load the code that it chooses.
"""

from __future__ import annotations

from typing import Literal

PolicyName = Literal["lru", "value"]

Loads = Literal["auto", "always", "never"]
"""Whether prefixes that lie lower than the device are loaded: by measured curves, all, none."""
