"""The check that a model's files were not replaced during loading.

The digest of the weights is computed from the files after loading. If the files were replaced in
between, blocks of the old weights would get the fingerprint of the new weights, and the next start
would use these wrong blocks.

Files are compared by name, size and time, like rsync does. Links are followed, because in a hub's
cache a link points to a file named by its digest. Inode numbers are not compared, because a network
file system may change them.

Elsewhere: the digest (`fingerprint`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.config import EngineConfig
from engine.models.checkpoints.weight_files import weight_files
from engine.models.errors import FilesChanged


@dataclass(frozen=True, slots=True)
class FileState:
    """The path of a file (links resolved), its size, and the time of its last write."""

    path: Path
    file: Path
    num_bytes: int
    written_ns: int


def weight_states(config: EngineConfig) -> tuple[FileState, ...]:
    """Return the states of the weights' files. Empty for dummy weights.

    Raises ModelError.
    """
    if config.model.load_format == "dummy":
        return ()
    return tuple(map(_state, weight_files(Path(config.model.model_dir))))


def check_unchanged(config: EngineConfig, before: tuple[FileState, ...]) -> None:
    """Raise FilesChanged if the states of the weights' files differ from `before`."""
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
