"""The official `openai` client with the running server: every answer has the expected types."""

from __future__ import annotations

import math
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.seams.support.server import Server

PROMPT = "The support code for Berlin is 4821."
QUESTION: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": PROMPT},
    {"role": "user", "content": "What is the support code for Berlin?"},
]


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return server.openai()


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["handbook"]
    assert client.models.retrieve("handbook").object == "model"


def test_a_streamed_chat_says_what_the_whole_one_says(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(
        model="handbook", messages=QUESTION, temperature=0, max_tokens=20
    )
    chunks = list(
        client.chat.completions.create(
            model="handbook",
            messages=QUESTION,
            temperature=0,
            max_tokens=20,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    told = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(choice.delta.content or "" for choice in told) == (
        whole.choices[0].message.content
    )
    assert told[-1].finish_reason == whole.choices[0].finish_reason == "stop"
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens_details is not None


def test_chat_logprobs_are_those_of_the_answer(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="handbook",
        messages=QUESTION,
        temperature=0,
        max_tokens=8,
        logprobs=True,
        top_logprobs=3,
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content
    for token in logprobs.content:
        assert len(token.top_logprobs) == 3
        # greedy: the likeliest token
        assert token.logprob == pytest.approx(token.top_logprobs[0].logprob)
        assert sum(math.exp(top.logprob) for top in token.top_logprobs) <= 1 + 1e-5
    content = answer.choices[0].message.content
    assert content
    assert "".join(token.token for token in logprobs.content) == content


def test_n_choices_share_one_prompt(client: openai.OpenAI, server: Server) -> None:
    answer = server.openai(server.new_tenant()).chat.completions.create(
        model="handbook", messages=QUESTION, temperature=0, n=3, max_tokens=12
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    # greedy, so all are equal
    assert len({choice.message.content for choice in answer.choices}) == 1
    assert answer.usage is not None
    alone = client.chat.completions.create(
        model="handbook", messages=QUESTION, temperature=0, max_tokens=12
    )
    assert alone.usage is not None
    assert answer.usage.prompt_tokens == alone.usage.prompt_tokens
    assert answer.usage.completion_tokens == 3 * alone.usage.completion_tokens


def test_a_seed_makes_a_sample_repeatable(client: openai.OpenAI) -> None:
    def sample(seed: int) -> str:
        answer = client.completions.create(
            model="handbook", prompt=PROMPT, temperature=1.5, seed=seed, max_tokens=24
        )
        return answer.choices[0].text

    assert sample(1) == sample(1)
    assert len({sample(seed) for seed in range(4)}) > 1


def test_completions_of_several_prompts_come_in_their_order(client: openai.OpenAI) -> None:
    prompts = [f"The support code for Berlin is {n}" for n in ("1", "2", "3")]
    batch = client.completions.create(model="handbook", prompt=prompts, temperature=0, max_tokens=6)
    for prompt, choice in zip(prompts, batch.choices, strict=True):
        alone = client.completions.create(
            model="handbook", prompt=prompt, temperature=0, max_tokens=6
        )
        assert choice.text == alone.choices[0].text


def test_a_stop_string_ends_the_answer(client: openai.OpenAI) -> None:
    free = client.chat.completions.create(
        model="handbook", messages=QUESTION, temperature=0, max_tokens=20
    )
    text = free.choices[0].message.content or ""
    assert "82" in text
    stopped = client.chat.completions.create(
        model="handbook", messages=QUESTION, temperature=0, max_tokens=20, stop="82"
    )
    assert stopped.choices[0].message.content == text[: text.index("82")]
    assert stopped.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"model": "gpt-0"}, openai.NotFoundError),
        ({"messages": []}, openai.BadRequestError),
        ({"messages": [{"role": "wizard", "content": "x"}]}, openai.BadRequestError),
        ({"temperature": 3}, openai.BadRequestError),
        ({"n": 1000}, openai.BadRequestError),
        ({"max_tokens": 10**6}, openai.BadRequestError),
    ],
)
def test_errors_arrive_as_the_clients_types(
    client: openai.OpenAI, fields: dict[str, object], error: type[openai.APIStatusError]
) -> None:
    request = {"model": "handbook", "messages": QUESTION, "max_tokens": 4} | fields
    with pytest.raises(error) as raised:
        client.chat.completions.create(**request)  # type: ignore[call-overload]
    assert raised.value.request_id


def test_a_wrong_key_is_refused_and_a_disabled_tenant_too(server: Server) -> None:
    with pytest.raises(openai.AuthenticationError):
        server.openai("sk-" + "x" * 43).models.list()
    key = server.new_tenant()
    assert list(server.openai(key).models.list())
    with server.client(server.admin_key) as admin:
        tenant = admin.get("/admin/tenants").json()["tenants"][-1]["id"]
        admin.post(f"/admin/tenants/{tenant}/disable").raise_for_status()
    with pytest.raises(openai.PermissionDeniedError):
        server.openai(key).models.list()


@pytest.mark.parametrize("prediction", ["4821", "No, it is 1234. 1234. 1234.", PROMPT])
def test_a_prediction_changes_no_answer(client: openai.OpenAI, prediction: str) -> None:
    """Step times decide whether predicted tokens are verified. The usage shows the result."""
    asked: Any = {"model": "handbook", "messages": QUESTION, "seed": 5, "max_tokens": 20}
    asked |= {"extra_body": {"ignore_eos": True}}
    create: Any = client.chat.completions.create
    for temperature in (0.0, 1.5):
        plain, predicted = (
            create(**asked, temperature=temperature, **more)
            for more in ({}, {"prediction": {"type": "content", "content": prediction}})
        )
        assert predicted.choices[0].message == plain.choices[0].message
        for answer in (plain, predicted):
            assert answer.usage is not None
            details = answer.usage.completion_tokens_details
            assert details is not None
            assert answer.usage.completion_tokens == 20 + (details.rejected_prediction_tokens or 0)
            assert (details.accepted_prediction_tokens or 0) <= 20


def test_without_drafts_the_answer_is_the_same(client: openai.OpenAI) -> None:
    asked: Any = {"model": "handbook", "messages": QUESTION, "temperature": 1.5, "seed": 5}
    asked |= {"max_tokens": 40}
    usual = client.chat.completions.create(**asked, extra_body={"ignore_eos": True})
    without = client.chat.completions.create(
        **asked, extra_body={"ignore_eos": True, "drafts": False}
    )
    assert without.choices[0].message == usual.choices[0].message
    assert without.usage is not None
    assert without.usage.completion_tokens_details is not None
    assert "ratoon" not in without.usage.completion_tokens_details.model_dump()
