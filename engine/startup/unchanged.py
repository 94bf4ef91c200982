"""The check that a checkpoint was not replaced while it was loaded.

The weights' digest is made from the files after they were loaded. If others lay there by then, the
blocks of the old weights would have the new ones' fingerprint, and the next start would find them.

Files are compared as rsync does, by name, size and time; names are those that links lead to, which
in a hub's cache are digests. Numbers of inodes say more on a disk, but less over a network: there
a file may have another one whenever the kernel has forgotten it.

Knows: what a file system says of files. Does not know: what is in them (`fingerprint`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.config import EngineConfig
from engine.models.checkpoints.weight_files import weight_files
from engine.models.errors import FilesChanged


@dataclass(frozen=True, slots=True)
class FileState:
    """File of a path, and the time of its last write."""

    path: Path
    file: Path
    num_bytes: int
    written_ns: int


def weight_states(config: EngineConfig) -> tuple[FileState, ...]:
    """Return the states of the weights' files; empty for dummy weights. Raises ModelError."""
    if config.model.load_format == "dummy":
        return ()
    return tuple(map(_state, weight_files(Path(config.model.model_dir))))


def check_unchanged(config: EngineConfig, before: tuple[FileState, ...]) -> None:
    """Raise FilesChanged if the files are not the same as before."""
    now = weight_states(config)
    if now == before:
        return
    name = next((one.path.name for one in now if one not in before), "a file less")
    raise FilesChanged(
        f"{config.model.model_dir} was changed while it was loaded ({name}): start again"
    )


def _state(path: Path) -> FileState:
    file = path.resolve()
    stat = file.stat()
    return FileState(path, file, stat.st_size, stat.st_mtime_ns)
