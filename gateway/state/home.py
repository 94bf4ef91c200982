"""Opens the state: SQLite in the data directory, or Redis if a URL is configured.

Knows: how either is opened. Does not know: what is stored.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from redis.asyncio import Redis

from gateway.config import Shared
from gateway.private_file import read_handed_in
from gateway.state.redis_changes import Listener, told_of_changes
from gateway.state.redis_link import RedisLink, connect
from gateway.state.redis_store import RedisStore
from gateway.state.sqlite import SqliteStore
from gateway.state.store import Store

STATE_FILE = "state.sqlite"


@dataclass(frozen=True, slots=True)
class Home:
    """The store, and its link to Redis; None if it is a file of this machine."""

    store: Store
    link: RedisLink | None

    def telling(self, *listeners: Listener) -> AbstractAsyncContextManager[None]:
        """Tell `listeners` what other gateways change, if there can be others."""
        if self.link is None:
            return nullcontext()
        return told_of_changes(self.link.client, *listeners)


@asynccontextmanager
async def open_home(data_dir: Path, shared: Shared) -> AsyncIterator[Home]:
    """Open the state; it is closed at the end. Redis need not be reachable yet.

    Raises SchemaTooNew, PrivateFileError, OSError, or ValueError for a malformed URL.
    """
    home = _home(data_dir, shared)
    try:
        yield home
    finally:
        await home.store.close()


def open_client(shared: Shared, *, as_text: bool = False) -> Redis:
    """A client of the shared Redis, whose replies are bytes, or text; ValueError without a URL."""
    if shared.redis_url is None:
        raise ValueError("no Redis is shared")
    file = shared.redis_password_file
    password = None if file is None else read_handed_in(Path(file))
    return connect(shared.redis_url, password, as_text=as_text)


def _home(data_dir: Path, shared: Shared) -> Home:
    if shared.redis_url is None:
        return Home(SqliteStore(data_dir / STATE_FILE), None)
    link = RedisLink(open_client(shared), timeout_s=shared.redis_timeout_s)
    return Home(RedisStore(link), link)
