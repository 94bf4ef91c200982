from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

import pytest
from huggingface_hub.errors import (
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
)

from cli.errors import ModelNotFound
from cli.hub import IGNORED_PATTERNS, download


class FakeHub:
    """A hub that has one repository, or none and fails as the real one does."""

    def __init__(self, directory: Path | None = None, error: Exception | None = None) -> None:
        self._directory = directory
        self._error = error
        self.asked: list[tuple[str, tuple[str, ...]]] = []

    def __call__(self, repo_id: str, patterns: Sequence[str]) -> str:
        self.asked.append((repo_id, tuple(patterns)))
        if self._error is not None:
            raise self._error
        return str(self._directory)


def test_a_model_is_where_the_hub_puts_it(model_dir: Path) -> None:
    hub = FakeHub(model_dir)
    assert download("owner/name", "safetensors", hub) == model_dir
    assert [repo for repo, _ in hub.asked] == ["owner/name"]


def wanted(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns) and not any(
        fnmatch(name, pattern) for pattern in IGNORED_PATTERNS
    )


@pytest.mark.parametrize(
    ("name", "fetched"),
    [
        ("config.json", True),
        ("tokenizer.json", True),
        ("tokenizer.model", True),
        ("chat_template.jinja", True),
        ("model-00001-of-00004.safetensors", True),
        ("pytorch_model.bin", False),
        ("model.pkl", False),
        ("training_args.pt", False),
        ("modeling_custom.py", False),
        ("original/consolidated.00.pth", False),
        ("consolidated.safetensors", False),
    ],
)
def test_pickles_and_code_are_never_fetched(model_dir: Path, name: str, fetched: bool) -> None:
    hub = FakeHub(model_dir)
    download("owner/name", "safetensors", hub)
    assert wanted(name, hub.asked[0][1]) is fetched


def test_dummy_weights_need_no_download_of_weights(model_dir: Path) -> None:
    hub = FakeHub(model_dir)
    download("owner/name", "dummy", hub)
    assert not wanted("model.safetensors", hub.asked[0][1])
    assert wanted("config.json", hub.asked[0][1])


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (LocalEntryNotFoundError("no network"), "cannot be reached"),
        (OfflineModeIsEnabled("HF_HUB_OFFLINE"), "cannot be reached"),
        (HFValidationError("bad repo id"), "refused owner/name"),
        (OSError(28, "No space left on device"), "could not be stored"),
    ],
)
def test_an_error_of_the_hub_is_reported_in_one_line(error: Exception, said: str) -> None:
    with pytest.raises(ModelNotFound, match=said):
        download("owner/name", "safetensors", FakeHub(error=error))
