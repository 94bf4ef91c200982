"""Reading traces, and what is said of bad ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.simulation.trace import BadTrace, read_trace
from tests.cli.simulation.traces import row, write


def test_a_line_is_a_request_and_ids_are_numbered_as_they_come(tmp_path: Path) -> None:
    rows = [row(0, [7, 10**15, 9]), row(2500, [7, 4], tail=3, tenant="b")]
    trace = read_trace(write(tmp_path / "t", rows), 10)
    first, second = trace.requests
    assert (first.at, first.input_tokens, first.output_tokens) == (0.0, 30, 5)
    assert (first.ids.tolist(), second.ids.tolist()) == ([0, 1, 2], [0, 3])
    assert (second.at, second.input_tokens) == (2.5, 17)
    assert (trace.num_blocks, trace.tenants) == (5, ["b", "default"])


def test_empty_lines_and_fields_of_others_do_not_matter(tmp_path: Path) -> None:
    path = write(tmp_path / "t", [row(0, [1], model="x")])
    path.write_bytes(b"\n" + path.read_bytes() + b"\n\n")
    assert len(read_trace(path, 10).requests) == 1


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"{", "line 2"),
        (b"[]", "line 2"),
        (b'{"timestamp": 0}', "line 2.*input_length"),
        (b'{"timestamp": "now", "input_length": 1}', r"line 2.*\$.timestamp"),
        (b"\xff\xfe", "line 2"),
        (
            b'{"timestamp":0,"input_length":10,"output_length":-1,"hash_ids":[1]}',
            "line 2.*output_length",
        ),
        (
            b'{"timestamp":0,"input_length":11,"output_length":1,"hash_ids":[1]}',
            "line 2: 11 tokens are 2 blocks of 10, and there are 1 hash_ids",
        ),
        (
            b'{"timestamp":0,"input_length":10,"output_length":1,"hash_ids":["a"]}',
            r"line 2.*hash_ids",
        ),
    ],
)
def test_a_bad_line_is_reported_by_its_number(tmp_path: Path, line: bytes, says: str) -> None:
    path = write(tmp_path / "t", [row(0, [1])])
    assert read_trace(path, 10).num_blocks == 1
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(BadTrace, match=says) as caught:
        read_trace(path, 10)
    assert caught.value.exit_code == 2


def test_a_line_out_of_order_is_refused(tmp_path: Path) -> None:
    assert read_trace(write(tmp_path / "a", [row(5, [1]), row(5, [1])]), 10).num_blocks == 2
    with pytest.raises(BadTrace, match=r"line 2.*timestamp"):
        read_trace(write(tmp_path / "b", [row(5, [1]), row(4, [1])]), 10)


def test_a_file_that_is_not_there_or_empty_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match="No such file"):
        read_trace(tmp_path / "none", 10)
    with pytest.raises(BadTrace, match="no request"):
        read_trace(write(tmp_path / "t", []), 10)
