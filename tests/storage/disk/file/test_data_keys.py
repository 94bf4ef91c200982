"""Each owner has its own data key, kept in private files. A forgotten or damaged key is gone."""

from __future__ import annotations

import secrets
import shutil
import stat
from pathlib import Path

import msgspec
import pytest

from storage.disk.file.data_keys import (
    KEY_BYTES,
    NO_KEY_ID,
    DataKeys,
    DirectoryKey,
    SealingKey,
)


def test_an_owners_key_is_its_own_and_stays(tmp_path: Path) -> None:
    keys = DataKeys(tmp_path / "keys")
    one, other = keys.of_owner("one"), keys.of_owner("other")
    assert len({one.key, other.key, one.id, other.id}) == 4
    assert len(one.key) == KEY_BYTES
    assert keys.of_owner("one") == one
    assert keys.by_id(one.id) == one
    assert keys.by_id(other.id) == other
    again = DataKeys(tmp_path / "keys")
    assert again.of_owner("one") == one
    assert again.by_id(other.id) == other


def test_a_forgotten_key_is_nowhere_and_a_new_one_is_another(tmp_path: Path) -> None:
    keys = DataKeys(tmp_path / "keys")
    gone, stays = keys.of_owner("gone"), keys.of_owner("stays")
    keys.forget("gone")
    keys.forget("nobody")
    assert keys.by_id(gone.id) is None
    assert DataKeys(tmp_path / "keys").by_id(gone.id) is None
    content = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert gone.key not in content
    assert stays.key in content
    assert DataKeys(tmp_path / "keys").by_id(stays.id) == stays
    assert keys.of_owner("gone").key != gone.key


def test_a_key_that_cannot_be_erased_from_the_disk_is_erased_from_memory(tmp_path: Path) -> None:
    directory = tmp_path / "lost"
    directory.mkdir()
    keys = DataKeys(directory / "keys")
    gone, stays = keys.of_owner("gone"), keys.of_owner("stays")
    shutil.rmtree(directory)
    with pytest.raises(OSError, match="No such file"):
        keys.forget("gone")
    assert keys.by_id(gone.id) is None
    assert keys.by_id(stays.id) == stays


@pytest.mark.parametrize(("id_bytes", "key_bytes"), [(15, 32), (16, 31), (17, 32), (16, 33)])
@pytest.mark.parametrize("among_sound_ones", [False, True])
def test_a_file_with_a_key_of_another_length_holds_none(
    tmp_path: Path, id_bytes: int, key_bytes: int, among_sound_ones: bool
) -> None:
    path = tmp_path / "keys"
    sound = {"a": SealingKey(b"i" * 16, b"k" * 32)}
    path.write_bytes(msgspec.msgpack.encode(sound))
    assert DataKeys(path).by_id(b"i" * 16) == sound["a"], "the control"
    odd = {"b": SealingKey(b"j" * id_bytes, b"k" * key_bytes)}
    path.write_bytes(msgspec.msgpack.encode({**sound, **odd} if among_sound_ones else odd))
    keys = DataKeys(path)
    assert keys.by_id(b"i" * 16) is None
    assert keys.by_id(b"j" * id_bytes) is None


@pytest.mark.parametrize("content", [b"", b"short", bytes(33)])
def test_a_directory_s_secret_of_another_length_is_made_anew(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    made = DirectoryKey.load(path)
    assert len(made.key.key) == KEY_BYTES
    assert DirectoryKey.load(path) == made


def test_the_files_are_for_their_owner_alone_and_nothing_is_left_beside_them(
    tmp_path: Path,
) -> None:
    keys = DataKeys(tmp_path / "keys")
    for owner in ("a", "b", "c"):
        keys.of_owner(owner)
    DirectoryKey.load(tmp_path / "secret")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["keys", "secret"]
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"", b"noise", b"\x81\xa1a\x92\xc4\x01x\xc4\x01y"])
def test_a_damaged_file_holds_no_key(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    keys = DataKeys(path)
    assert keys.by_id(b"x") is None
    made = keys.of_owner("a")
    assert DataKeys(path).by_id(made.id) == made


def test_a_flipped_bit_anywhere_in_the_file_costs_keys_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    DataKeys(path).of_owner("a")
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        keys = DataKeys(path)
        assert keys.of_owner("b") == DataKeys(path).of_owner("b")


def test_the_secret_of_a_directory_is_made_once(tmp_path: Path) -> None:
    first, second = (DirectoryKey.load(tmp_path / "secret") for _ in range(2))
    assert first == second
    assert DirectoryKey.load(tmp_path / "other") != first
    assert first.by_id(NO_KEY_ID) == first.of_owner("anybody") == first.key
    assert first.by_id(secrets.token_bytes(16)) is None


def test_a_key_is_not_shown(tmp_path: Path) -> None:
    key = DataKeys(tmp_path / "keys").of_owner("a")
    assert repr(key) == "SealingKey(...)"
    assert key.key.hex() not in f"{key}"
