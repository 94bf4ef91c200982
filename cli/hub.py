"""Downloads a model from the Hugging Face hub.

Knows: which files of a repository are wanted (never pickles), and what its errors mean. Does not
know: when a model is downloaded (`model_source`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from cli.options import EMBEDDED
from engine.config import LoadFormat

DESCRIPTION_PATTERNS = ("*.json", "*.jinja", "*.model")
WEIGHT_PATTERNS = ("*.safetensors",)
# Further copies of the weights in other formats.
IGNORED_PATTERNS = ("original/*", "consolidated*", "onnx/*")

# The base error of the hub client's HTTP library, which depends on the client's version.
_HttpError = cast(type[Exception], HfHubHTTPError.__bases__[0])

Fetch = Callable[[str, Sequence[str]], str]


def fetch_snapshot(repo_id: str, patterns: Sequence[str]) -> str:
    """Download the files that match `patterns`, if needed; returns their directory."""
    return snapshot_download(
        repo_id, allow_patterns=list(patterns), ignore_patterns=list(IGNORED_PATTERNS)
    )


def download(repo_id: str, load_format: LoadFormat, fetch: Fetch = fetch_snapshot) -> Path:
    """The directory of the model `repo_id`, with what is needed of it; or ModelNotFound."""
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
