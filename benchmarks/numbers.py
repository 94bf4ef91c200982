"""The figures of docs/inference-by-numbers.md, each beside what texts on inference say.

    python -m benchmarks.numbers [--model llama-2-7b] [--only plan,engine,server] [--quick]

A table, printed line by line: what texts say, what was found here, and the command. `plan` is
arithmetic, `engine` runs `benchmarks.engine.by_numbers`, `server` starts `ratoon serve` with random
weights and runs `ratoon bench`. All together take less than four minutes on an H200.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from benchmarks.record import progress
from benchmarks.running import RATOON, Running, running
from tests.doubles.engine.shapes import model_directory

START_S = 180.0
PARTS = "plan,engine,server"


@dataclass(frozen=True, slots=True)
class Figure:
    """A row of the table."""

    what: str
    theirs: str
    ours: str
    command: str


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is asked of a server."""

    bursts: tuple[tuple[int, int], ...] = ((80, 1_024), (768, 8))  # requests, tokens of each
    lengths: tuple[int, ...] = (8, 128, 512, 2_048)
    callers: tuple[int, ...] = (1, 32)
    prompt: int = 512
    output: int = 128
    batched: int = 128  # requests
    batches: str = "all"
    rate: float = 30.0  # of these
    find_s: int = 40


FULL = Sizes()
QUICK = Sizes(
    bursts=((4, 32), (8, 8)),
    lengths=(8, 32),
    callers=(1, 2),
    prompt=32,
    output=8,
    batched=8,
    batches="static:4,dynamic:4:50ms,continuous",
    rate=8,
    find_s=4,
)


def main(model: str = "llama-2-7b", only: str = PARTS, quick: bool = False) -> None:
    """Print the table."""
    if quick and model == "llama-2-7b":
        model = "llama-2-tiny"
    print("| what | texts | here | by |\n|--|--|--|--|")
    with tempfile.TemporaryDirectory(prefix="ratoon-") as scratch:
        directory = model_directory(model, Path(scratch))
        found = {
            "plan": lambda: planned(directory),
            "engine": lambda: in_engine(model, quick=quick),
            "server": lambda: served(directory, Path(scratch, "data"), quick=quick),
        }
        for part in only.split(","):
            for one in found[part]():
                print(f"| {one.what} | {one.theirs} | {one.ours} | `{one.command}` |", flush=True)


def planned(directory: Path) -> Iterator[Figure]:
    """Arithmetic: weights, KV, and predicted times."""
    made = _json([*RATOON, "plan", "--model", str(directory), "--prompt-tokens", "4096", "--json"])
    costs, command = made["costs"], f"ratoon plan --model {directory.name}"
    yield Figure("weights", "14 GB", f"{costs['weight_bytes'] / 1e9:.1f} GB", command)
    kv = costs["kv_bytes_per_token"]
    yield Figure("KV of a token", "512 KB", f"{kv / 1024:.0f} KiB", command)
    long = f"{command} --prompt-tokens 4096 --output-tokens 0"
    yield Figure("KV of 4,096 tokens", "2 GB", f"{4096 * kv / 2**30:.2f} GiB", long)
    for requests, tokens, theirs in ((80, 1_024, "2 s"), (768, 8, "165 ms")):
        words = ["--batch", f"{requests}", "--prompt-tokens", f"{tokens}"]
        burst = _json([*RATOON, "plan", "--model", str(directory), *words, "--json"])["requests"]
        ours = f"{burst['ttft_ms']:,.0f} ms predicted"
        what = f"burst of {requests} x {tokens:,}, predicted"
        yield Figure(what, theirs, ours, f"{command} {' '.join(words)}")


def in_engine(model: str, *, quick: bool) -> Iterator[Figure]:
    """Bursts, steps and their utilisation without HTTP."""
    words = ["benchmarks.engine.by_numbers", "--model", model, *(["--quick"] if quick else [])]
    command = f"python -m {' '.join(words)}"
    for one in _lines([sys.executable, "-m", *words]):
        name, ms = one["name"], f"{one['ms']:,.2f} ms"
        if name.startswith("burst"):
            theirs = {"80": "2 s", "768": "165 ms"}.get(name.split()[2], "")
            yield Figure(f"{name}, first tokens", theirs, ms, command)
            continue
        is_prefill = name.startswith("prefill")
        yield Figure(name, "7 to 2,078 ms" if is_prefill else "under 50 ms", ms, command)
        used = f"{one['of_product']:.1%} of a product, {one['of_sheet']:.1%} of the sheet"
        yield Figure(f"{name}, FLOPs used", "60-90 %" if is_prefill else "5-30 %", used, command)


def served(directory: Path, data: Path, *, quick: bool) -> Iterator[Figure]:
    """What a client sees."""
    sizes = QUICK if quick else FULL
    vocab = json.loads((directory / "config.json").read_text())["vocab_size"]
    settings = {"max_running": "768"} if not quick else {"cache_tokens": "16384"}
    with running(directory, data, start_s=START_S, load_format="dummy", **settings) as server:
        bench = Bench(server, vocab)
        bench.ran(f"--requests 16 --prompt-tokens {sizes.prompt} --output-tokens 8")  # warms up
        yield from _bursts(bench, sizes)
        yield from _prefills(bench, sizes)
        yield from _decodes(bench, sizes)
        yield from _batchings(bench, sizes)
        yield from _highest_rate(bench, sizes)


@dataclass(frozen=True, slots=True)
class Bench:
    """`ratoon bench` against one server, with prompts that share nothing."""

    server: Running
    vocab: int

    def ran(self, words: str) -> Any:
        """What it reports for these flags."""
        progress(f"ratoon bench {words}")
        fixed = ["--url", self.server.url, "--key", self.server.key, "--vocab", str(self.vocab)]
        return _json([*RATOON, "bench", *fixed, "--shared-tokens", "0", "--json", *words.split()])


def _bursts(bench: Bench, sizes: Sizes) -> Iterator[Figure]:
    for requests, tokens in sizes.bursts:
        words = f"--rate inf --requests {requests} --prompt-tokens {tokens} --output-tokens 1"
        bench.ran(words)  # the first burst of a shape warms up
        report = bench.ran(words)
        theirs = {80: "2 s", 768: "165 ms"}.get(requests, "")
        what = f"{requests} prompts of {tokens:,}, first tokens of all, over HTTP"
        ours = _ms(report["ttft_s"]["max"])
        ours += f", but failed: {report['errors']}" if report["errors"] else ""
        yield Figure(what, theirs, ours, _command(words))


def _prefills(bench: Bench, sizes: Sizes) -> Iterator[Figure]:
    for tokens in sizes.lengths:
        words = f"--concurrency 1 --requests 12 --prompt-tokens {tokens} --output-tokens 1"
        report = bench.ran(words)
        what = f"first token of a prompt of {tokens:,}, over HTTP, p50"
        yield Figure(what, "7 to 2,078 ms", _ms(report["ttft_s"]["p50"]), _command(words))


def _decodes(bench: Bench, sizes: Sizes) -> Iterator[Figure]:
    for callers in sizes.callers:
        words = f"--concurrency {callers} --requests {2 * callers + 2}"
        words += f" --prompt-tokens {sizes.prompt} --output-tokens {sizes.output}"
        report = bench.ran(words)
        at_once = f"{callers} at once"
        yield Figure(
            f"TPOT, {at_once}, p50", "under 50 ms", _ms(report["tpot_s"]["p50"]), _command(words)
        )
        decoding = 1 - report["ttft_s"]["mean"] / report["e2e_s"]["mean"]
        yield Figure(f"time in decode, {at_once}", "over 90 %", f"{decoding:.1%}", _command(words))


def _batchings(bench: Bench, sizes: Sizes) -> Iterator[Figure]:
    words = f"--batching {sizes.batches} --rate {sizes.rate:g} --requests {sizes.batched}"
    words += f" --prompt-tokens {sizes.prompt} --output-tokens {sizes.output}"
    for name, report in bench.ran(words)["runs"].items():
        ours = (
            f"{report['output_tokens_per_s']:,.0f} tokens/s, "
            f"TTFT p50 {_ms(report['ttft_s']['p50'])}, p99 {_ms(report['ttft_s']['p99'])}, "
            f"TPOT p50 {_ms(report['tpot_s']['p50'])}"
        )
        yield Figure(f"batching {name}", "", ours, _command(words))


def _highest_rate(bench: Bench, sizes: Sizes) -> Iterator[Figure]:
    words = f"--find-rate --slo ttft=2s,tpot=50ms --find-seconds {sizes.find_s}"
    words += f" --rate 8 --prompt-tokens {sizes.prompt} --output-tokens {sizes.output}"
    found = bench.ran(words)
    highest, missed = found["highest"], found["lowest_missed"]
    ours = "none tried" if highest is None else f"{highest:.1f} requests/s"
    ours += "" if missed is None else f", not {missed:.1f}"
    yield Figure("highest rate with ttft=2s, tpot=50ms for 90 %", "", ours, _command(words))


def _command(words: str) -> str:
    return f"ratoon bench --shared-tokens 0 {words}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f} ms"


def _json(command: list[str]) -> Any:
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def _lines(command: list[str]) -> Iterator[dict[str, Any]]:
    """The lines of a process, each as it comes; raises CalledProcessError."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield json.loads(line)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


if __name__ == "__main__":
    typer.run(main)
