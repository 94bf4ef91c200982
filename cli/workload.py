"""The requests of a load run: prompts with a common beginning, drawn from a seed.

Knows: request bodies. Does not know: when they are sent (`load`).
"""

from __future__ import annotations

import random
from typing import Any

from cli.client_options import LoadFlags
from cli.errors import BadSetting

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
# The first ids of a vocabulary are often special; bytes and common pieces follow.
FIRST_ID = 10
WORDS = (
    "all",
    "and",
    "any",
    "but",
    "can",
    "day",
    "for",
    "how",
    "new",
    "not",
    "now",
    "old",
    "see",
    "two",
)

Body = dict[str, Any]


def draw_bodies(load: LoadFlags, model: str, seed: int) -> list[Body]:
    """One body per request; equal flags and seeds give equal bodies."""
    if load.shared_tokens > load.prompt_tokens:
        raise BadSetting(
            "--shared-tokens",
            f"{load.shared_tokens} is more than --prompt-tokens {load.prompt_tokens}",
        )
    rng = random.Random(seed)
    write = _chat if load.endpoint == "chat" else _completion
    shared, own = load.shared_tokens, load.prompt_tokens - load.shared_tokens
    common = stream_body(model, load.output_tokens)
    return [common | prompt for prompt in write(rng, load, shared, own)]


def stream_body(model: str, output_tokens: int) -> Body:
    """A streamed request for exactly `output_tokens` tokens, with usage; the prompt is missing."""
    return {
        "model": model,
        "max_tokens": output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _completion(rng: random.Random, load: LoadFlags, shared: int, own: int) -> list[Body]:
    def ids(count: int) -> list[int]:
        return [rng.randrange(FIRST_ID, load.vocab) for _ in range(count)]

    head = ids(shared)
    return [{"prompt": head + ids(own)} for _ in range(load.requests)]


def _chat(rng: random.Random, load: LoadFlags, shared: int, own: int) -> list[Body]:
    def words(count: int) -> str:
        return " ".join(rng.choice(WORDS) for _ in range(count))

    system = [{"role": "system", "content": words(shared)}] if shared else []
    return [
        {"messages": [*system, {"role": "user", "content": words(max(own, 1))}]}
        for _ in range(load.requests)
    ]
