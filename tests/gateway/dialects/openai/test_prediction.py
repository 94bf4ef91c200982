"""The tokens of OpenAI's `prediction` are sent to the engine, and rejected drafts are charged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai.types import CompletionUsage

from gateway.prompts.pipeline.prepared import PREDICTED
from gateway.prompts.tokens.tokenizer import Tokenizer
from tests.doubles.engine.fake_engine import FakeEngine, prediction_of, prompt_of, saying
from tests.doubles.gateway.served import MODEL, Served

HI: list[Any] = [{"role": "user", "content": "Hi"}]
TEXT = "def area(r):\n    return 3 * r * r\n"


def predicting(content: Any, kind: str = "content") -> Any:
    return {"type": kind, "content": content}


@pytest.fixture
def http(served: Served, engine: FakeEngine) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {served.key}"}
    with httpx.Client(base_url=f"{served.url}/v1", headers=headers, timeout=60) as client:
        yield client


@pytest.mark.parametrize(
    "content",
    [
        TEXT,
        [{"type": "text", "text": TEXT}],
        [{"type": "text", "text": TEXT[:9]}, {"type": "text", "text": TEXT[9:]}],
    ],
)
def test_the_engine_is_sent_its_tokens(
    client: openai.OpenAI, engine: FakeEngine, content: Any
) -> None:
    ask = client.chat.completions.create
    ask(model=MODEL, messages=HI, max_tokens=9, prediction=predicting(content))
    ask(model=MODEL, messages=HI, max_tokens=9)
    predicted, plain = engine.requests
    assert prediction_of(predicted) == list(TEXT.encode())
    assert plain.prediction == b""
    assert prompt_of(predicted) == prompt_of(plain)
    assert predicted.sampling == plain.sampling


def test_it_is_sent_as_far_as_an_answer_may_follow_it(
    client: openai.OpenAI, engine: FakeEngine
) -> None:
    """Cut a prediction to the longest possible answer, since the engine indexes the prediction for
    each choice.
    """
    for most in (2, 9):
        client.chat.completions.create(
            model=MODEL, messages=HI, max_tokens=most, n=2, prediction=predicting(TEXT)
        )
    whole = list(TEXT.encode())
    sent = [prediction_of(one) for one in engine.requests]
    assert sent == [whole[: PREDICTED * 2]] * 2 + [whole] * 2


def test_what_looks_like_a_control_token_is_text(client: openai.OpenAI, engine: FakeEngine) -> None:
    client.chat.completions.create(
        model=MODEL, messages=HI, max_tokens=3, prediction=predicting("<|turn|>")
    )
    assert prediction_of(engine.requests[0]) == list(b"<|turn|>")


@pytest.mark.parametrize(
    "more", [{"drafts": False}, {"max_tokens": 0}], ids=["without drafts", "without an answer"]
)
def test_where_nothing_is_drafted_it_is_not_sent(
    http: httpx.Client, engine: FakeEngine, more: dict[str, Any]
) -> None:
    body = {"model": MODEL, "messages": HI, "max_tokens": 3, "prediction": predicting(TEXT)}
    assert http.post("/chat/completions", json=body | more).status_code == 200
    assert http.post("/chat/completions", json=body).status_code == 200
    assert [bool(one.prediction) for one in engine.requests] == [False, True]


@pytest.mark.parametrize(
    ("prediction", "param"),
    [
        ("text", "prediction"),
        ({"type": "content"}, "prediction.content"),
        ({"content": TEXT}, "prediction.type"),
        (predicting(TEXT, "suffix"), "prediction.type"),
        (predicting(None), "prediction.content"),
        (predicting(7), "prediction.content"),
        (predicting([]), "prediction.content"),
        (predicting([TEXT]), "prediction.content[0]"),
        (predicting([{"type": "text"}]), "prediction.content[0].text"),
        (predicting([{"type": "image_url", "text": ""}]), "prediction.content[0].type"),
    ],
)
def test_a_wrong_form_is_refused_by_name(
    http: httpx.Client, engine: FakeEngine, prediction: Any, param: str
) -> None:
    body = {"model": MODEL, "messages": HI, "prediction": prediction}
    refused = http.post("/chat/completions", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    assert engine.requests == []


def test_one_that_is_longer_than_the_context_is_refused(
    client: openai.OpenAI, engine: FakeEngine
) -> None:
    ask = client.chat.completions.create
    longest = predicting("x" * 4096)
    ask(model=MODEL, messages=HI, max_tokens=3, prediction=longest)
    for text in ("x" * 4097, "x" * 500_000):
        with pytest.raises(openai.BadRequestError) as refused:
            ask(model=MODEL, messages=HI, max_tokens=3, prediction=predicting(text))
        assert (refused.value.code, refused.value.param) == (
            "context_length_exceeded",
            "prediction",
        )
    assert len(engine.requests) == 1


@pytest.mark.parametrize("nothing", [None, predicting("")])
def test_an_empty_one_is_none(http: httpx.Client, engine: FakeEngine, nothing: Any) -> None:
    body = {"model": MODEL, "messages": HI, "prediction": nothing}
    assert http.post("/chat/completions", json=body).status_code == 200
    assert engine.requests[0].prediction == b""


def ask_usage(client: openai.OpenAI, *, stream: bool, **more: Any) -> CompletionUsage:
    """Return the usage of an answer; a stream reports it in its last chunk."""
    asked: Any = {"model": MODEL, "messages": HI, "max_tokens": 4, **more}
    usage: CompletionUsage | None
    if not stream:
        usage = client.chat.completions.create(**asked).usage
    else:
        options: Any = {"include_usage": True}
        chunks = client.chat.completions.create(**asked, stream=True, stream_options=options)
        usage = list(chunks)[-1].usage
    assert usage is not None
    return usage


@pytest.mark.parametrize("stream", [False, True])
def test_rejected_tokens_are_completion_tokens(
    client: openai.OpenAI, engine: FakeEngine, stream: bool
) -> None:
    engine.script = saying("fine, and more")
    engine.drafts = {"prediction": (9, 2), "tree": (6, 5)}
    for choices in (1, 3):
        usage = ask_usage(client, stream=stream, prediction=predicting(TEXT), n=choices)
        details = usage.completion_tokens_details
        assert details is not None
        assert details.accepted_prediction_tokens == 2 * choices
        assert details.rejected_prediction_tokens == 7 * choices
        assert usage.completion_tokens == (4 + 7) * choices
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
        shown = details.model_dump()["ratoon"]["drafts"]
        assert shown == {
            "prediction": {"drafted_tokens": 9 * choices, "accepted_tokens": 2 * choices},
            "tree": {"drafted_tokens": 6 * choices, "accepted_tokens": 5 * choices},
        }


@pytest.mark.parametrize("stream", [False, True])
def test_drafts_that_nobody_predicted_cost_nothing(
    client: openai.OpenAI, engine: FakeEngine, stream: bool
) -> None:
    plain = ask_usage(client, stream=stream)
    engine.drafts = {"tree": (6, 5)}
    drafted = ask_usage(client, stream=stream)
    assert (plain.completion_tokens, drafted.completion_tokens) == (4, 4)
    for usage in (plain, drafted):
        details = usage.completion_tokens_details
        assert details is not None
        assert details.accepted_prediction_tokens == details.rejected_prediction_tokens == 0
    assert "ratoon" not in plain.model_dump()["completion_tokens_details"]


def test_no_more_is_rejected_than_was_predicted(client: openai.OpenAI, engine: FakeEngine) -> None:
    """Charge a prediction's tokens once, even if they were tried at several positions of the
    answer.
    """
    engine.drafts = {"prediction": (500, 10)}
    usage = ask_usage(client, stream=False, prediction=predicting("x" * 16))
    assert usage.completion_tokens == 4 + 6


def test_the_tenant_is_charged_what_the_answer_says(
    client: openai.OpenAI, engine: FakeEngine, served: Served
) -> None:
    headers = {"authorization": f"Bearer {served.admin_key}"}

    def charged() -> int:
        assert served.wait_idle()
        metrics = httpx.get(f"{served.url}/metrics", headers=headers, timeout=60).text
        [line] = [
            line
            for line in metrics.splitlines()
            if line.startswith("ratoon_generated_tokens_total ")
        ]
        return int(float(line.split()[1]))

    before = charged()
    engine.drafts = {"prediction": (9, 2)}
    usage = ask_usage(client, stream=True, prediction=predicting(TEXT))
    assert charged() - before == usage.completion_tokens == 11


def test_a_prediction_is_tokenised_as_an_answer(tiny_model: Any) -> None:
    """Tokenise a prediction as the model would generate it.

    In the tests above each token is a byte, so predictions equal a text's own tokens.
    """
    encoded = Tokenizer.load(tiny_model).encode(TEXT, add_special_tokens=False)
    assert encoded.tolist() == list(TEXT.encode())
