import socket
import stat
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from cli.errors import BadSetting
from cli.serving.compose import MAX_SOCKET_BYTES
from cli.serving.installation import (
    SOCKET_NAME,
    check_port_free,
    first_start,
    runtime_directory,
)
from gateway.config import Shared
from gateway.startup.first_start import KEYS_FILE, read_keys
from tests.doubles.gateway.redis_server import redis_server

ADMIN_KEY = "an-admin-key-of-some-length"


def test_a_first_start_leaves_keys_for_their_owner_alone(tmp_path: Path) -> None:
    start = first_start(tmp_path / "data", None)
    path = tmp_path / "data" / KEYS_FILE
    assert start.created
    assert start.keys_file == path
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    names = {"RATOON_ADMIN_KEY", "RATOON_DEMO_KEY", "RATOON_DEMO2_KEY", "RATOON_METRICS_KEY"}
    assert set(read_keys(path)) == names


def test_a_second_start_keeps_the_keys(tmp_path: Path) -> None:
    first = first_start(tmp_path, None)
    second = first_start(tmp_path, None)
    assert (first.created, second.created) == (True, False)
    assert first.admin_key == second.admin_key


def test_a_given_admin_key_is_the_one(tmp_path: Path) -> None:
    assert first_start(tmp_path, ADMIN_KEY).admin_key == ADMIN_KEY
    assert read_keys(tmp_path / KEYS_FILE)["RATOON_ADMIN_KEY"] == ADMIN_KEY


def test_an_admin_key_that_can_be_guessed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="--admin-key") as refusal:
        first_start(tmp_path, "admin")
    assert "'admin'" not in str(refusal.value), "keys are not repeated"


def test_a_data_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadSetting, match="--data-dir"):
        first_start(tmp_path / "file", None)


def test_a_damaged_or_full_database_is_named(tmp_path: Path) -> None:
    first_start(tmp_path, None)
    (tmp_path / KEYS_FILE).unlink()  # without its key file, the start opens the store
    (tmp_path / "state.sqlite").write_bytes(b"not a database" * 100)
    with pytest.raises(BadSetting, match=r"--data-dir: the gateway's state is damaged"):
        first_start(tmp_path, None)


def test_missing_secrets_are_reported_with_both_flags(tmp_path: Path) -> None:
    shared = Shared(secrets_dir=str(tmp_path / "secrets"))
    with pytest.raises(BadSetting, match=r"--data-dir or --secrets-dir: .*ratoon_admin_key"):
        first_start(tmp_path / "data", None, shared)


def test_a_redis_that_is_busy_for_a_moment_does_not_end_a_start(tmp_path: Path) -> None:
    for name, content in (
        ("server_secret", "s" * 64),
        ("pepper", "p" * 64),
        ("admin_key", ADMIN_KEY),
    ):
        (tmp_path / f"ratoon_{name}").write_text(content)
        (tmp_path / f"ratoon_{name}").chmod(0o400)
    with redis_server(tmp_path) as redis:
        shared = Shared(redis_url=redis.url, redis_timeout_s=0.05, secrets_dir=str(tmp_path))
        redis.freeze()
        thaw = threading.Timer(0.5, redis.thaw)
        thaw.start()
        try:
            assert first_start(tmp_path / "data", None, shared).created
        finally:
            thaw.join()
    with pytest.raises(BadSetting, match="--redis-url"):  # a stopped Redis is an error too
        first_start(tmp_path / "other", None, shared)


def test_exposed_keys_are_refused(tmp_path: Path) -> None:
    start = first_start(tmp_path, None)
    start.keys_file.chmod(0o644)
    with pytest.raises(BadSetting, match="chmod 600"):
        first_start(tmp_path, None)


def test_the_runtime_directory_is_private_and_goes_away() -> None:
    with runtime_directory() as directory:
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        (directory / SOCKET_NAME).touch()
    assert not directory.exists()


def test_what_a_killed_server_left_goes_with_the_next_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with TemporaryDirectory(dir="/tmp") as short:  # the path of a Unix socket must be short
        monkeypatch.setattr("tempfile.tempdir", short)
        empty, bound = Path(short, "ratoon-serve-abcdefgh"), Path(short, "ratoon-serve-12345678")
        empty.mkdir()
        bound.mkdir()
        (bound / SOCKET_NAME).touch()
        with runtime_directory() as first, runtime_directory() as second:
            assert sorted(Path(short).iterdir()) == sorted([first, second])


def test_a_deep_temporary_directory_is_avoided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with runtime_directory() as directory:
        assert len(str(directory / SOCKET_NAME)) < MAX_SOCKET_BYTES
    assert list(deep.iterdir()) == []


def test_a_taken_port_is_told_from_a_free_one() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(BadSetting, match=f"--port: cannot listen on 127.0.0.1:{port}"):
            check_port_free("--port", "--host", "127.0.0.1", port)
    check_port_free("--port", "--host", "127.0.0.1", port)


@pytest.mark.parametrize("host", ["203.0.113.7", "no such host"])
def test_an_address_that_is_not_ours_is_refused(host: str) -> None:
    with pytest.raises(BadSetting, match="--host: cannot listen"):
        check_port_free("--port", "--host", host, 8000)
