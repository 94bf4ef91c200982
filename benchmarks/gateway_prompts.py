"""What a prompt of token ids costs a gateway worker, from its last byte to the engine's message.

    python -m benchmarks.gateway_prompts

Everything in between runs here as it does in the gateway, on one thread: parsing and checking the
body, the array of ids, the namespace, the block keys, encoding the message. Prints the best of many
runs, in milliseconds, and two of the parts.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import typer

from engine.codec import Codec
from gateway.admission import Admission
from gateway.body import parse
from gateway.caller import Caller
from gateway.config import Bounds
from gateway.namespaces import Namespaces
from gateway.openai.completions import ask_of_completion
from gateway.openai.prompts import prompt_in
from gateway.openai.schema import CompletionRequest
from gateway.tokenizer import Tokenizer
from tests.doubles.fake_engine import WELCOME
from tests.doubles.tiny_model import write_tiny_model

VOCABULARY = 151_936
RUNS = 50
_DECODER = msgspec.json.Decoder(CompletionRequest)
_BOUNDS = Bounds()
_CALLER = Caller("tenant", "key")
_WELCOME = msgspec.structs.replace(WELCOME, vocab_size=VOCABULARY, max_model_len=1 << 20)


def body_of(tokens: int) -> bytes:
    """A request with a prompt of random ids."""
    ids = random.Random(tokens).choices(range(VOCABULARY), k=tokens)
    return json.dumps({"model": "tiny", "prompt": ids, "max_tokens": 8, "stream": True}).encode()


def best_ms(work: Callable[[], object]) -> float:
    """The shortest of `RUNS` runs."""
    times = []
    for _ in range(RUNS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times) * 1000


def measure(admission: Admission, tokens: int) -> None:
    """Print one line for prompts of so many tokens."""
    body, codec = body_of(tokens), Codec()
    loop = asyncio.new_event_loop()

    def parsed() -> CompletionRequest:
        return parse(_DECODER, body, _BOUNDS.max_json_depth, prompt_in)

    def admitted() -> bytes:
        ask = ask_of_completion(parsed(), "request", _BOUNDS, _WELCOME.max_model_len)
        found = loop.run_until_complete(admission.admit(ask, _CALLER))
        return codec.encode(found.generates[0])

    wire = parsed()
    parsing = best_ms(parsed)
    asking = best_ms(lambda: ask_of_completion(wire, "request", _BOUNDS, _WELCOME.max_model_len))
    whole = best_ms(admitted)
    loop.close()
    print(f"{tokens:8d} {parsing:10.3f} {asking:10.3f} {whole:10.3f}")


def main() -> None:
    """Measure prompts of several lengths."""
    print(f"{'tokens':>8} {'parse':>10} {'to array':>10} {'whole':>10}   ms")
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(1) as pool:
        tokenizer = Tokenizer.load(write_tiny_model(Path(directory)))
        admission = Admission(
            tokenizer, None, Namespaces(b"s" * 32), lambda: _WELCOME, pool, _BOUNDS
        )
        for tokens in (2_000, 8_000, 32_000, 131_072):
            measure(admission, tokens)


if __name__ == "__main__":
    typer.run(main)
