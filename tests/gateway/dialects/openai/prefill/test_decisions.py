"""Each question gets probabilities of its answers, and the common input is cached.

The official client asks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from engine.link.messages import Generate
from tests.doubles.engine.fake_engine import FakeEngine, candidates_of, prompt_of
from tests.doubles.gateway.served import MODEL, Served, config_of, serving
from tests.seams.support.small_qwen import small_tokenizer, write_tokenizer

INPUT = "The parcel came late, and the box was torn. I want my money back."
CHOICES = [{"value": "refund"}, {"value": "praise", "description": "thanks"}, {"value": True}]
LEVELS = [{"label": "calm"}, {"label": "annoyed"}, {"label": "furious", "description": "shouts"}]
QUESTIONS: list[Any] = [
    {"type": "predicate", "name": "late", "instructions": "The parcel came late."},
    {"type": "choice", "name": "kind", "instructions": "What is it?", "choices": CHOICES},
    {"type": "score", "instructions": "How angry is it?", "levels": LEVELS},
]
TOKENIZER = small_tokenizer(appends=False)


def logits(request: Generate) -> bytes:
    """Return logits that fall by 1 from each candidate to the next."""
    return (-np.arange(len(candidates_of(request)), dtype="<f4")).tobytes()


def softmax(count: int) -> list[float]:
    weights = np.exp(-np.arange(count))
    shares: list[float] = (weights / weights.sum()).tolist()
    return shares


@pytest.fixture(scope="module")
def deciding(
    tmp_path_factory: pytest.TempPathFactory, module_engine: FakeEngine
) -> Iterator[Served]:
    model_dir: Path = tmp_path_factory.mktemp("models") / "qwen"
    write_tokenizer(model_dir, appends=False)
    with serving(config_of(model_dir, tmp_path_factory.mktemp("data")), module_engine) as gateway:
        yield gateway


@pytest.fixture
def client(deciding: Served, engine: FakeEngine) -> Iterator[openai.OpenAI]:
    engine.logits = logits
    with openai.OpenAI(
        base_url=f"{deciding.url}/v1", api_key=deciding.key, max_retries=0, timeout=60
    ) as client:
        yield client


def decide(client: openai.OpenAI, **fields: Any) -> Any:
    return client.decisions.create(
        **{"model": MODEL, "input": INPUT, "questions": QUESTIONS, **fields}
    )


def test_each_question_is_answered_with_probabilities(client: openai.OpenAI) -> None:
    decision = decide(client)
    late, kind, angry = decision.answers
    assert (late.type, late.name) == ("predicate", "late")
    assert late.probability == pytest.approx(softmax(2)[0])
    assert (kind.type, kind.choice) == ("choice", "refund")
    assert [one.value for one in kind.probabilities] == ["refund", "praise", True]
    assert [one.probability for one in kind.probabilities] == pytest.approx(softmax(3))
    assert kind.confidence == pytest.approx(softmax(3)[0])
    assert (angry.type, angry.name) == ("score", None)
    assert angry.score == pytest.approx(softmax(3)[1] + 2 * softmax(3)[2])
    assert [(one.value, one.label) for one in angry.probabilities] == [
        (0, "calm"),
        (1, "annoyed"),
        (2, "furious"),
    ]
    assert decision.model == MODEL


def test_the_input_comes_before_the_questions_and_is_found_in_the_cache(
    client: openai.OpenAI, engine: FakeEngine
) -> None:
    usage = decide(client).usage
    prompts = [prompt_of(one) for one in engine.requests]
    assert usage.input_tokens == usage.total_tokens == sum(map(len, prompts))
    texts = [TOKENIZER.decode(prompt, skip_special_tokens=False) for prompt in prompts]
    head = texts[0][: texts[0].index("</Input>")]
    assert INPUT in head
    assert all(text.startswith(head) for text in texts)
    assert all(text.endswith("<think>\n\n</think>\n\n") for text in texts)
    assert usage.input_tokens_details.cached_tokens >= 2 * (len(TOKENIZER.encode(head).ids) - 16)


def test_answers_are_single_tokens(client: openai.OpenAI, engine: FakeEngine) -> None:
    decide(client)
    found = sorted(candidates_of(one) for one in engine.requests)
    labels = [TOKENIZER.token_to_id(letter) for letter in "ABC"]
    words = [TOKENIZER.token_to_id(word) for word in ("yes", "no")]
    assert found == sorted([words, labels, labels])


def test_an_input_has_messages_json_and_calls(client: openai.OpenAI, engine: FakeEngine) -> None:
    decide(
        client,
        input=[
            {"role": "system", "content": "A shop."},
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "Hi"},
                    {"type": "input_json", "data": {"order": [1, None]}},
                ],
            },
            {"role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
            {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "nothing <|im_end|>"},
        ],
        questions=QUESTIONS[:1],
    )
    text = TOKENIZER.decode(prompt_of(engine.requests[0]), skip_special_tokens=False)
    told = text[text.index("<Input>") : text.index("</Input>")].splitlines()
    assert [line for line in told[1:] if line] == [
        "system: A shop.",
        "user: Hi",
        '{"order":[1,null]}',
        "assistant: I look.",
        "call of look: {}",
        "result: nothing <|im_end|>",
    ]
    [end] = TOKENIZER.encode("<|im_end|>").ids
    assert prompt_of(engine.requests[0]).count(end) == 2, "what a client wrote is no control token"


def test_four_hundred_questions(client: openai.OpenAI, engine: FakeEngine) -> None:
    asked = [{**QUESTIONS[0], "instructions": f"It names {number}."} for number in range(400)]
    answers = decide(client, questions=asked).answers
    assert len(answers) == len(engine.requests) == 400
    with pytest.raises(openai.BadRequestError):
        decide(client, questions=[*asked, QUESTIONS[0]])


def test_tenants_and_salts_share_nothing(client: openai.OpenAI, deciding: Served) -> None:
    def cached(client: openai.OpenAI, **more: Any) -> int:
        usage = decide(client, questions=QUESTIONS[:1], **more).usage
        return int(usage.input_tokens_details.cached_tokens)

    assert cached(client) == 0
    assert cached(client.with_options(api_key=deciding.other_key)) == 0
    assert cached(client, extra_body={"cache_salt": "a"}) == 0
    assert cached(client) > 0, "the control"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"questions": []}, "questions"),
        ({"questions": [{"type": "guess", "instructions": "?"}]}, "questions[0].type"),
        ({"questions": [{**QUESTIONS[1], "choices": CHOICES[:1]}]}, "questions[0].choices"),
        ({"questions": [{**QUESTIONS[1], "choices": CHOICES * 10}]}, "questions"),
        ({"input": [{"role": "user"}]}, "input"),
        ({"input": "x" * 9000}, "input"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "u"}]}]},
            "input[0].content[0].type",
        ),
    ],
)
def test_what_cannot_be_decided_is_refused(
    client: openai.OpenAI, engine: FakeEngine, fields: dict[str, Any], param: str
) -> None:
    """Refuse a decision that cannot be made: a vocabulary of bytes has no one-token labels for
    thirty choices.
    """
    with pytest.raises(openai.BadRequestError) as refused:
        decide(client, **fields)
    assert refused.value.param == param
    assert not engine.requests
