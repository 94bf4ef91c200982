from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

import pytest
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled

from cli.errors import ModelNotFound
from cli.models.model_source import IGNORED_PATTERNS, ModelSource, download, resolve
from engine.config import LoadFormat


class FakeDownload:
    """A download that writes the same files for every model, and records the requests."""

    def __init__(self, directory: Path = Path()) -> None:
        self._directory = directory
        self.asked: list[tuple[str, LoadFormat]] = []

    def __call__(self, repo_id: str, load_format: LoadFormat) -> Path:
        self.asked.append((repo_id, load_format))
        return self._directory


def test_a_directory_is_served_by_its_own_name(model_dir: Path) -> None:
    downloads = FakeDownload()
    assert resolve(str(model_dir), download=downloads) == ModelSource(
        model_dir.resolve(), "tiny-model"
    )
    assert downloads.asked == []


def test_a_relative_directory_and_a_trailing_slash(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model_dir.parent)
    assert resolve("./tiny-model/").name == "tiny-model"
    monkeypatch.chdir(model_dir)
    assert resolve(".").name == "tiny-model"


def test_home_is_understood(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(model_dir.parent))
    assert resolve("~/tiny-model").directory == model_dir.resolve()


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json"])
def test_a_directory_that_is_no_model_is_refused(model_dir: Path, missing: str) -> None:
    (model_dir / missing).unlink()
    with pytest.raises(ModelNotFound, match=f"has no {missing}"):
        resolve(str(model_dir))


def test_a_file_is_refused(model_dir: Path) -> None:
    with pytest.raises(ModelNotFound, match="is a file"):
        resolve(str(model_dir / "config.json"))


@pytest.mark.parametrize(
    "model", ["/nowhere/at/all", "./nowhere", "no-such-word", "a/b/c", "", "~x/y"]
)
def test_what_is_neither_directory_nor_hub_id_never_asks_the_hub(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    downloads = FakeDownload()
    with pytest.raises(ModelNotFound):
        resolve(model, download=downloads)
    assert downloads.asked == []


def test_a_hub_id_is_fetched_and_keeps_its_name(model_dir: Path) -> None:
    downloads = FakeDownload(model_dir)
    assert resolve("owner/name", download=downloads) == ModelSource(model_dir, "owner/name")
    assert downloads.asked == [("owner/name", "safetensors")]


def test_dummy_weights_are_asked_for_as_such(model_dir: Path) -> None:
    downloads = FakeDownload(model_dir)
    resolve("owner/name", "dummy", downloads)
    assert downloads.asked == [("owner/name", "dummy")]


def test_a_hub_model_without_its_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"has no config\.json and no tokenizer\.json"):
        resolve("owner/name", download=FakeDownload(tmp_path))


class FakeHub:
    """A hub with one repository, or an empty hub, which raises the real hub's errors."""

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
        (LocalEntryNotFoundError("no network\nPlease look"), "cannot be reached.*: no network$"),
        (OfflineModeIsEnabled("HF_HUB_OFFLINE"), "cannot be reached"),
        (HFValidationError("bad repo id"), "refused owner/name"),
        (OSError(28, "No space left on device"), "could not be stored"),
    ],
)
def test_an_error_of_the_hub_is_reported_in_one_line(error: Exception, said: str) -> None:
    with pytest.raises(ModelNotFound, match=said):
        download("owner/name", "safetensors", FakeHub(error=error))
