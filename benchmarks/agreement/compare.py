"""`ratoon bench`, `vllm bench serve` and AIPerf on one server, in turn in each round.

    python -m benchmarks.agreement.compare --vllm 'vllm bench serve' --aiperf 'aiperf profile'
    python -m benchmarks.agreement.compare --aiperf 'aiperf profile' --model handbook/model

Without `--model` the server is `benchmarks.agreement.pace`, whose times are known, for answers that
are plain, that reason and that call tools; with it, Ratoon serves that model. `--body` is sent with
every request (`{"tools": [...]}`). Prints a JSON line a tool and kind, of the medians over rounds,
and a table for people on standard error. Measure on a machine without other work.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Annotated

import httpx
import typer

from benchmarks.agreement.pace import KINDS
from benchmarks.agreement.tools import Figures, Tool, Workload, aiperf, ratoon, vllm
from benchmarks.record import emit, progress
from benchmarks.running import running
from cli.options.flags import flattened
from tests.doubles.ports import free_port

HANDBOOK = Path(__file__).parents[2] / "handbook" / "model"
START_S = 120.0


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the comparison: tools, server and load."""

    vllm: Annotated[str, typer.Option(help="How vLLM's `bench serve` is started.")] = ""
    aiperf: Annotated[str, typer.Option(help="How AIPerf's `profile` is started.")] = ""
    model: Annotated[str, typer.Option(help="A directory that Ratoon serves.")] = ""
    load_format: Annotated[str, typer.Option(help="Of its weights; dummy: random.")] = "safetensors"
    kinds: Annotated[str, typer.Option(help="Of answers, of the paced server.")] = ",".join(KINDS)
    body: Annotated[str, typer.Option(help="Fields of every request, as JSON.")] = "{}"
    rounds: Annotated[int, typer.Option(help="In which each tool runs once.")] = 3
    requests: Annotated[int, typer.Option(help="Of one run.")] = 64
    concurrency: Annotated[int, typer.Option(help="In flight at once.")] = 8
    prompt_tokens: Annotated[int, typer.Option(help="Words of a prompt.")] = 128
    output_tokens: Annotated[int, typer.Option(help="Of an answer.")] = 64


def main(options: Options) -> None:
    """Print each tool's figures, and their differences from `ratoon bench`."""
    tools = [ratoon()]
    tools += [vllm(options.vllm)] if options.vllm else []
    tools += [aiperf(options.aiperf)] if options.aiperf else []
    with (
        tempfile.TemporaryDirectory(prefix="ratoon-") as scratch,
        _server(options, Path(scratch)) as loads,
    ):
        for load in loads:
            said = measure(tools, load, options.rounds, Path(scratch, load.model))
            for name, figures in said.items():
                emit(name, model=load.model, **figures)
            show(load.model, said)


def measure(
    tools: Sequence[Tool], load: Workload, rounds: int, scratch: Path
) -> dict[str, Figures]:
    """Measure each tool's medians over rounds, after a small warm-up run."""
    tools[0].run(replace(load, requests=load.concurrency), scratch / "first")
    runs: dict[str, list[Figures]] = {tool.name: [] for tool in tools}
    for number in range(rounds):
        for tool in tools:
            progress(f"{load.model}, round {number + 1}: {tool.name}")
            runs[tool.name].append(tool.run(load, scratch / f"{number} {tool.name}"))
    return {
        name: {figure: median(one[figure] for one in figures) for figure in figures[0]}
        for name, figures in runs.items()
    }


def show(kind: str, said: dict[str, Figures]) -> None:
    """Print a table on standard error: times in ms, and their ratios to the first tool's times."""
    first, *others = said
    heads = "".join(f"{name:>26}" for name in others)
    progress(f"\n{kind:24}{first:>14}{heads}")
    for figure, own in said[first].items():
        scale = 1e3 if figure.split("_")[0] in ("ttft", "tpot", "itl", "e2e") else 1.0
        cells = [said[name][figure] for name in others]
        rest = "".join(f"{one * scale:>16.2f} ({one / own:6.1%})" for one in cells)
        progress(f"{figure:24}{own * scale:>14.2f}{rest}")


@contextmanager
def _server(options: Options, scratch: Path) -> Iterator[list[Workload]]:
    """Start a server, and make a workload for each kind of answer that it serves."""
    if options.model:
        directory = Path(options.model)
        given = {"load_format": options.load_format}
        with running(directory, scratch / "data", start_s=START_S, **given) as server:
            yield [_load(options, server.url, server.key, server.model(), directory)]
        return
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "benchmarks.agreement.pace", f"{port}"]
    process = subprocess.Popen(command)
    try:
        _wait_until_up(f"{url}/v1/models")
        kinds = options.kinds.split(",")
        yield [_load(options, url, "none", kind, HANDBOOK) for kind in kinds]
    finally:
        process.terminate()
        process.wait()


def _load(options: Options, url: str, key: str, model: str, tokenizer: Path) -> Workload:
    return Workload(
        url=url,
        key=key,
        model=model,
        tokenizer=tokenizer.resolve(),
        requests=options.requests,
        concurrency=options.concurrency,
        prompt_tokens=options.prompt_tokens,
        output_tokens=options.output_tokens,
        body=json.loads(options.body),
    )


def _wait_until_up(url: str) -> None:
    deadline = time.perf_counter() + START_S
    while time.perf_counter() < deadline:
        try:
            httpx.get(url, timeout=5)
            return
        except httpx.TransportError:
            time.sleep(0.05)
    raise TimeoutError("the server did not come up in time")


if __name__ == "__main__":
    typer.run(flattened(main))
