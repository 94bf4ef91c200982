"""The time that a cached prefix saves on this machine: time to first token, cold and warm.

Against a running server with the embedded model:

    make serve &
    RATOON_DEMO_KEY=... python -m benchmarks.handbook --tokens 2000

Every round uses a handbook that was never sent before. The first question about a handbook is cold
(not cached). Later questions find the handbook cached, and are warm.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from typing import NamedTuple

import httpx
import typer

from benchmarks.record import emit
from handbook.texts.handbooks import make_handbook, make_questions


class TimedAnswer(NamedTuple):
    """The times of a streamed answer."""

    seconds: float  # time from sending the request to the first content
    prompt_tokens: int
    text: str


def ask(client: httpx.Client, handbook: str, question: str) -> TimedAnswer:
    """Stream a chat and time its first content."""
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
    text, seconds, prompt_tokens = "", 0.0, 0
    start = time.perf_counter()
    with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            content = chunk["choices"][0]["delta"].get("content") if chunk["choices"] else None
            if content and not text:
                seconds = time.perf_counter() - start
            text += content or ""
            prompt_tokens = (chunk.get("usage") or {}).get("prompt_tokens", prompt_tokens)
    return TimedAnswer(seconds, prompt_tokens, text)


def main(
    url: str = "http://127.0.0.1:8000",
    key: str = os.environ.get("RATOON_DEMO_KEY", ""),
    tokens: int = 2000,
    rounds: int = 8,
    warm: int = 4,
) -> None:
    """Print a JSON line with the medians."""
    answers: list[list[TimedAnswer]] = []
    right, seed = 0, time.time_ns()
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=url, headers=headers, timeout=120) as client:
        for number in range(rounds):
            handbook = make_handbook(seed + number, facts=tokens // 20)
            questions = make_questions(handbook, seed + number, 1 + warm)
            answers.append([ask(client, handbook.text, one.text) for one in questions])
            asked = zip(answers[-1], questions, strict=True)
            right += sum(answer.text == question.answer for answer, question in asked)
    every = [answer for one in answers for answer in one]
    cold_s = statistics.median(one[0].seconds for one in answers)
    warm_s = statistics.median(answer.seconds for one in answers for answer in one[1:])
    emit(
        "handbook",
        prompt_tokens=round(statistics.mean(answer.prompt_tokens for answer in every)),
        cold_ttft_ms=1e3 * cold_s,
        warm_ttft_ms=1e3 * warm_s,
        warm_over_cold=warm_s / cold_s,
        right=right,
        asked=len(every),
    )


if __name__ == "__main__":
    typer.run(main)
