"""Traces are read line by line and divided among tenants. A bad line is reported by its number."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from cli.load.requests.trace import BadTrace, BlockTrace, among_tenants, read_trace
from tests.cli.console import Console
from tests.cli.simulation.traces import row, write

SESSIONS = 300


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
        (b'{"x": ' + b"[" * 20_000 + b"]" * 20_000 + b"}", "line 2: it is nested too deeply"),
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


def trace(path: Path) -> Path:
    """Write a trace of sessions with two requests each, which all begin with one block."""
    rows = [
        row(number, [0, number % SESSIONS + 1, *([1000 + number] if number >= SESSIONS else [])])
        for number in range(2 * SESSIONS)
    ]
    return write(path / "trace.jsonl", rows)


def owners(divided: BlockTrace) -> Counter[str]:
    return Counter(request.tenant for request in divided.requests)


def test_a_session_is_one_tenants(tmp_path: Path) -> None:
    divided = among_tenants(read_trace(trace(tmp_path), 10), 4, "equal").requests
    assert [one.tenant for one in divided[:SESSIONS]] == [one.tenant for one in divided[SESSIONS:]]


def test_tenants_are_alike_or_follow_zipf(tmp_path: Path) -> None:
    read = read_trace(trace(tmp_path), 10)
    equal, zipf = owners(among_tenants(read, 4, "equal")), owners(among_tenants(read, 4, "zipf"))
    assert min(equal.values()) > SESSIONS / 3
    assert zipf["t1"] > 1.5 * zipf["t2"] > 0
    assert zipf["t1"] > 3 * zipf["t4"] > 0


def test_partitions_cost_hits_where_one_tenant_needs_more(console: Console, tmp_path: Path) -> None:
    big = [row(number, list(range(40))) for number in range(10)]
    small = [row(20 + number, [100 + number, 101 + number], tenant="b") for number in range(10)]
    path = str(write(tmp_path / "two.jsonl", big + small))
    rates = {}
    for sharing in ("pooled", "partitioned"):
        words = ("--block-size", "10", "--device-tokens", "600", "--policy", "lru", "--json")
        printed = console.type("simulate", path, *words, "--cache-sharing", sharing)
        rates[sharing] = printed.json["token_hit_rate"]
    assert rates["pooled"] > rates["partitioned"] > 0
