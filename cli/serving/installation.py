"""The preparation of a server's start: state and keys, a socket directory, free ports."""

import asyncio
import errno
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from cli.errors import BadSetting
from cli.serving.compose import MAX_SOCKET_BYTES
from gateway.config import Shared
from gateway.errors import StateDiskFull, StateLost, Unavailable
from gateway.processes.temp_directory import temp_directory
from gateway.startup.first_start import ALONE, BadAdminKey, FirstStart, ensure_first_start
from gateway.state.identity import WrongState
from gateway.state.private_file import PrivateFileError
from gateway.state.sqlite.file import DatabaseFault
from gateway.state.sqlite.schema import SchemaTooNew

SOCKET_NAME = "engine.sock"
_SOCKET_NAMES = "engine*.sock*"
_PREFIX = "ratoon-serve-"
_REDIS_S = 5.0  # seconds that a start waits for Redis, longer than a request waits


def first_start(
    data_dir: Path, admin_key: str | None, shared: Shared = ALONE, *, new_state: bool = False
) -> FirstStart:
    """Create state and keys if missing. Raises BadSetting if existing files cannot be used."""
    patient = replace(shared, redis_timeout_s=max(shared.redis_timeout_s, _REDIS_S))
    start = ensure_first_start(
        data_dir, clock=time.time, admin_key=admin_key, shared=patient, new_state=new_state
    )
    try:
        return asyncio.run(start)
    except BadAdminKey as error:
        raise BadSetting("--admin-key", str(error)) from error
    except (StateLost, StateDiskFull, WrongState) as error:
        flag = "--data-dir" if shared.redis_url is None else "--redis-url"
        raise BadSetting(flag, str(error)) from error
    except Unavailable as error:
        raise BadSetting("--redis-url", "Redis does not answer, or refuses to store") from error
    except (PrivateFileError, SchemaTooNew, OSError) as error:
        flag = "--data-dir" if shared.secrets_dir is None else "--data-dir or --secrets-dir"
        raise BadSetting(flag, str(error)) from error
    except DatabaseFault as error:
        raise BadSetting("--data-dir", f"the database in {data_dir}: {error}") from error


@contextmanager
def runtime_directory() -> Iterator[Path]:
    """Create a socket directory that only its owner may open (0700), and remove it at the end.

    Socket directories that a killed server left are removed first.
    """
    within = Path(tempfile.gettempdir())
    longest = within / f"{_PREFIX}12345678" / SOCKET_NAME
    if len(str(longest).encode()) >= MAX_SOCKET_BYTES:
        within = Path("/tmp")
    with temp_directory(_PREFIX, _SOCKET_NAMES, within) as directory:
        yield directory


def check_port_free(port_flag: str, host_flag: str, host: str, port: int) -> None:
    """Raise BadSetting if the port is in use or forbidden, or the address is not local.

    The error names the flag to change.
    """
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(address)
    except OSError as error:
        is_of_host = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
        flag = host_flag if is_of_host else port_flag
        raise BadSetting(flag, f"cannot listen on {host}:{port}: {error.strerror}") from error
