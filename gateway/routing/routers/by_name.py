"""The routers by the names that flags give them."""

from collections.abc import Callable, Mapping
from typing import get_args

from gateway.routing.names import RouterName as RouterName
from gateway.routing.router import Router
from gateway.routing.routers.cached_share import CachedShareRouter
from gateway.routing.routers.first_token import FirstTokenRouter
from gateway.routing.routers.least_outstanding import LeastOutstandingRouter
from gateway.routing.routers.session import SessionRouter

ROUTERS: tuple[RouterName, ...] = get_args(RouterName)
# number of a prompt's first blocks by which the session router tells sessions apart
SESSION_BLOCKS = 16


def router_by_name(
    name: RouterName, clock: Callable[[], float], *, session_blocks: int = SESSION_BLOCKS
) -> Router:
    """Make the router of this name. `clock` returns monotonic seconds."""
    kinds: Mapping[RouterName, Callable[[], Router]] = {
        "first-token": lambda: FirstTokenRouter(clock),
        "cached-share": CachedShareRouter,
        "session": lambda: SessionRouter(session_blocks),
        "least-outstanding": LeastOutstandingRouter,
    }
    return kinds[name]()
