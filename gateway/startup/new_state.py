"""The operator's acceptance, before a start, of missing, replaced or damaged state or limits."""

import logging
from pathlib import Path

from gateway.config import Shared
from gateway.limits.home import LIMITS_FILE
from gateway.limits.sqlite import SqliteLimiter
from gateway.state.home import STATE_FILE
from gateway.state.identity import forget
from gateway.state.sqlite.store import SqliteStore

_LOG = logging.getLogger(__name__)


async def accept_new_state(data_dir: Path, shared: Shared) -> None:
    """Accept, for `--new-state`, a state that is gone, damaged or of another installation.

    Nothing is deleted. A damaged file is renamed, and the markers of the expected state
    (`identity`) are removed. The start then uses the state that it finds, or begins an empty state.
    No server may run on the directory meanwhile. Raises SchemaTooNew, FileExposed, DatabaseFault or
    OSError.
    """
    if shared.redis_url is None:
        for name, kind in ((STATE_FILE, SqliteStore), (LIMITS_FILE, SqliteLimiter)):
            if (data_dir / name).exists() and await _is_damaged(kind(data_dir / name)):
                _set_aside(data_dir / name)
    forget(data_dir, "state")
    forget(data_dir, "limits")


async def _is_damaged(opened: SqliteStore | SqliteLimiter) -> bool:
    try:
        return opened.file.fault is not None
    finally:
        await opened.close()


def _set_aside(path: Path) -> None:
    aside = _free_name(path)
    path.rename(aside)
    for end in ("-wal", "-shm"):
        beside = path.with_name(path.name + end)
        if beside.exists():
            beside.rename(aside.with_name(aside.name + end))
    _LOG.warning("%s was damaged; it is kept as %s", path.name, aside.name)


def _free_name(path: Path) -> Path:
    number = 1
    while path.with_name(f"{path.name}.damaged-{number}").exists():
        number += 1
    return path.with_name(f"{path.name}.damaged-{number}")
