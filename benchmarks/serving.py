"""The named workloads of `ratoon bench`, sent to a real server with random weights.

    python -m benchmarks.serving --model llama-3.1-8b [--quick] [--workloads mixed,itl]
        [--set kv_dtype=fp8] [--set tensor_parallel=2]

`--set` changes a setting of the server. Reports the time until the server took requests, and the
results of each phase. The cache is flushed before each workload.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.record import emit, progress
from benchmarks.running import RATOON, Running, running
from cli.load.phases import WORKLOADS
from tests.doubles.engine.shapes import model_directory

START_S = 180.0
QUICK = "mixed,ttft-hot"
COMPARED = ("requests", "succeeded", "errors", "wall_s", "output_tokens_per_s", "hit_rate")


Settings = Annotated[
    list[str] | None, typer.Option("--set", help="A setting of the server: name=value.")
]


def main(
    model: str = "handbook", quick: bool = False, workloads: str = "", settings: Settings = None
) -> None:
    """Print a JSON line for each phase."""
    names = (workloads or (QUICK if quick else ",".join(WORKLOADS))).split(",")
    with tempfile.TemporaryDirectory(prefix="ratoon-") as scratch:
        directory = model_directory(model, Path(scratch))
        vocab = json.loads((directory / "config.json").read_text())["vocab_size"]
        progress("starting the server")
        given = {"load_format": "dummy"} | ({"cache_tokens": "16384"} if quick else {})
        given |= dict(setting.split("=", 1) for setting in settings or [])
        with running(directory, Path(scratch, "data"), start_s=START_S, **given) as server:
            emit("ready", model=model, ready_s=server.ready_s)
            for name in names:
                progress(f"workload {name}")
                server.admin("POST", "cache/flush")
                _run(server, name, vocab, small=quick)


def _run(server: Running, name: str, vocab: int, *, small: bool) -> None:
    command = [*RATOON, "bench", "--url", server.url, "--key", server.key, "--json"]
    command += ["--workload", name, "--vocab", str(vocab), "--seed", "7"]
    command += ["--small", "--processes", "1"] if small else []
    ran = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    for line in ran.stdout.splitlines():
        told = json.loads(line)
        emit(told["phase"], workload=name, **_numbers(told["report"]))
    if ran.returncode:
        emit(f"{name} failed", workload=name, exit_status=ran.returncode)


def _numbers(report: dict[str, Any]) -> dict[str, Any]:
    numbers = {name: report[name] for name in COMPARED}
    for kind in ("ttft", "itl"):
        summary = report[f"{kind}_s"]
        if summary is not None:
            numbers |= {f"{kind}_{p}_ms": summary[p] * 1e3 for p in ("p50", "p90", "p95", "p99")}
    return numbers


if __name__ == "__main__":
    typer.run(main)
