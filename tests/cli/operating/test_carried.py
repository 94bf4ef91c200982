"""The file that an export writes is complete or absent. Only the operator can read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.errors import CliError
from cli.operating.carried import new_file


def test_a_link_in_the_way_is_not_followed(tmp_path: Path) -> None:
    file, elsewhere = tmp_path / "rules.prefix", tmp_path / "elsewhere"
    elsewhere.write_bytes(b"another file")
    (tmp_path / "rules.prefix.part").symlink_to(elsewhere)
    with new_file(file) as content:
        content.write(b"prefix")
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (b"prefix", 0o600)
    assert elsewhere.read_bytes() == b"another file"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["elsewhere", "rules.prefix"]


def test_what_is_not_written_whole_is_not_there(tmp_path: Path) -> None:
    file = tmp_path / "rules.prefix"
    with pytest.raises(CliError):
        write_in_part(file)
    assert not [*tmp_path.iterdir()]


def write_in_part(file: Path) -> None:
    with new_file(file) as content:
        content.write(b"pre")
        raise OSError(28, "No space left on device")
