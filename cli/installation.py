"""What a server needs on its machine before it starts: state and keys, a socket's place, a port.

Knows: the data directory's first start, temporary directories, ports. Does not know: processes.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cli.compose import MAX_SOCKET_BYTES
from cli.errors import BadSetting
from cli.options import AdminKeyFlags
from gateway.first_start import BadAdminKey, FirstStart, ensure_first_start
from gateway.private_file import PrivateFileError
from gateway.state.sqlite import SchemaTooNew

SOCKET_NAME = "engine.sock"


def given_admin_key(flags: AdminKeyFlags) -> str | None:
    """The admin key that was given, by itself or in a file; BadSetting for both."""
    if flags.admin_key_file is None:
        return flags.admin_key
    if flags.admin_key is not None:
        raise BadSetting("--admin-key-file", "--admin-key is given too; leave one of them out")
    try:
        return flags.admin_key_file.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadSetting("--admin-key-file", f"cannot read {flags.admin_key_file}") from error


def first_start(data_dir: Path, admin_key: str | None) -> FirstStart:
    """Make state and keys where there are none; BadSetting when what is there cannot be used."""
    try:
        return asyncio.run(ensure_first_start(data_dir, clock=time.time, admin_key=admin_key))
    except BadAdminKey as error:
        raise BadSetting("--admin-key", str(error)) from error
    except (PrivateFileError, SchemaTooNew, OSError) as error:
        raise BadSetting("--data-dir", str(error)) from error


@contextmanager
def runtime_directory() -> Iterator[Path]:
    """A new directory for a socket, open to its owner alone (0700); removed at the end."""
    directory = Path(tempfile.mkdtemp(prefix="ratoon-"))
    if len(str(directory / SOCKET_NAME).encode()) >= MAX_SOCKET_BYTES:
        directory.rmdir()
        directory = Path(tempfile.mkdtemp(prefix="ratoon-", dir="/tmp"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def check_port_free(flag: str, host: str, port: int) -> None:
    """BadSetting when nothing can listen there: in use, not allowed, or no such address."""
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(address)
    except OSError as error:
        raise BadSetting(flag, f"cannot listen on {host}:{port}: {error.strerror}") from error
