"""A checkpoint that is replaced during loading gives blocks no wrong fingerprint."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.models.errors import FilesChanged
from engine.startup.loading import open_model
from engine.startup.unchanged import weight_states
from tests.engine.conftest import MakeCheckpoint

Change = Callable[[Path], object]


class Meanwhile(logging.Handler):
    """A log handler that calls a function when the weights are loaded."""

    def __init__(self, do: Callable[[], object]) -> None:
        super().__init__()
        self._do = do

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("weights: "):
            self._do()


@contextmanager
def once_loaded(do: Callable[[], object]) -> Iterator[None]:
    logger, handler = logging.getLogger("engine.startup.timed"), Meanwhile(do)
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def config(model_dir: Path, **settings: Any) -> EngineConfig:
    return EngineConfig.of(
        model_dir=str(model_dir), socket="", device="cpu", cache_tokens=64, **settings
    )


def fingerprint(model_dir: Path, change: Change, **settings: Any) -> bytes:
    with once_loaded(lambda: change(model_dir)):
        return open_model(config(model_dir, **settings)).welcome.fingerprint


def replaced(model_dir: Path) -> None:
    """Replace the files as a download does: with the same names and sizes."""
    for path in model_dir.glob("*.safetensors"):
        other = path.with_suffix(".new")
        shutil.copyfile(path, other)
        other.rename(path)


def linked(model_dir: Path) -> None:
    """Replace the files by links, as a hub's cache does: with the same sizes and times."""
    for path in model_dir.glob("*.safetensors"):
        blob = path.with_suffix(".blob")
        shutil.copy2(path, blob)
        path.unlink()
        path.symlink_to(blob.name)


def written_to(model_dir: Path) -> None:
    with next(model_dir.glob("*.safetensors")).open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x33")


def in_one_file(model_dir: Path) -> None:
    """Add a file with all weights, which the loader prefers to an index."""
    shutil.copy2(next(model_dir.glob("*.safetensors")), model_dir / "model.safetensors")


def read_again(model_dir: Path) -> None:
    """Read the files again without a change (positive control)."""
    assert all(path.read_bytes() for path in model_dir.glob("*.safetensors"))


def forgotten(model_dir: Path) -> None:
    """Give the files new inodes, as a network file system does after it dropped its cache."""
    for path in model_dir.glob("*.safetensors"):
        other = path.with_suffix(".new")
        shutil.copy2(path, other)
        other.rename(path)


@pytest.mark.parametrize("change", [replaced, linked, written_to, in_one_file])
def test_a_change_of_the_files_ends_the_start(
    checkpoint: MakeCheckpoint, tmp_path: Path, change: Change
) -> None:
    model_dir = Path(shutil.copytree(checkpoint("llama-sharded").model_dir, tmp_path / "model"))
    usual = fingerprint(model_dir, read_again)
    with pytest.raises(FilesChanged, match=r"was changed while it was loaded \(.*\): start again"):
        fingerprint(model_dir, change)
    again = fingerprint(model_dir, read_again) if change is not in_one_file else b""
    assert (again == usual) == (change in (replaced, linked)), "the same bytes are the same weights"


def test_the_same_files_may_have_other_inodes(checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    model_dir = Path(shutil.copytree(checkpoint("llama-sharded").model_dir, tmp_path / "model"))
    assert fingerprint(model_dir, forgotten) == fingerprint(model_dir, read_again)


def test_dummy_weights_have_no_files(checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    model_dir = Path(shutil.copytree(checkpoint("llama").model_dir, tmp_path / "model"))
    fingerprint(model_dir, replaced, load_format="dummy")
    assert weight_states(config(model_dir, load_format="dummy")) == ()
    assert len(weight_states(config(model_dir))) == 1
