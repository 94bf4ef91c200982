"""The model's source: its local directory and the name for clients, from --model.

The module `model_check` reads the files.
"""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from os.path import expanduser
from pathlib import Path
from typing import cast

from cli.errors import ModelNotFound, ModelRefused
from cli.options.options import EMBEDDED
from engine.config import LoadFormat
from engine.models.checkpoints.weight_files import refuse_other_weights
from engine.models.errors import ModelError

CONFIG = "config.json"
GGUF = ".gguf"
REQUIRED_FILES = (CONFIG, "tokenizer.json")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

DESCRIPTION_PATTERNS = ("*.json", "*.jinja", "*.model")
WEIGHT_PATTERNS = ("*.safetensors",)
IGNORED_PATTERNS = ("original/*", "consolidated*", "onnx/*")

Download = Callable[[str, LoadFormat], Path]
Fetch = Callable[[str, Sequence[str]], str]
"""A function that downloads a repository's files that match patterns; it returns a directory."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model's directory, and its name for clients."""

    directory: Path
    name: str


def download(repo_id: str, load_format: LoadFormat, fetch: Fetch | None = None) -> Path:
    """Download the needed files of the model `repo_id`. Raises ModelNotFound."""
    # Imported here, since the hub's client takes 0.3 s to load and most models are local.
    from huggingface_hub import errors, snapshot_download

    def from_hub(repo_id: str, patterns: Sequence[str]) -> str:
        wanted, ignored = list(patterns), list(IGNORED_PATTERNS)
        return snapshot_download(repo_id, allow_patterns=wanted, ignore_patterns=ignored)

    # The base error of the hub client's HTTP library. The client's version decides which library.
    http_error = cast(type[Exception], errors.HfHubHTTPError.__bases__[0])
    weights = () if load_format == "dummy" else WEIGHT_PATTERNS
    try:
        return Path((fetch or from_hub)(repo_id, DESCRIPTION_PATTERNS + weights))
    except errors.GatedRepoError as error:
        raise ModelNotFound(
            f"{repo_id} is gated: accept its terms on the hub and set HF_TOKEN"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelNotFound(
            f"there is no directory {repo_id}, and the hub has no such model (a private one "
            "needs HF_TOKEN)"
        ) from error
    except (errors.HfHubHTTPError, errors.HFValidationError) as error:
        raise ModelNotFound(f"the hub refused {repo_id}: {_first_line(error)}") from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, http_error) as error:
        raise ModelNotFound(
            f"there is no directory {repo_id}, and the hub cannot be reached ('{EMBEDDED}' needs "
            f"no download): {_first_line(error)}"
        ) from error
    except OSError as error:
        raise ModelNotFound(f"{repo_id} could not be stored: {error}") from error


def _first_line(error: Exception) -> str:
    """Return an error's first line, without request ids and advice."""
    return str(error).strip().partition("\n")[0]


def resolve(
    model: str, load_format: LoadFormat = "safetensors", download: Download = download
) -> ModelSource:
    """Find the directory and served name of `model`. Raises ModelNotFound if there is none."""
    if model == EMBEDDED:
        return ModelSource(_complete(Path(str(files("handbook") / "model")), model), EMBEDDED)
    path = Path(expanduser(model))
    if path.is_dir():
        path = path.resolve()
        if file := _only_gguf(path):
            return ModelSource(_described(file), file.stem)
        return ModelSource(_complete(path, model), path.name)
    if path.suffix == GGUF and path.exists():
        return ModelSource(_described(path), path.stem)
    if path.exists():
        raise ModelNotFound(f"{model} is a file; --model needs its directory")
    if not _HUB_ID.fullmatch(model):
        raise ModelNotFound(
            f"there is no directory {model}, and it is not a hub id (owner/name) "
            f"nor '{EMBEDDED}', the embedded model"
        )
    return ModelSource(_complete(download(model, load_format), model), model)


def config_of(model: str) -> Path:
    """Find config.json, given the file, its directory or a hub id. Raises ModelNotFound."""
    path = Path(expanduser(model))
    if model != EMBEDDED and path.is_dir() and not _only_gguf(path):
        return path / CONFIG
    if model != EMBEDDED and path.is_file() and path.suffix != GGUF:
        return path
    return resolve(model, "dummy").directory / CONFIG


def _only_gguf(directory: Path) -> Path | None:
    """Return the GGUF file of a directory without other weights.

    Raises ModelRefused if the directory has several GGUF files.
    """
    found = sorted(directory.glob(f"*{GGUF}"))
    if not found or next(directory.glob("*.safetensors"), None):
        return None
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise ModelRefused(f"{directory} has several GGUF files; --model names one of {names}")
    return found[0]


def _described(path: Path) -> Path:
    # Imported here, since few models are GGUF files and the library takes 0.2 s to load.
    from cli.gguf.description import describe

    caches = Path(os.environ.get("XDG_CACHE_HOME") or expanduser("~/.cache"))
    try:
        return describe(path, caches / "ratoon" / "gguf")
    except ModelError as error:
        raise ModelRefused(f"{path} cannot be served: {error}") from error
    except OSError as error:
        raise ModelRefused(
            f"{path} cannot be described in {caches}: {error.strerror}; XDG_CACHE_HOME names "
            "another place"
        ) from error


def _complete(directory: Path, model: str) -> Path:
    missing = [name for name in REQUIRED_FILES if not (directory / name).is_file()]
    if CONFIG in missing:
        _refuse_what_it_is(directory, model)
    if missing:
        raise ModelNotFound(f"{model} ({directory}) has no {' and no '.join(missing)}")
    return directory


def _refuse_what_it_is(directory: Path, model: str) -> None:
    try:
        refuse_other_weights(directory)
    except ModelError as error:
        raise ModelRefused(f"{model} cannot be served: {error}") from error
