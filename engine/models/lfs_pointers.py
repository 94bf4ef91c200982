"""The pointers of Git LFS: small files that replace large files in a clone without Git LFS."""

from __future__ import annotations

from pathlib import Path

from engine.models.model_files import opened

_BEGINNING = b"version https://git-lfs.github.com/spec/"
WHAT = "a pointer of Git LFS and not the file itself: `git lfs pull` gets it"


def is_pointer(path: Path) -> bool:
    """Return whether the file is a pointer of Git LFS. Return False if it is unreadable."""
    try:
        with opened(path) as file:
            return file.read(len(_BEGINNING)) == _BEGINNING
    except OSError:
        return False
