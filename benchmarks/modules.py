"""Prompt modules compared with plain prompts: computed tokens, right answers, log-likelihoods.

Against a running server:

    make serve &
    RATOON_DEMO_KEY=... python -m benchmarks.modules --modules 20 --tokens 400

Each request has all prompt modules, in a new order, and asks about one of them. A plain prompt has
the modules' texts in this order before the question. A request with modules names them. `--opening`
is a text before the modules in every prompt, to which they attend. A second request forces the
right answer, to measure its log-likelihood. So the benchmark can also measure models that answer
wrongly.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import httpx
import typer

from benchmarks.record import emit, progress
from handbook.texts.facts import UNKNOWN, Question
from handbook.texts.handbooks import make_handbook, make_questions

TOKENS_PER_FACT = 20


@dataclass
class Measured:
    """The measurements of plain prompts, or of requests with prompt modules."""

    computed: int = 0
    right: int = 0
    # log-likelihoods (natural) of the right answers
    likelihoods: list[float] = field(default_factory=list)


class Asked:
    """A client of a server that sends plain prompts or requests with prompt modules."""

    def __init__(self, client: httpx.Client, texts: list[str], opening: str) -> None:
        self._client = client
        self._texts = texts
        self._opening = opening
        self.model = client.get("/v1/models").raise_for_status().json()["data"][0]["id"]
        modules = [{"text": opening}] if opening else []
        modules += [
            {"name": str(number), "text": f"{text}\n\n"} for number, text in enumerate(texts)
        ]
        made = client.post("/v1/modules", json={"modules": modules}).raise_for_status()
        self._schema = made.json()["id"]

    def ask(self, order: list[int], question: Question, found: Measured, *, named: bool) -> None:
        """Ask a question twice: freely, and with the right answer forced."""
        asked = [{"role": "user", "content": question.text}]
        fields: dict[str, Any] = {}
        if named:
            use = [str(number) for number in order]
            fields["ratoon"] = {"modules": {"schema": self._schema, "use": use}}
        else:
            text = self._opening + "".join(f"{self._texts[number]}\n\n" for number in order)
            asked.insert(0, {"role": "system", "content": text})
        free = self._send(asked, fields | {"max_tokens": 24})
        usage = free["usage"]
        found.computed += usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
        found.right += free["choices"][0]["message"]["content"] == question.answer
        forced = {"structured_outputs": {"choice": [question.answer]}, "logprobs": True}
        answer = self._send(asked, fields | forced)["choices"][0]
        found.likelihoods.append(sum(one["logprob"] for one in answer["logprobs"]["content"]))

    def _send(self, messages: list[dict[str, str]], fields: dict[str, Any]) -> dict[str, Any]:
        body = {"model": self.model, "temperature": 0, "messages": messages, **fields}
        answer = self._client.post("/v1/chat/completions", json=body).raise_for_status()
        found: dict[str, Any] = answer.json()
        return found


def main(
    url: str = "http://127.0.0.1:8000",
    key: str = os.environ.get("RATOON_DEMO_KEY", ""),
    modules: int = 20,
    tokens: int = 400,
    requests: int = 10,
    seed: int = 0,
    opening: str = "",
) -> None:
    """Print a JSON line that compares both ways. With `seed` 0 each run has new texts."""
    seed = seed or time.time_ns()
    chance = random.Random(seed)
    handbooks = [
        make_handbook(seed + number, max(1, tokens // TOKENS_PER_FACT)) for number in range(modules)
    ]
    questions = [
        question
        for number, handbook in enumerate(handbooks)
        for question in make_questions(handbook, seed + number, 1 + 2 * requests // modules)
        if question.answer != UNKNOWN
    ]
    plain, named = Measured(), Measured()
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=url, headers=headers, timeout=600) as client:
        asked = Asked(client, [one.text for one in handbooks], opening)
        for number, question in enumerate(chance.sample(questions, requests)):
            order = chance.sample(range(modules), modules)
            asked.ask(order, question, plain, named=False)
            asked.ask(order, question, named, named=True)
            progress(f"{number + 1} of {requests}: {plain.right} and {named.right} right")
    emit(
        "modules",
        model=asked.model,
        modules=modules,
        plain_computed_tokens=plain.computed,
        computed_tokens=named.computed,
        computed_over_plain=named.computed / plain.computed,
        asked=requests,
        plain_right=plain.right,
        right=named.right,
        plain_answer_log_likelihood=statistics.mean(plain.likelihoods),
        answer_log_likelihood=statistics.mean(named.likelihoods),
    )


if __name__ == "__main__":
    typer.run(main)
