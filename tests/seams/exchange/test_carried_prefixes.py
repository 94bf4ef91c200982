"""A published prefix moves from one installation to another as a file, with real processes."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.seams.support.ratoon import forked, printed_by
from tests.seams.support.server import Server, running_server

RULES = "".join(f"The door code for room {n} is {1000 + 37 * n}. " for n in range(60))
SETTINGS = {"RATOON_DISK_CACHE_GIB": "0.25", "RATOON_DISK_ENCRYPTION": "true"}


@dataclass(frozen=True)
class Two:
    """Two installations, the exported file of the first one's prefix, and the file's keys."""

    one: Server
    other: Server
    file: Path
    key: Path
    signer: str

    def imported(self, log: Path, file: Path | None = None, **changed: str) -> tuple[int, str]:
        """Import into the other installation; return the exit status and the output."""
        words = ["prefixes", "import", str(file or self.file)]
        words += ["--data-dir", str(self.other.data_dir)]
        words += ["--key-file", changed.get("key", str(self.key))]
        words += ["--signer", changed.get("signer", self.signer)]
        process = forked(words, {}, log)
        return process.wait(60), log.read_text()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    directory = tmp_path_factory.mktemp("two")
    key, file = directory / "key", directory / "rules.prefix"
    key.write_text(secrets.token_hex(32) + "\n")
    (directory / "rules.txt").write_text(RULES)
    with (
        running_server(directory / "one", SETTINGS) as one,
        running_server(directory / "other", SETTINGS) as other,
    ):
        there = ["--data-dir", str(one.data_dir)]
        create = ["prefixes", "create", "rules", "--system", str(directory / "rules.txt")]
        printed_by([*create, *there], directory / "created")
        export = ["prefixes", "export", "rules", str(file), "--key-file", str(key)]
        printed_by([*export, *there], directory / "exported")
        signer = printed_by(["receipts", "key", *there], directory / "signer").strip()
        yield Two(one, other, file, key, signer)


def ask(server: Server, key: str | None = None) -> dict[str, Any]:
    body = {
        "model": "handbook",
        "messages": [
            {"role": "system", "content": RULES},
            {"role": "user", "content": "What is the door code for room 7?"},
        ],
        "max_tokens": 8,
        "temperature": 0,
    }
    with server.client(key) as client:
        answer = client.post("/v1/chat/completions", json=body)
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


def published(server: Server) -> list[dict[str, Any]]:
    with server.client(server.admin_key) as admin:
        found: list[dict[str, Any]] = admin.get("/admin/prefixes").json()["prefixes"]
        return found


def computed(server: Server) -> int:
    """Return the prompt tokens that the server's engine has computed."""
    window = server.stats()["windows"]["all"]
    tokens: int = window["queried_tokens"] - window["hit_tokens"]
    return tokens


def test_a_file_that_was_changed_or_has_other_keys_is_refused_and_changes_nothing(
    two: Two, tmp_path: Path
) -> None:
    whole = two.file.read_bytes()
    other_key = tmp_path / "other-key"
    other_key.write_text(secrets.token_hex(32))
    before = two.other.pool()
    changed = tmp_path / "changed.prefix"
    content = bytearray(whole)
    content[len(whole) // 2] ^= 1  # every other byte: `tests/cli/operating/test_prefix_file.py`
    changed.write_bytes(content)
    status, said = two.imported(tmp_path / "changed", changed)
    assert (status, "Traceback" in said) == (1, False), said
    signer = "AAAA" + two.signer[4:]
    assert two.imported(tmp_path / "signer", signer=signer)[0] == 1
    status, said = two.imported(tmp_path / "key", key=str(other_key))
    assert status == 1
    assert "not sealed with this key" in said
    assert published(two.other) == []
    assert two.other.pool() == before


def test_the_other_installation_computes_nothing_of_it(two: Two, tmp_path: Path) -> None:
    first = ask(two.one)
    cached = first["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached > 500
    before = computed(two.other)
    status, said = two.imported(tmp_path / "imported")
    assert status == 0, said
    assert "Imported rules version 1" in said
    again = ask(two.other, two.other.new_tenant())
    # Drafted tokens are not compared, because their number depends on measured step times.
    for part in ("prompt_tokens", "completion_tokens", "prompt_tokens_details"):
        assert again["usage"][part] == first["usage"][part]
    assert again["choices"][0]["message"] == first["choices"][0]["message"]
    prompt = again["usage"]["prompt_tokens"]
    assert computed(two.other) - before == prompt - cached, "no more than a request's own tokens"
    [prefix] = published(two.other)
    assert (prefix["name"], prefix["state"]) == ("rules", "warm")
