"""The names of the routers, for flags and configs; imports none of them."""

from typing import Literal

RouterName = Literal[
    "first-token", "cached-share", "session", "least-outstanding", "round-robin", "random"
]
