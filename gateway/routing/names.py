"""The names of the routers, for flags and configs. This module imports no router."""

from typing import Literal

RouterName = Literal["first-token", "cached-share", "session", "least-outstanding"]
