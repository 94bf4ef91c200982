from __future__ import annotations

import json
import stat
from pathlib import Path

import msgspec
import pytest

from gateway.auth.secrets import (
    ADMIN_KEY,
    PEPPER,
    SECRETS_FILE,
    SERVER_SECRET,
    Secrets,
    handed_in_admin_key,
    handed_in_secrets,
    load_or_create_secrets,
    load_secrets,
)
from gateway.state.private_file import FileExposed, FileMissing, PrivateFileDamaged


def test_secrets_are_made_once_and_read_ever_after(tmp_path: Path) -> None:
    made = load_or_create_secrets(tmp_path)
    assert load_or_create_secrets(tmp_path) == made
    assert load_secrets(tmp_path) == made
    assert len(made.server_secret) == len(made.pepper) == 32
    assert made.server_secret != made.pepper
    assert stat.S_IMODE((tmp_path / SECRETS_FILE).stat().st_mode) == 0o600


def test_two_installations_share_nothing(tmp_path: Path) -> None:
    made = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        made.append(load_or_create_secrets(tmp_path / name))
    assert made[0].pepper != made[1].pepper
    assert made[0].server_secret != made[1].server_secret


def test_nothing_that_prints_them_shows_them() -> None:
    secrets = Secrets(b"server-secret-bytes", b"pepper-bytes")
    for text in (repr(secrets), str(secrets), f"{secrets}", repr([secrets]), "%r" % secrets):  # noqa: UP031
        assert "bytes" not in text
        assert "********" in text


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    load_or_create_secrets(tmp_path)
    path = tmp_path / SECRETS_FILE
    before = path.read_bytes()
    path.chmod(0o644)
    with pytest.raises(FileExposed, match="mode 0644"):
        load_or_create_secrets(tmp_path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff\xfe",
        b'{"server_secret": "!!", "pepper": "!!"}',
        b'{"server_secret": "AAAA", "pepper": "AAAA"}',
        b'{"server_secret": null, "pepper": null}',
        b'{"server_secret": "\xff", "pepper": "\xff"}',
        b'{"other": ' + b"[" * 200_000,
    ],
)
def test_a_damaged_file_is_refused_and_never_written_over(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / SECRETS_FILE
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(PrivateFileDamaged, match=SECRETS_FILE):
        load_or_create_secrets(tmp_path)
    assert path.read_bytes() == content


def test_the_message_about_a_damaged_file_quotes_nothing_of_it(tmp_path: Path) -> None:
    load_or_create_secrets(tmp_path)
    path = tmp_path / SECRETS_FILE
    held = json.loads(path.read_bytes())
    path.write_bytes(path.read_bytes().replace(b"}", b""))
    with pytest.raises(PrivateFileDamaged) as refusal:
        load_secrets(tmp_path)
    assert held["pepper"] not in str(refusal.value)
    assert refusal.value.__suppress_context__


def test_loading_does_not_make(tmp_path: Path) -> None:
    with pytest.raises(FileMissing):
        load_secrets(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("short", ["server_secret", "pepper"])
def test_one_secret_that_is_too_short_is_damage(tmp_path: Path, short: str) -> None:
    path = tmp_path / SECRETS_FILE
    held = {"server_secret": b"s" * 32, "pepper": b"p" * 32}
    path.write_bytes(msgspec.json.encode(held))
    path.chmod(0o600)
    assert load_secrets(tmp_path) == Secrets(b"s" * 32, b"p" * 32)
    path.write_bytes(msgspec.json.encode(held | {short: b"x" * 31}))
    with pytest.raises(PrivateFileDamaged, match="shorter than 32"):
        load_secrets(tmp_path)


class TestHandedIn:
    @pytest.fixture
    def secrets_dir(self, tmp_path: Path) -> Path:
        for name, letter in ((SERVER_SECRET, "s"), (PEPPER, "p"), (ADMIN_KEY, "a")):
            (tmp_path / name).write_text(letter * 32 + "\n")
        return tmp_path

    def test_each_is_what_its_file_is_named_for(self, secrets_dir: Path) -> None:
        assert handed_in_secrets(secrets_dir) == Secrets(b"s" * 32, b"p" * 32)
        assert handed_in_admin_key(secrets_dir) == "a" * 32

    @pytest.mark.parametrize("name", [SERVER_SECRET, PEPPER])
    def test_one_that_could_be_guessed_is_refused(self, secrets_dir: Path, name: str) -> None:
        (secrets_dir / name).write_text("x" * 31 + "\n")
        with pytest.raises(PrivateFileDamaged, match=f"{name} holds fewer than 32"):
            handed_in_secrets(secrets_dir)

    @pytest.mark.parametrize("name", [SERVER_SECRET, PEPPER])
    def test_none_is_made_up_for_one_that_is_missing(self, secrets_dir: Path, name: str) -> None:
        (secrets_dir / name).unlink()
        with pytest.raises(FileMissing, match=name):
            handed_in_secrets(secrets_dir)
        assert not (secrets_dir / name).exists()

    @pytest.mark.parametrize("name", [SERVER_SECRET, PEPPER])
    def test_one_that_anybody_could_have_written_is_refused(
        self, secrets_dir: Path, name: str
    ) -> None:
        (secrets_dir / name).chmod(0o666)
        with pytest.raises(FileExposed, match=name):
            handed_in_secrets(secrets_dir)
