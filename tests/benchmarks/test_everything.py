"""The command that runs all benchmarks collects their output, failures and exit status.

Every benchmark runs at its smallest size.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from benchmarks.engine.cache_cost import main as cache_main
from benchmarks.engine.kernels import main as kernels_main
from benchmarks.engine.step import BenchShape, tokens_read
from benchmarks.engine.step import main as step_main
from benchmarks.everything import ALL, PARTS, ROOT, chosen, command_of, run_part, write


def script(source: str) -> list[str]:
    return [sys.executable, "-c", source]


def test_lines_and_the_exit_status_are_collected() -> None:
    told = run_part("part", script('print(\'{"name": "a", "us": 1.5}\')'), 60)
    assert (told.records, told.exit_status) == ([{"name": "a", "us": 1.5}], 0)
    assert run_part("part", script("raise SystemExit(3)"), 60).exit_status == 3


def test_lines_printed_before_the_timeout_are_kept() -> None:
    endless = 'import time; print(\'{"name": "a"}\', flush=True); time.sleep(600)'
    told = run_part("part", script(endless), 1.0)
    assert told.exit_status is None
    assert told.seconds < 60
    assert [record["name"] for record in told.records] in ([{}], ["a"])


def test_parts_run_in_their_order_and_unknown_ones_are_refused() -> None:
    assert [part.name for part in chosen("step, kernels")] == ["kernels", "step"]
    assert chosen(ALL) == chosen("all") == list(PARTS)
    with pytest.raises(typer.BadParameter, match="no part is called steps"):
        chosen("kernels,steps")


def test_every_part_can_be_started() -> None:
    for part in PARTS:
        command = command_of(part, "handbook", quick=True)
        assert ("--model" in command) == part.takes_model
        assert Path(ROOT, "benchmarks", part.module.replace(".", "/") + ".py").exists()


def test_the_file_says_where_and_with_what(tmp_path: Path) -> None:
    told = run_part("part", script('print(\'{"name": "a"}\')'), 60)
    write(tmp_path / "out.json", "handbook", [told])
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["parts"][0]["records"] == [{"name": "a"}]
    assert report["hardware"]["cores"] >= 1
    assert report["versions"]["torch"]
    assert report["commit"]
    assert report["model"] == "handbook"


def everything(tmp_path: Path, *words: str) -> dict[str, Any]:
    out = tmp_path / "out.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--out", str(out), *words]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    report: dict[str, Any] = json.loads(out.read_text())
    return report


def records(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return the printed records by name."""
    return {one["name"]: one for one in map(json.loads, capsys.readouterr().out.splitlines())}


def test_kernels_and_steps_at_their_smallest(capsys: pytest.CaptureFixture[str]) -> None:
    kernels_main(quick=True)
    kernels = records(capsys)
    step_main(quick=True)
    step = records(capsys)
    assert kernels["decode 4 x 96"]["share"] > 0
    assert kernels["1 x top-p 0.9"]["us"] > 0
    assert step["4 x 64"]["floor_ms"] > 0
    # both numbers are printed with only four digits
    assert step["4 x 64 on 48"]["floor_ms"] <= step["4 x 64"]["floor_ms"]


def test_the_cache_at_its_smallest(capsys: pytest.CaptureFixture[str]) -> None:
    cache_main(quick=True)
    assert records(capsys)["cache without hits"]["lost_share"] < 1


def test_a_server_at_its_smallest(tmp_path: Path) -> None:
    [part] = everything(tmp_path, "--only", "server")["parts"]
    assert part["name"] == "server"
    server = {record["name"]: record for record in part["records"]}
    assert server["ready"]["ready_s"] > 0
    assert server["mixed"]["errors"] == {}
    assert server["ttft-hot-128"]["hit_rate"] > 0.5 > server["ttft-cold-128"]["hit_rate"]


def test_a_shared_prefix_is_read_once() -> None:
    contexts, chunks = (64,) * 4, ((32, 40),)
    assert tokens_read(BenchShape("alone", contexts, chunks)) == 4 * 64 + 40
    pairs = BenchShape("pairs", contexts, chunks, group=2, shared=48)
    assert tokens_read(pairs) == 4 * 64 + 40 - 2 * 48
    assert tokens_read(BenchShape("all", contexts, group=4, shared=48)) == 4 * 64 - 3 * 48
