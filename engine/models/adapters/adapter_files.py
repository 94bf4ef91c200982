"""The files of an adapter, in the one folder that the operator allows.

A path is opened folder by folder, and links are never followed. A writer of that folder can
therefore not make the engine read other files. Two files of an adapter are read, both of limited
size. Pickled weights are never opened.

Weights are read once, into the engine's own memory, because a mapped file may be cut short while it
is used. Another thread digests them while they are read.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from engine.models.adapters.errors import AdapterRefused

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
MOST_CONFIG_BYTES = 1 << 20
MOST_PARTS = 8
_PIECE_BYTES = 4 << 20  # bytes that are read, then digested, at a time
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,127}")


class AdapterFiles(NamedTuple):
    """The content of an adapter's two files."""

    config: bytes
    weights: Tensor  # bytes (uint8)
    weights_digest: bytes  # SHA-256


def read_adapter_files(folder: Path, path: str, most_bytes: int) -> AdapterFiles:
    """Read the adapter at `path`, relative to `folder`.

    Raises AdapterRefused. Weights of more than `most_bytes` are not read.
    """
    parts = path.split("/")
    if len(parts) > MOST_PARTS or not all(map(_PART.fullmatch, parts)):
        raise AdapterRefused("the path is not one of names below the folder of adapters")
    with _opened_folder(folder, parts) as descriptor:
        with _opened(descriptor, CONFIG_FILE, MOST_CONFIG_BYTES) as (file, size):
            config = file.read(size)
        with _opened(descriptor, WEIGHTS_FILE, most_bytes) as (file, size):
            return AdapterFiles(config, *_read_weights(file, size))


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


@contextmanager
def _opened(folder: int, name: str, most: int) -> Iterator[tuple[FileIO, int]]:
    """Open a regular file of at most `most` bytes; yield the file and its size."""
    with os.fdopen(_open(name, 0, folder, name), "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise AdapterRefused(f"{name} is no regular file")
        if status.st_size > most:
            raise AdapterRefused(f"{name} has more than {most} bytes")
        yield file, status.st_size


def _read_weights(file: FileIO, size: int) -> tuple[Tensor, bytes]:
    """Read `size` bytes, fewer if the file ends before, and digest them meanwhile."""
    weights, digest, end = torch.empty(size, dtype=torch.uint8), hashlib.sha256(), 0
    view = weights.numpy().data
    with ThreadPoolExecutor(1, thread_name_prefix="digest") as thread:
        while count := file.readinto(view[end : end + _PIECE_BYTES]):
            thread.submit(digest.update, view[end : end + count])
            end += count
    return weights[:end], digest.digest()
