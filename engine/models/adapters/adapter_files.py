"""The reading of an adapter's files, in the one folder that the operator allows.

A path is opened folder by folder, and links are never followed. A user who can write to the folder
can therefore not make the engine read other files. Only two files of an adapter are read, both up
to a maximum size. Pickled weights are never opened.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from engine.models.adapters.errors import AdapterRefused

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
MOST_CONFIG_BYTES = 1 << 20
MOST_PARTS = 8
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,127}")


class AdapterFiles(NamedTuple):
    """The content of an adapter's two files."""

    config: bytes
    weights: bytes


def read_adapter_files(folder: Path, path: str, most_bytes: int) -> AdapterFiles:
    """Read the adapter at `path`, relative to `folder`.

    Raises AdapterRefused, also for weights of more than `most_bytes`.
    """
    parts = path.split("/")
    if len(parts) > MOST_PARTS or not all(map(_PART.fullmatch, parts)):
        raise AdapterRefused("the path is not one of names below the folder of adapters")
    with _opened_folder(folder, parts) as descriptor:
        config = _read(descriptor, CONFIG_FILE, MOST_CONFIG_BYTES)
        return AdapterFiles(config, _read(descriptor, WEIGHTS_FILE, most_bytes))


@contextmanager
def _opened_folder(folder: Path, parts: list[str]) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts:
            inner = _open(part, os.O_DIRECTORY, descriptor, "/".join(parts))
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def _open(name: str, flags: int, folder: int, shown: str) -> int:
    try:
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | flags, dir_fd=folder)
    except OSError as error:
        raise AdapterRefused(
            f"{shown} cannot be read: {error.strerror}; no link is followed"
        ) from (error)


def _read(folder: int, name: str, most: int) -> bytes:
    with os.fdopen(_open(name, 0, folder, name), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise AdapterRefused(f"{name} is no regular file")
        content = b"" if status.st_size > most else file.read(status.st_size + 1)
    if max(status.st_size, len(content)) > most:
        raise AdapterRefused(f"{name} has more than {most} bytes")
    return content
