"""The cost of the prefix cache when nothing is ever found in it.

    python -m benchmarks.cache_cost --model llama-3.1-8b [--quick]

A whole engine in this process, without HTTP, computes prompts that share nothing, in rounds that
use the cache and rounds that bypass it, alternating because a machine's speed drifts. Reports the
tokens a second of both and the share lost, by the medians. Target: at most 1 % lost, then 0.3.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import typer

from benchmarks.local_link import LocalLink
from benchmarks.record import emit, progress
from benchmarks.shapes import model_directory
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.loading import open_model
from engine.main import build_core
from engine.messages import Generate, SamplingParams, pack_token_ids
from prefix_cache.hashing import block_keys
from prefix_cache.namespace import Namespace, NamespacePath

BLOCK_SIZE = 16
PATH = NamespacePath.single(Namespace(b"cache-cost......"))


@dataclass(frozen=True, slots=True)
class Size:
    """Requests of a round, tokens of their prompts and answers, rounds of each kind."""

    requests: int
    prompt: int
    output: int
    rounds: int


FULL, QUICK = Size(512, 768, 192, 5), Size(4, 40, 8, 2)


def main(model: str = "handbook", quick: bool = False) -> None:
    """Print JSON lines: each round, then what is lost."""
    size, rng = QUICK if quick else FULL, np.random.default_rng(7)
    with tempfile.TemporaryDirectory(prefix="ratoon-") as scratch:
        config = EngineConfig(
            model_dir=str(model_directory(model, Path(scratch))),
            socket="",
            load_format="dummy",
            block_size=BLOCK_SIZE,
            cache_tokens=4_096 if quick else None,
            max_running=8 if quick else 256,
        )
        opened = open_model(config)
    link = LocalLink()
    core = build_core(config, opened, link)
    speeds: dict[bool, list[float]] = {True: [], False: []}
    _run(core, link, requests_for(rng, size, opened.model.vocab_size, use_cache=True))  # warms up
    for number in range(size.rounds):
        for use_cache in (True, False) if number % 2 else (False, True):
            progress(f"round {number + 1} of {size.rounds}, cache {'on' if use_cache else 'off'}")
            requests = requests_for(rng, size, opened.model.vocab_size, use_cache=use_cache)
            took = _run(core, link, requests)
            speeds[use_cache].append(size.requests * size.output / took)
            emit("round", cache=use_cache, output_tokens_per_s=speeds[use_cache][-1])
    on, off = statistics.median(speeds[True]), statistics.median(speeds[False])
    emit("cache without hits", on_tokens_per_s=on, off_tokens_per_s=off, lost_share=1 - on / off)


def requests_for(
    rng: np.random.Generator, size: Size, vocab_size: int, *, use_cache: bool = True
) -> list[Generate]:
    """Prompts that nobody sent before."""
    prompts = rng.integers(10, vocab_size, (size.requests, size.prompt)).astype(np.int32)
    return [
        Generate(
            request_id=str(number),
            token_ids=pack_token_ids(prompt.tolist()),
            namespaces=PATH.spans,
            block_keys=block_keys(PATH, prompt, BLOCK_SIZE),
            flow="flow",
            sampling=SamplingParams(max_tokens=size.output, temperature=0.0, ignore_eos=True),
            use_cache=use_cache,
        )
        for number, prompt in enumerate(prompts)
    ]


def _run(core: EngineCore, link: LocalLink, requests: list[Generate]) -> float:
    """Seconds until all have ended."""
    for request in requests:
        link.say(request)
    before = time.perf_counter()
    core.step()
    while not core.is_idle:
        core.step()
    return time.perf_counter() - before


if __name__ == "__main__":
    typer.run(main)
