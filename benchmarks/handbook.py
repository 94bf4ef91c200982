"""What a cached prefix saves on this machine: time to the first token, cold and warm.

Against a running server with the embedded model:

    make serve &
    RATOON_DEMO_KEY=... python -m benchmarks.handbook --tokens 2000

Every round uses a handbook that was never sent before. Its first question is cold; the questions
after it, which have only the handbook in common with it, are warm.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from dataclasses import dataclass
from typing import Any

import httpx
import typer

from handbook.text import make_handbook, make_questions


@dataclass(frozen=True)
class Answer:
    """One streamed answer."""

    seconds: float  # from sending the request to the first content
    prompt_tokens: int
    cached_tokens: int
    text: str


def ask(client: httpx.Client, handbook: str, question: str) -> Answer:
    """Stream one chat and time its first content."""
    body = {
        "model": "handbook",
        "temperature": 0,
        "max_tokens": 24,
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [
            {"role": "system", "content": handbook},
            {"role": "user", "content": question},
        ],
    }
    first: float | None = None
    text, usage = "", dict[str, Any]()
    start = time.perf_counter()
    with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            content = chunk["choices"][0]["delta"].get("content") if chunk["choices"] else None
            if content and first is None:
                first = time.perf_counter()
            text += content or ""
            usage = chunk.get("usage") or usage
    return Answer(
        seconds=(first or time.perf_counter()) - start,
        prompt_tokens=usage["prompt_tokens"],
        cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
        text=text,
    )


def main(
    url: str = "http://127.0.0.1:8000",
    key: str = os.environ.get("RATOON_DEMO_KEY", ""),
    tokens: int = 2000,
    rounds: int = 8,
    warm: int = 4,
) -> None:
    """Print one JSON object with the medians."""
    cold_s: list[float] = []
    warm_s: list[float] = []
    asked = right = 0
    sizes: list[int] = []
    seed = time.time_ns()
    with httpx.Client(
        base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=120
    ) as client:
        for number in range(rounds):
            handbook = make_handbook(seed + number, facts=tokens // 20)
            questions = make_questions(handbook, seed + number, 1 + warm)
            for index, question in enumerate(questions):
                answer = ask(client, handbook.text, question.text)
                (warm_s if index else cold_s).append(answer.seconds)
                sizes.append(answer.prompt_tokens)
                asked += 1
                right += answer.text == question.answer
    cold_ms, warm_ms = (1e3 * statistics.median(times) for times in (cold_s, warm_s))
    report = {
        "prompt_tokens": round(statistics.mean(sizes)),
        "cold_ttft_ms": round(cold_ms, 1),
        "warm_ttft_ms": round(warm_ms, 1),
        "warm_over_cold": round(warm_ms / cold_ms, 4),
        "right": right,
        "asked": asked,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    typer.run(main)
