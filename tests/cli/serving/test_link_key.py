"""The key of a TCP link, which the engine generates once, and the gateway finds."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from cli.errors import BadSetting
from cli.serving.link_key import key_of_found_engines, link_key_file
from engine.link.tcp.curve import read_link_key

TCP = "tcp://127.0.0.1:7300"


def test_a_unix_socket_has_no_key(tmp_path: Path) -> None:
    assert link_key_file("/run/engine.sock", None, tmp_path, make=True) is None
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(BadSetting, match="is a Unix socket: only"):
        link_key_file("/run/engine.sock", tmp_path / "k", tmp_path, make=True)


def test_the_engine_makes_it_once(tmp_path: Path) -> None:
    within = tmp_path / "data"
    made = link_key_file(TCP, None, within, make=True)
    assert made == str(within / "link.key")
    assert stat.S_IMODE(Path(made).stat().st_mode) == 0o600
    key = read_link_key(Path(made))
    assert link_key_file(TCP, None, within, make=True) == made
    assert read_link_key(Path(made)) == key


def test_the_gateway_makes_none(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"link\.key cannot be read.*to be copied from there"):
        link_key_file(TCP, None, tmp_path, make=False)
    made = link_key_file(TCP, tmp_path / "k", tmp_path, make=True)
    assert link_key_file(TCP, tmp_path / "k", tmp_path, make=False) == made


def test_a_file_that_is_no_key_is_kept_and_refused(tmp_path: Path) -> None:
    path = tmp_path / "link.key"
    path.write_text("mine")
    with pytest.raises(BadSetting, match="holds no key"):
        link_key_file(TCP, None, tmp_path, make=True)
    assert path.read_text() == "mine"


def test_that_of_engines_which_are_found_may_come_after_the_gateway(tmp_path: Path) -> None:
    later = key_of_found_engines(None, tmp_path)
    assert not Path(later).exists()
    assert link_key_file(TCP, None, tmp_path, make=True) == later, "the engine's, when it comes"
    assert key_of_found_engines(None, tmp_path) == later
    with pytest.raises(BadSetting, match="cannot be read"):
        key_of_found_engines(tmp_path / "named", tmp_path)
    Path(later).write_text("mine")
    with pytest.raises(BadSetting, match="holds no key"):
        key_of_found_engines(None, tmp_path)
