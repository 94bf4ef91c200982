"""The address of a running server, in a private file that the server locks.

The lock (flock) shows whether the server runs. The kernel releases it when the process ends, so a
file without a lock is stale.

    server.json          of the server that started last, which commands find
    server.json.1a2b     of a server that started earlier in the same directory; commands find this
                         server once the last one has ended
"""

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

import msgspec

from cli.supervision.lines import write_line
from gateway.state.private_file import PrivateFileDamaged, PrivateFileError, require_private

ADDRESS_FILE = "server.json"


class ServerAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The URLs of a server for clients on its own machine."""

    url: str
    admin_url: str
    pid: int
    has_supervisor: bool = False


class AnothersFile(PrivateFileError):
    """An address file that another user owns. No keys may be sent to the address in it."""


@contextmanager
def address_told(data_dir: Path, address: ServerAddress) -> Iterator[None]:
    """Write the address file, and keep it locked while the block runs. Raises OSError."""
    file = tell_address(data_dir, address)
    try:
        yield
    finally:
        for path in _files(data_dir):
            with suppress(FileNotFoundError):
                if os.path.samestat(path.stat(), os.fstat(file.fileno())):
                    path.unlink()
        file.close()


@contextmanager
def found_by_commands(data_dir: Path, address: ServerAddress) -> Iterator[None]:
    """Publish the server's address to commands with this data directory, even after `become`.

    A server that cannot write the file, for example on a full disk, serves nevertheless. A second
    server with the same directory serves, too.
    """
    with suppress(PrivateFileError):  # an untrusted file will be replaced
        if other := running_server(data_dir):
            words = f"ratoon: a server runs in {data_dir} already, at {other.url}: from now on "
            words += f"commands find this one, and that one with --url {other.url}"
            write_line(words)
    with ExitStack() as stack:
        try:
            stack.enter_context(address_told(data_dir, address))
        except OSError as error:
            words = f"ratoon: commands will need --url {address.url}: {error}"
            write_line(words)
        yield


def tell_address(data_dir: Path, address: ServerAddress) -> IO[bytes]:
    """Write the address file, valid until the returned file is closed or the process ends.

    Raises OSError. The file is locked before it gets its name, so no reader finds it unlocked.
    """
    path = data_dir / ADDRESS_FILE
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    file = open(fresh, "xb", opener=_private)  # noqa: SIM115 (the caller closes it)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # the file stays open when this process execs another program
        os.set_inheritable(file.fileno(), True)
        file.write(msgspec.json.encode(address))
        file.flush()
        _set_aside(data_dir)
        fresh.rename(path)
    except OSError:
        file.close()
        fresh.unlink(missing_ok=True)
        raise
    return file


def running_server(data_dir: Path) -> ServerAddress | None:
    """Find the last server that runs in this directory, if any.

    Raises FileExposed, AnothersFile or PrivateFileDamaged if a file cannot be trusted.
    """
    found = (_running(path) for path in _files(data_dir))
    return next((one for one in found if one is not None), None)


def _files(data_dir: Path) -> list[Path]:
    written: dict[Path, int] = {}
    for path in data_dir.glob(f"{ADDRESS_FILE}*"):
        with suppress(FileNotFoundError):
            written[path] = path.stat().st_mtime_ns
    return sorted(written, key=lambda path: written[path], reverse=True)


def _set_aside(data_dir: Path) -> None:
    for path in _files(data_dir):
        with suppress(FileNotFoundError):
            if not _is_locked(path):
                path.unlink()
            elif path.name == ADDRESS_FILE:
                path.rename(path.with_name(f"{ADDRESS_FILE}.{secrets.token_hex(8)}"))


def _is_locked(path: Path) -> bool:
    """Return whether a server holds the file's lock. False for a file that cannot be opened."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except PermissionError:
        return False
    return False


def _running(path: Path) -> ServerAddress | None:
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise AnothersFile(f"{path} belongs to another user") from error
    with file:
        found = os.fstat(file.fileno())
        if found.st_uid != os.geteuid():
            raise AnothersFile(f"{path} belongs to another user")
        require_private(path, found.st_mode)
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
        try:
            return msgspec.json.decode(file.read(), type=ServerAddress)
        except msgspec.DecodeError as error:
            raise PrivateFileDamaged(f"{path} does not name a server") from error


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
