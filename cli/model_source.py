"""From the value of --model to a directory on this machine and the name that clients use.

Knows: the embedded model's place, what a model directory must hold, what a hub id looks like. Does
not know: how a model is downloaded (`hub`), nor what is inside the files (`engine`, `gateway`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from os.path import expanduser
from pathlib import Path

from cli.errors import ModelNotFound
from cli.options import EMBEDDED
from engine.config import LoadFormat

REQUIRED_FILES = ("config.json", "tokenizer.json")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

Download = Callable[[str, LoadFormat], Path]


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model's directory and the name clients call it by."""

    directory: Path
    name: str


def from_hub(repo_id: str, load_format: LoadFormat) -> Path:
    """Download a model from the hub; returns its directory."""
    # Imported here: the hub's client takes 0.3 s to load, and most models are on this machine.
    from cli.hub import download

    return download(repo_id, load_format)


def resolve(
    model: str, load_format: LoadFormat = "safetensors", download: Download = from_hub
) -> ModelSource:
    """The directory and served name of `model`; ModelNotFound when there is none."""
    if model == EMBEDDED:
        return ModelSource(_complete(Path(str(files("handbook") / "model")), model), EMBEDDED)
    path = Path(expanduser(model))
    if path.is_dir():
        path = path.resolve()
        return ModelSource(_complete(path, model), path.name)
    if path.exists():
        raise ModelNotFound(f"{model} is a file; --model needs its directory")
    if not _HUB_ID.fullmatch(model):
        raise ModelNotFound(
            f"there is no directory {model}, and it is not a hub id (owner/name) "
            f"nor '{EMBEDDED}', the embedded model"
        )
    return ModelSource(_complete(download(model, load_format), model), model)


def _complete(directory: Path, model: str) -> Path:
    missing = [name for name in REQUIRED_FILES if not (directory / name).is_file()]
    if missing:
        raise ModelNotFound(f"{model} ({directory}) has no {' and no '.join(missing)}")
    return directory
