"""A connection meets the oracles of `http_oracles` for any bytes. The oracles find planted
faults.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gateway.http.protocol.connection import connection_within
from tests.gateway.http.protocol.exchange import BOUNDS, DIALECTS
from tests.gateway.http.protocol.fuzzing.http_oracles import check
from tests.gateway.http.protocol.fuzzing.http_seeds import SEEDS
from tests.gateway.http.protocol.fuzzing.planted import PLANTED

RUNS = 400  # number of inputs, however long they take
# longest times of the two runs, in seconds; the second run ends when it finds the fault
FUZZ_S, FIND_S = 150, 90
FOUND = 77  # libFuzzer's exit status after an input broke an oracle


@pytest.mark.parametrize("name", SEEDS)
async def test_bytes_that_once_did_harm(name: str) -> None:
    await check(connection_within(BOUNDS, DIALECTS), SEEDS[name])


@pytest.mark.parametrize("name", sorted(set(PLANTED) - {"LosesHighBytes"}))
async def test_the_oracles_see_a_fault(name: str) -> None:
    seen = 0
    for seed in SEEDS.values():
        try:
            await check(PLANTED[name], seed)
        except AssertionError:
            seen += 1
    assert seen > 0


def fuzzed(directory: Path, seconds: int, *options: str) -> int:
    pytest.importorskip("atheris", reason="there is no libFuzzer for this Python or system")
    command = [
        sys.executable,
        "-m",
        "tests.gateway.http.protocol.fuzzing.fuzz_http",
        f"-max_total_time={seconds}",
        # libFuzzer's limit counts the peak memory, which a process inherits from its parent at the
        # fork: a test worker of 2 GiB would already exceed it.
        "-rss_limit_mb=0",
    ]
    into = f"-artifact_prefix={directory}/"
    process = subprocess.run(
        [*command, "-seed=18", into, *options], capture_output=True, timeout=180
    )
    return process.returncode


def test_bytes_made_up_by_the_fuzzer(tmp_path: Path) -> None:
    assert fuzzed(tmp_path, FUZZ_S, f"-runs={RUNS}") == 0
    assert list(tmp_path.iterdir()) == []


def test_the_fuzzer_reports_a_fault(tmp_path: Path) -> None:
    assert fuzzed(tmp_path, FIND_S, "--planted=BelievesTrailers") == FOUND
    [crash] = tmp_path.iterdir()
    assert b"chunked" in crash.read_bytes().lower()
