"""Time to the first token of the handbook model for a prefix on disk, compared with a cold one.

`python -m benchmarks.warm_disk`: prompts of `--tokens` are asked cold, each in a namespace of its
own; the engine is stopped, which writes them to disk, and another is started on the same file;
then each is asked again. Measured is the time from the request to its first token in the engine's
own loop, without HTTP and the tokenizer.

Knows: an engine in this process. Does not know: what the files look like.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from typing import Annotated

import numpy as np
import typer

from benchmarks.local_link import LocalLink
from benchmarks.shapes import EMBEDDED
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.loading import OpenedModel, open_model
from engine.lower_tiers import open_tiers
from engine.main import build_core
from engine.messages import (
    Generate,
    SamplingParams,
    Tokens,
    pack_token_ids,
)
from prefix_cache.hashing import block_keys
from prefix_cache.namespace import Namespace, NamespacePath

SUFFIX = 16  # tokens behind the prefix, so that the prompt is more than what was asked before


def ask(core: EngineCore, link: LocalLink, number: int, tokens: int) -> tuple[float, Tokens]:
    """Seconds to the first token of prompt `number`, and what came with it."""
    random = np.random.default_rng(number)
    prompt = random.integers(5, 500, tokens + SUFFIX).astype(np.int32)
    path = NamespacePath.single(Namespace(number.to_bytes(16, "big")))
    request = Generate(
        request_id=f"{number}",
        token_ids=pack_token_ids(prompt),
        namespaces=path.spans,
        block_keys=block_keys(path, prompt, core.parts.cache.block_size),
        flow="bench",
        sampling=SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True),
    )
    link.first = None
    link.say(request)
    began = time.perf_counter()
    while link.first is None:
        core.step()
    seconds = time.perf_counter() - began
    while not core.is_idle:
        core.step()
    return seconds, link.first


def run(config: EngineConfig, model: OpenedModel, prompts: int, tokens: int) -> list[float]:
    """Ask each prompt once, of an engine that knows what is on disk; then end it."""
    tiers = open_tiers(config, model.pool, model.num_blocks, model.fingerprint)
    link = LocalLink()
    core = build_core(config, model, link, tiers.lower)
    core.parts.copies.restore(core.parts.clock())  # and nothing loaded before it is asked for
    taken = []
    for number in range(prompts):
        seconds, first = ask(core, link, number, tokens)
        taken.append(seconds)
        if number == 0:
            print(f"  first: {first.cached_tokens} cached, {first.tiers}")
    core.spill(60.0)
    tiers.close()
    return taken


def main(
    tokens: Annotated[int, typer.Option(help="Of each prefix.")] = 2000,
    prompts: Annotated[int, typer.Option(help="Asked cold, and again from disk.")] = 8,
    threads: Annotated[int, typer.Option(help="That the engine computes with.")] = 2,
) -> None:
    """Print both, and the ratio."""
    with tempfile.TemporaryDirectory() as directory:
        config = EngineConfig(
            model_dir=str(EMBEDDED),
            socket="",
            device="cpu",
            cache_tokens=(tokens + 64) * (prompts + 1),
            num_threads=threads,
            disk_cache_dir=directory,
            disk_cache_gib=2.0,
        )
        model = open_model(config)
        cold = run(config, model, prompts, tokens)
        warm = run(config, model, prompts, tokens)
    medians = statistics.median(cold), statistics.median(warm)
    for name, taken, median in zip(("cold", "from disk"), (cold, warm), medians, strict=True):
        spread = f"{min(taken) * 1e3:.1f} to {max(taken) * 1e3:.1f}"
        print(f"{name}: {median * 1e3:.1f} ms ({spread})")
    print(f"ratio {medians[1] / medians[0]:.3f}")


if __name__ == "__main__":
    typer.run(main)
