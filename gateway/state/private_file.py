"""Small files that only their owner may read: secrets and first keys.

PrivateFileError
 |- FileMissing     the file does not exist, but something depends on it
 |- FileExposed     others may read or write it
 `- PrivateFileDamaged     the content of the file is not of the expected form

A file appears whole or not at all. The bytes go to a fresh file in the same directory (O_EXCL,
0600). The bytes reach the disk before the file gets its name. Messages name paths, never contents.
"""

import os
import secrets
import stat
from pathlib import Path

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class PrivateFileError(Exception):
    """The base of the errors of a private file. The message tells the operator a remedy."""


class FileMissing(PrivateFileError):
    """The error of a private file that does not exist."""


class FileExposed(PrivateFileError):
    """The error of a private file that other users may read or write."""


class PrivateFileDamaged(PrivateFileError):
    """The error of a private file whose content is not of the expected form."""


def require_private(path: Path, mode: int) -> None:
    """Raise FileExposed if `mode`, the st_mode of `path`, admits users other than the owner."""
    if mode & _OTHERS:
        raise FileExposed(
            f"{path} is not private to its owner (mode {stat.S_IMODE(mode):04o}). "
            f"Run: chmod 600 {path}. If others use this machine, replace its content too."
        )


def read_private(path: Path) -> bytes:
    """Read all bytes of `path`; raise FileMissing, or FileExposed before any byte is read."""
    try:
        file = path.open("rb")
    except FileNotFoundError as missing:
        raise FileMissing(f"{path} is missing") from missing
    with file:
        require_private(path, os.fstat(file.fileno()).st_mode)
        return file.read()


def read_handed_in(path: Path) -> str:
    """Read the text of a file that the deployment provides, without surrounding blanks.

    Other users may read the file, such as a Docker secret, since only this process sees its mount.
    Raises FileExposed if others may write it. Raises FileMissing, and PrivateFileDamaged if the
    file is empty or not text.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read().decode().strip()
    except FileNotFoundError as missing:
        raise FileMissing(f"{path} is missing") from missing
    except UnicodeDecodeError as error:
        raise PrivateFileDamaged(f"{path} is not text") from error
    if mode & stat.S_IWOTH:
        raise FileExposed(f"{path} can be written by anybody. Run: chmod o-w {path}")
    if not text:
        raise PrivateFileDamaged(f"{path} is empty")
    return text


def create_private(path: Path, content: bytes) -> bool:
    """Create `path` with `content`. If `path` exists already, change nothing and return False.

    If several processes try at once, exactly one of them creates the file.
    """
    fresh = _write_beside(path, content)
    try:
        os.link(fresh, path)  # unlike `rename`, `link` fails if the name exists
    except FileExistsError:
        return False
    finally:
        fresh.unlink()
    _sync_directory(path.parent)
    return True


def replace_private(path: Path, content: bytes) -> None:
    """Replace the content of `path`. A reader sees all old or all new bytes."""
    _write_beside(path, content).rename(path)
    _sync_directory(path.parent)


def _write_beside(path: Path, content: bytes) -> Path:
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        fresh.unlink()
        raise
    return fresh


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
