"""The registry of engines, in the state that the gateways use."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from cli.errors import BadSetting
from cli.serving.installation import first_start
from gateway.config import Shared
from gateway.state.home import STATE_FILE
from gateway.state.identity import ExpectedState
from gateway.state.private_file import PrivateFileError
from gateway.state.sqlite.store import SqliteStore
from gateway.state.store import EngineRegistry, Store

# seconds to wait for Redis; a late answer is an error, since the next heartbeat comes soon
REDIS_TIMEOUT_S = 2.0


def make_state(data_dir: Path, shared: Shared) -> None:
    """Create the state and keys that a gateway on this machine would create at its start.

    If the state is in Redis, this function creates nothing, since a gateway creates that state.
    Raises BadSetting.
    """
    if shared.redis_url is None:
        first_start(data_dir, None)


@asynccontextmanager
async def open_registry(data_dir: Path, shared: Shared) -> AsyncIterator[EngineRegistry]:
    """Open the registry of engines. Redis may be down or empty. Raises BadSetting."""
    try:
        store = SqliteStore(data_dir / STATE_FILE) if shared.redis_url is None else _redis(shared)
    except (PrivateFileError, OSError, ValueError) as error:
        raise BadSetting(_flag(shared, error), str(error)) from error
    try:
        yield store
    finally:
        await store.close()


def _flag(shared: Shared, error: Exception) -> str:
    if shared.redis_url is None:
        return "--data-dir"
    return "--redis-password-file" if isinstance(error, PrivateFileError) else "--redis-url"


def _redis(shared: Shared) -> Store:
    """Open Redis without writing the state's id, as the state may be incomplete."""
    # Imported here, since the client takes 0.2 s to load and a single machine needs no Redis.
    from gateway.state.redis.identity import REDIS
    from gateway.state.redis.link import open_link
    from gateway.state.redis.store import RedisStore

    return RedisStore(open_link(shared), ExpectedState("state", REDIS, was_there=True))
