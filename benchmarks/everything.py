"""All benchmarks of docs/performance.md with one command, and their results in one JSON file.

    python -m benchmarks [--model llama-3.1-8b] [--only kernels,step | --only all] [--quick]

Without --only, the parts of MAIN run. Each part is a process with a time limit. The file has all
lines that a part prints before its limit, and the hardware, the versions and the commit. By
default, --model is the embedded model on a CPU, and the shape of an 8B on a GPU. Weights are
random. --quick uses the smallest sizes. --against DIR runs each part in another checkout too, by
turns, and compares the numbers of both checkouts.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.against import by_turns, compared, one_sided
from benchmarks.record import progress

ROOT = Path(__file__).parent.parent
LIBRARIES = ("torch", "triton", "numpy", "msgspec", "uvicorn", "aiohttp")


@dataclass(frozen=True, slots=True)
class BenchmarkPart:
    """A part of the benchmarks: a module that runs in its own process.

    `quick` is the part's arguments for --quick.
    """

    name: str
    module: str
    quick: str
    limit_s: float = 300
    takes_model: bool = False


MAIN = (
    BenchmarkPart("kernels", "engine.kernels", "--quick"),
    BenchmarkPart("step", "engine.step", "--quick", takes_model=True),
    BenchmarkPart("gaps", "engine.gaps", "--quick", 180, takes_model=True),
    BenchmarkPart("drafts", "drafting.drafts", "--quick", takes_model=True),
    BenchmarkPart("server", "serving", "--quick", 900, takes_model=True),
    BenchmarkPart("cache", "engine.cache_cost", "--quick", takes_model=True),
)
OF_PACKAGES = (
    BenchmarkPart("tree", "engine.tree", "--num-tokens 2048 --prefixes 100"),
    BenchmarkPart("experts", "engine.experts", "--quick"),
    BenchmarkPart("adapters", "adapters", "--quick", 900),
    BenchmarkPart("recurrence", "engine.recurrence", "--quick"),
    BenchmarkPart("kv", "engine.kv_formats", "--quick"),
    BenchmarkPart("accuracy", "engine.accuracy", "--quick", 1800),
    BenchmarkPart("tiers", "engine.tiers", "--blocks 16 --block-kib 128"),
    BenchmarkPart("fetch", "engine.fetch", "--tokens 256 --repeats 1"),
    BenchmarkPart("restart", "restart", "--gib 0.1 --block-kib 128 --device-gib 0.05", 600),
    BenchmarkPart("requests", "gateway.requests", "--rate 20 --seconds 2"),
    BenchmarkPart("turns", "gateway.agent_turns", "--rounds 2 --repeats 5"),
    BenchmarkPart("idle", "gateway.idle_connections", "--connections 100"),
    BenchmarkPart("limits", "gateway.limits", "--requests 200"),
    BenchmarkPart("routing", "gateway.routing", "--blocks 64000 --requests 50 --tree-blocks 20000"),
    BenchmarkPart("streams", "gateway.streams", "--connections 8 --step-ms 40 --seconds 2"),
    BenchmarkPart("page", "gateway.page", "--blocks 16000 --times 2"),
    BenchmarkPart("published", "published", "--tenants 6"),
    BenchmarkPart("flood", "flood", "--asks 4 --rounds 2 --streams 4", 1200),
    BenchmarkPart("hostile", "gateway.hostile", "--seconds 1 --only texts", 3600),
)
PARTS = (*MAIN, *OF_PACKAGES)
USUAL = ",".join(part.name for part in MAIN)
ALL = ",".join(part.name for part in PARTS)


@dataclass(frozen=True, slots=True)
class PartOutcome:
    """The outcome of a part of the benchmarks."""

    name: str
    seconds: float
    exit_status: int | None  # None if the time limit was reached
    records: list[dict[str, Any]]


def main(
    model: Annotated[str, typer.Option(help="A shape's name, 'handbook' or a directory.")] = "",
    only: Annotated[
        str, typer.Option(help=f"Parts to run, separated by commas, of {ALL}; or 'all'.")
    ] = USUAL,
    quick: Annotated[bool, typer.Option("--quick", help="Use the smallest sizes.")] = False,
    limit_s: Annotated[
        float, typer.Option(help="Time limit of each part, in seconds; 0: its own.")
    ] = 0,
    out: Annotated[Path, typer.Option(help="File for the JSON.")] = Path("benchmarks.json"),
    against: Annotated[
        Path | None, typer.Option(help="Another checkout, measured by turns with this one.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each, with --against.")] = 3,
) -> None:
    """Run the parts and write the results file.

    Exits with 1 if a part failed or got 2 % slower.
    """
    parts = chosen(only)
    model = model or ("llama-3.1-8b" if torch.cuda.is_available() and not quick else "handbook")
    outcomes = []
    for number, part in enumerate(parts, 1):
        limit = limit_s or part.limit_s
        progress(f"[{number}/{len(parts)}] {part.name}, at most {limit:.0f} s")
        command = command_of(part, model, quick=quick)
        if against is None:
            outcomes.append(run_part(part.name, command, limit))
        else:
            outcomes += run_by_turns(part.name, command, limit, against, rounds)
        # Written after each part, so that no result is lost if a later part fails.
        write(out, model, outcomes)
    progress(f"written to {out}")
    if any(outcome.exit_status != 0 for outcome in outcomes):
        raise typer.Exit(1)


def chosen(only: str) -> list[BenchmarkPart]:
    """Return the benchmark parts with these names, in running order. Raises BadParameter."""
    names = {name.strip() for name in (ALL if only == "all" else only).split(",")}
    unknown = names - {part.name for part in PARTS}
    if unknown:
        raise typer.BadParameter(f"no part is called {', '.join(sorted(unknown))}")
    return [part for part in PARTS if part.name in names]


def command_of(part: BenchmarkPart, model: str, *, quick: bool) -> list[str]:
    """Return the command line of a part."""
    command = [sys.executable, "-m", f"benchmarks.{part.module}"]
    command += ["--model", model] if part.takes_model else []
    return [*command, *part.quick.split()] if quick else command


def run_by_turns(
    name: str, command: list[str], limit_s: float, other: Path, rounds: int
) -> list[PartOutcome]:
    """Run a part in this checkout and in `other` in turn, `rounds` times.

    The last outcome has the comparison, and fails if a number got worse.
    """
    started, outcomes = time.perf_counter(), list[PartOutcome]()

    def run(is_this: bool) -> list[dict[str, Any]]:
        root = ROOT if is_this else other.resolve()
        where = "here" if is_this else "there"
        outcomes.append(run_part(f"{name}, {where}", command, limit_s, root))
        return outcomes[-1].records

    both = by_turns(rounds, run)
    found = compared(*both)
    for one in found:
        numbers = f"{one.this:.4g} here, {one.other:.4g} there, spread {one.spread:.1%}"
        told = ", LOST" if one.is_lost else ", unclear: more rounds" * one.is_unclear
        progress(f"{one.ratio:.3f} {' '.join(one.key)}: {numbers}{told}")
    for key in one_sided(*both):
        progress(f"only in one of the two: {' '.join(key)}")
    is_bad = not found or any(one.is_lost for one in found)
    seconds = time.perf_counter() - started
    records = [asdict(one) for one in found]
    return [*outcomes, PartOutcome(f"{name}, compared", seconds, int(is_bad), records)]


def run_part(name: str, command: list[str], limit_s: float, root: Path = ROOT) -> PartOutcome:
    """Run a part in a checkout for at most `limit_s`, and collect and show its JSON lines."""
    started = time.perf_counter()
    paths = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment = {**os.environ, "PYTHONPATH": paths}
    # At the time limit the part gets SIGTERM, so that it can stop its own server.
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, env=environment, text=True, cwd=root
    )
    timer = threading.Timer(limit_s, process.terminate)
    timer.start()
    records = []
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            progress(f"    {line.rstrip()}")
            records.append(json.loads(line))
    exit_status: int | None = process.wait()
    seconds = time.perf_counter() - started
    if timer.is_alive():
        timer.cancel()
    else:
        progress(f"{name}: its {limit_s:.0f} s were up")
        exit_status = None
    return PartOutcome(name, seconds, exit_status, records)


def write(out: Path, model: str, outcomes: list[PartOutcome]) -> None:
    """Write the results file."""
    report = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "model": model,
        "hardware": _hardware(),
        "versions": {"python": platform.python_version(), **_versions()},
        "parts": [asdict(outcome) for outcome in outcomes],
    }
    out.write_text(json.dumps(report, indent=1) + "\n")


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    described = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return described.stdout.strip() or "unknown"


def _hardware() -> dict[str, Any]:
    found: dict[str, Any] = {
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
    }
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
        found["gpu_memory_gib"] = round(torch.cuda.mem_get_info()[1] / 2**30, 1)
    return found


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {"cuda": torch.version.cuda}
    for library in LIBRARIES:
        try:
            versions[library] = version(library)
        except PackageNotFoundError:
            versions[library] = None
    return versions
