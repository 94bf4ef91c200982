"""A model's small files: accepted forms, and files refused before parsing, or even before
reading.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.models.lfs_pointers import is_pointer
from engine.models.model_files import (
    MAX_BYTES,
    MAX_DEPTH,
    FileTooLarge,
    NestedTooDeeply,
    NoRegularFile,
    decode,
    opened,
    read_file,
    read_object,
    read_text,
)


class _One(msgspec.Struct):
    a: int = 0


def nested(levels: int) -> bytes:
    """Return JSON with `levels` of nested objects and lists, and with brackets and quotes within
    strings.
    """
    inside = levels - 1
    half = inside // 2
    opening = b'{"[\\"[\\\\": [' * half + b"[" * (inside % 2)
    closing = b"]" * (inside % 2) + b"]}" * half
    return b'{"x": ' + opening + b'"[[{\\"{"' + closing + b"}"


def test_a_file_and_a_link_to_one_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b'{"a": 1}')
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for name in ("file", "link"):
        assert read_object(tmp_path / name) == {"a": 1}


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for read in (opened, read_file, read_text, read_object):
        with pytest.raises(NoRegularFile, match="no regular file"):
            read(tmp_path / "pipe")
    assert not is_pointer(tmp_path / "pipe")


def test_a_device_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev/null")
    with pytest.raises(NoRegularFile):
        read_file(tmp_path / "link")


def test_a_large_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    for size, refused in ((1 << 20, False), (MAX_BYTES + 1, True)):
        with path.open("wb") as file:
            file.truncate(size)
        if refused:
            with pytest.raises(FileTooLarge, match="128 MiB"):
                read_file(path)
        else:
            assert len(read_file(path)) == size


@pytest.mark.parametrize("kind", [dict[str, Any], _One])
def test_json_is_read_as_deep_as_the_bound_and_no_deeper(kind: type) -> None:
    for levels in (1, 2, MAX_DEPTH - 1, MAX_DEPTH):
        decode(nested(levels), kind)
    for levels in (MAX_DEPTH + 1, MAX_DEPTH + 2, 3000, 100_000):
        with pytest.raises(NestedTooDeeply, match="64 levels"):
            decode(nested(levels), kind)


def test_what_is_no_json_is_said_by_the_decoder() -> None:
    for content in (b"[" * 100, b'{"a": "', b""):
        with pytest.raises(msgspec.DecodeError) as error:
            decode(content, dict[str, Any])
        assert not isinstance(error.value, NestedTooDeeply)


def test_an_infinite_number_is_read_in_both_spellings() -> None:
    newer = b'{"a": [0, {"__float__": "Infinity"}], "b": "Infinity"}'
    older = b'{"a": [0, Infinity], "b": "Infinity"}'
    kind = dict[str, Any]
    assert decode(older, kind) == decode(newer, kind) == msgspec.json.decode(newer)
    with pytest.raises(msgspec.DecodeError):
        decode(b'{"a": [0, Infinite]}', kind)


def test_ends_of_lines_are_those_of_a_text(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"a\r\nb\rc\n")
    assert read_text(tmp_path / "text") == "a\nb\nc\n"
