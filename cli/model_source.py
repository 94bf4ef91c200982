"""From the value of --model to a directory on this machine and the name that clients use.

Knows: the embedded model's name, what a model directory must hold, which files of a hub
repository are wanted (never pickles). Does not know: what is inside the files (`engine`,
`gateway`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from os.path import expanduser
from pathlib import Path
from typing import cast

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from cli.errors import ModelNotFound
from engine.config import LoadFormat

EMBEDDED = "handbook"
REQUIRED_FILES = ("config.json", "tokenizer.json")
DESCRIPTION_PATTERNS = ("*.json", "*.jinja", "*.model")
WEIGHT_PATTERNS = ("*.safetensors",)
# Further copies of the weights in other formats.
IGNORED_PATTERNS = ("original/*", "consolidated*", "onnx/*")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

# The base error of the hub client's HTTP library, which depends on the client's version.
_HttpError = cast(type[Exception], HfHubHTTPError.__bases__[0])

Fetch = Callable[[str, Sequence[str]], str]


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model's directory and the name clients call it by."""

    directory: Path
    name: str


def fetch_snapshot(repo_id: str, patterns: Sequence[str]) -> str:
    """Download the files that match `patterns`, if needed; returns their directory."""
    return snapshot_download(
        repo_id, allow_patterns=list(patterns), ignore_patterns=list(IGNORED_PATTERNS)
    )


def resolve(
    model: str, load_format: LoadFormat = "safetensors", fetch: Fetch = fetch_snapshot
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
    return ModelSource(_complete(_from_hub(model, load_format, fetch), model), model)


def _from_hub(repo_id: str, load_format: LoadFormat, fetch: Fetch) -> Path:
    weights = () if load_format == "dummy" else WEIGHT_PATTERNS
    try:
        return Path(fetch(repo_id, DESCRIPTION_PATTERNS + weights))
    except GatedRepoError as error:
        raise ModelNotFound(
            f"{repo_id} is gated: accept its terms on the hub and set HF_TOKEN"
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelNotFound(
            f"there is no directory {repo_id}, and the hub has no such model (a private one "
            "needs HF_TOKEN)"
        ) from error
    except (HfHubHTTPError, HFValidationError) as error:
        raise ModelNotFound(f"the hub refused {repo_id}: {error}") from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, _HttpError) as error:
        raise ModelNotFound(
            f"there is no directory {repo_id}, and the hub cannot be reached ('{EMBEDDED}' needs "
            f"no download): {error}"
        ) from error
    except OSError as error:
        raise ModelNotFound(f"{repo_id} could not be stored: {error}") from error


def _complete(directory: Path, model: str) -> Path:
    missing = [name for name in REQUIRED_FILES if not (directory / name).is_file()]
    if missing:
        raise ModelNotFound(f"{model} ({directory}) has no {' and no '.join(missing)}")
    return directory
