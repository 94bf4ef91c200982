"""The official client gets the expected answers from every route."""

from __future__ import annotations

import asyncio
import re

import openai
import pytest
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam

from engine.errors import EngineDied, PromptTooLong, QueueFull
from engine.link.messages import pack_logit_bias
from tests.doubles.engine.fake_engine import (
    FakeEngine,
    failing_at,
    hanging_at,
    prompt_of,
    saying,
)
from tests.doubles.engine.tiny_model import BOS, TURN
from tests.doubles.gateway.served import MODEL, Served

HI: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hi"}]
LONG: list[ChatCompletionMessageParam] = [{"role": "system", "content": "x" * 500}, *HI]


def test_chat(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = saying("Hello, wörld 😀")
    answer = client.chat.completions.create(model=MODEL, messages=HI)
    choice = answer.choices[0]
    assert choice.message.content == "Hello, wörld 😀"
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "stop"
    assert answer.object == "chat.completion"
    assert answer.model == MODEL
    assert answer.id.startswith("chatcmpl-")


def test_a_chat_is_tokenised_by_its_template_alone(
    client: openai.OpenAI, engine: FakeEngine
) -> None:
    client.chat.completions.create(model=MODEL, messages=HI, max_tokens=1)
    assert prompt_of(engine.requests[0]) == [
        BOS,
        TURN,
        *b"user:Hi",
        TURN,
        *b"assistant:",
    ]


def test_message_parts_and_the_developer_role(client: openai.OpenAI, engine: FakeEngine) -> None:
    parts: list[ChatCompletionMessageParam] = [
        {"role": "developer", "content": "Be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    client.chat.completions.create(model=MODEL, messages=parts, max_tokens=1)
    sent = bytes(token for token in prompt_of(engine.requests[0]) if token < 256)
    assert sent == b"system:Be briefuser:a\nbassistant:"


def test_usage_says_what_came_from_the_cache(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = saying("ok")
    cold = client.chat.completions.create(model=MODEL, messages=LONG).usage
    warm = client.chat.completions.create(model=MODEL, messages=LONG).usage
    assert cold is not None
    assert warm is not None
    assert cold.prompt_tokens_details is not None
    assert warm.prompt_tokens_details is not None
    assert cold.prompt_tokens == warm.prompt_tokens == len(prompt_of(engine.requests[0]))
    assert cold.completion_tokens == 3  # "o", "k" and the end token
    assert warm.total_tokens == warm.prompt_tokens + warm.completion_tokens
    assert cold.prompt_tokens_details.cached_tokens == 0
    assert warm.prompt_tokens_details.cached_tokens == warm.prompt_tokens - 1


def cached_tokens(
    client: openai.OpenAI,
    salt: str | None = None,
    messages: list[ChatCompletionMessageParam] = LONG,
) -> int:
    extra = None if salt is None else {"cache_salt": salt}
    answer = client.chat.completions.create(
        model=MODEL, messages=messages, max_tokens=1, extra_body=extra
    )
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    return answer.usage.prompt_tokens_details.cached_tokens or 0


def test_tenants_share_nothing_and_a_salt_narrows(
    client: openai.OpenAI, served: Served, engine: FakeEngine
) -> None:
    assert cached_tokens(client) == 0
    assert cached_tokens(client) > 0
    other = client.with_options(api_key=served.other_key)
    assert cached_tokens(other) == 0
    assert cached_tokens(other) > 0
    assert cached_tokens(client, salt="a") == 0
    assert cached_tokens(client, salt="a") > 0
    assert cached_tokens(client, salt="b") == 0
    assert cached_tokens(other, salt="a") == 0
    flows = {request.flow for request in engine.requests}
    assert len(flows) == 2


def text_of(chunks: list[ChatCompletionChunk], index: int = 0) -> str:
    return "".join(
        choice.delta.content or ""
        for chunk in chunks
        for choice in chunk.choices
        if choice.index == index
    )


def test_a_chat_stream(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = saying("Grüße 😀!")
    chunks = list(
        client.chat.completions.create(
            model=MODEL,
            messages=HI,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert text_of(chunks) == "Grüße 😀!"
    assert "\ufffd" not in text_of(chunks)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(chunk.choices[0].delta.role is None for chunk in chunks[1:-1])
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 2) + [
        "stop"
    ]
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len("Grüße 😀!".encode()) + 1
    assert chunks[-1].usage.prompt_tokens_details is not None
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_stream_has_usage_in_its_last_chunk_unless_it_is_not_wanted(
    client: openai.OpenAI,
) -> None:
    *chunks, last = client.chat.completions.create(model=MODEL, messages=HI, stream=True)
    assert all(chunk.usage is None for chunk in chunks)
    assert last.usage is not None
    assert last.choices[0].finish_reason == "stop"
    unwanted = client.chat.completions.create(
        model=MODEL, messages=HI, stream=True, stream_options={"include_usage": False}
    )
    assert all(chunk.usage is None for chunk in unwanted)


def test_n_choices_are_kept_apart(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = lambda request: list(f"choice {request.sampling.seed}".encode())
    answer = client.chat.completions.create(model=MODEL, messages=LONG, n=3, seed=7)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    told = [choice.message.content for choice in answer.choices]
    assert told == ["choice 7", "choice 8", "choice 9"]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(prompt_of(engine.requests[0]))
    assert answer.usage.completion_tokens == 3 * 9
    assert answer.usage.prompt_tokens_details is not None
    # only one choice computed the prompt
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    chunks = list(
        client.chat.completions.create(model=MODEL, messages=HI, n=3, seed=7, stream=True)
    )
    assert [text_of(chunks, index) for index in range(3)] == told


def test_chat_logprobs(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = saying("é!")
    answer = client.chat.completions.create(model=MODEL, messages=HI, logprobs=True, top_logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    spelled = [byte for token in logprobs.content for byte in token.bytes or []]
    assert bytes(spelled).decode() == "é!"
    assert [token.logprob for token in logprobs.content] == [-0.5] * 3
    top = logprobs.content[2].top_logprobs
    assert [(other.token, other.bytes, other.logprob) for other in top] == [
        ("!", [33], -0.5),
        ('"', [34], -1.5),
    ]


def test_chat_logprobs_in_a_stream(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = saying("é!")
    chunks = client.chat.completions.create(model=MODEL, messages=HI, logprobs=True, stream=True)
    spelled = []
    for chunk in chunks:
        logprobs = chunk.choices[0].logprobs
        for token in (logprobs.content if logprobs else None) or []:
            assert token.top_logprobs == []
            spelled += token.bytes or []
    assert bytes(spelled).decode() == "é!"


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_cancel_and_count(
    client: openai.OpenAI, engine: FakeEngine, stream: bool
) -> None:
    engine.script = saying("one two STOP three")
    answer = client.chat.completions.create(
        model=MODEL,
        messages=HI,
        stop=["STOP", "never"],
        stream=stream,
        stream_options={"include_usage": True} if stream else None,
    )
    if isinstance(answer, openai.Stream):
        chunks = list(answer)
        text, reason, usage = text_of(chunks), chunks[-2].choices[0].finish_reason, chunks[-1].usage
    else:
        choice = answer.choices[0]
        text, reason, usage = choice.message.content or "", choice.finish_reason, answer.usage
    assert (text, reason) == ("one two ", "stop")
    assert usage is not None
    assert usage.completion_tokens == len("one two STOP")
    assert engine.wait_until(lambda engine: engine.cancelled == 1)


def test_length_is_a_reason_of_its_own(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = saying("abcdef")
    answer = client.chat.completions.create(model=MODEL, messages=HI, max_completion_tokens=3)
    assert answer.choices[0].message.content == "abc"
    assert answer.choices[0].finish_reason == "length"


def test_sampling_reaches_the_engine(client: openai.OpenAI, engine: FakeEngine) -> None:
    client.chat.completions.create(
        model=MODEL,
        messages=HI,
        temperature=0.25,
        top_p=0.5,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        logit_bias={"65": 5},
        seed=3,
        max_tokens=2,
        user="somebody",
        metadata={"a": "b"},
        store=False,
        extra_body={
            "top_k": 5,
            "min_p": 0.1,
            "repetition_penalty": 1.5,
            "min_tokens": 1,
            "ignore_eos": True,
            "stop_token_ids": [7],
            "prompt_cache_key": "k",
            "some_unknown_field": {"x": [1]},
        },
    )
    sampling = engine.requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.25, 0.5, 5)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, -0.5)
    assert (sampling.min_p, sampling.repetition_penalty, sampling.min_tokens) == (0.1, 1.5, 1)
    assert (sampling.logit_bias, sampling.seed, sampling.max_tokens) == (
        pack_logit_bias({65: 5.0}),
        3,
        2,
    )
    assert (sampling.ignore_eos, sampling.stop_token_ids) == (True, frozenset({7}))


def test_a_chat_without_max_tokens_gets_what_is_left(
    client: openai.OpenAI, engine: FakeEngine
) -> None:
    engine.script = saying("x")
    client.chat.completions.create(model=MODEL, messages=HI)
    request = engine.requests[0]
    assert request.sampling.max_tokens == 4096 - len(prompt_of(request))


def test_completion_of_text_and_of_token_ids(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = saying("ok")
    text = client.completions.create(model=MODEL, prompt="abc")
    ids = client.completions.create(model=MODEL, prompt=[97, 98, 99])
    assert text.choices[0].text == ids.choices[0].text == "ok"
    assert text.object == "text_completion"
    assert prompt_of(engine.requests[0]) == [BOS, 97, 98, 99]
    assert prompt_of(engine.requests[1]) == [97, 98, 99]
    assert engine.requests[0].sampling.max_tokens == 16


def test_batches_of_prompts(client: openai.OpenAI, engine: FakeEngine) -> None:
    texts = client.completions.create(model=MODEL, prompt=["ab", "cd"], n=2, echo=True)
    assert [choice.index for choice in texts.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in texts.choices] == ["abab", "abab", "cdcd", "cdcd"]
    ids = client.completions.create(model=MODEL, prompt=[[97], [98]], echo=True)
    assert [choice.text for choice in ids.choices] == ["aa", "bb"]
    assert ids.usage is not None
    assert ids.usage.prompt_tokens == 2


def test_a_completion_stream(client: openai.OpenAI, engine: FakeEngine) -> None:
    chunks = list(
        client.completions.create(
            model=MODEL,
            prompt=["ab", "cd"],
            echo=True,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    told = {0: "", 1: ""}
    for chunk in chunks[:-1]:
        told[chunk.choices[0].index] += chunk.choices[0].text
    assert told == {0: "abab", 1: "cdcd"}
    assert chunks[-1].usage is not None
    # for each choice: BOS, two bytes, and the end token
    assert chunks[-1].usage.completion_tokens == 2 * 4


def test_completion_logprobs(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = saying("aé")
    answer = client.completions.create(model=MODEL, prompt="x", logprobs=1)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["a", "bytes:\\xc3", "bytes:\\xa9"]
    assert logprobs.token_logprobs == [-0.5] * 3
    assert logprobs.top_logprobs is not None
    assert logprobs.top_logprobs[0] == {"a": -0.5}
    assert logprobs.text_offset == [0, 1, 1]  # the é has two bytes, and is shown with the second


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("tokens", "stop", "offsets"),
    [
        # a special token is not shown, so its text is empty
        ([*b"a", TURN, *b"bc"], None, [0, 1, 1, 2]),
        ([*b"a", *"é".encode(), *b"b"], None, [0, 1, 1, 2]),
        # an X is held back, since it may begin the stop string
        ([*b"abcXdX", *b"Y"], "XY", [0, 1, 2, 3, 4, 5, 6]),
    ],
)
def test_text_offsets_are_places_in_the_text(
    client: openai.OpenAI,
    engine: FakeEngine,
    tokens: list[int],
    stop: str | None,
    offsets: list[int],
    stream: bool,
) -> None:
    engine.script = lambda _: tokens
    answer = client.completions.create(
        model=MODEL, prompt="x", logprobs=0, stop=stop, stream=stream
    )
    told = answer if isinstance(answer, openai.Stream) else [answer]
    logprobs = [choice.logprobs for piece in told for choice in piece.choices if choice.logprobs]
    assert [place for piece in logprobs for place in piece.text_offset or ()] == offsets


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "ratoon"
    with pytest.raises(openai.NotFoundError) as missing:
        client.models.retrieve("some/other")
    assert missing.value.code == "model_not_found"


def test_a_wrong_key(client: openai.OpenAI) -> None:
    with pytest.raises(openai.AuthenticationError) as refused:
        client.with_options(api_key="sk-" + "x" * 43).models.list()
    assert refused.value.code == "invalid_api_key"


def test_bad_requests_are_typed(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=HI, temperature=3)
    assert refused.value.param == "temperature"
    assert refused.value.type == "invalid_request_error"
    assert refused.value.request_id


@pytest.mark.parametrize("stream", [False, True])
def test_errors_of_the_engine_before_the_first_byte(
    client: openai.OpenAI, engine: FakeEngine, stream: bool
) -> None:
    engine.pace = failing_at(0, QueueFull("full", retry_after_s=3))
    with pytest.raises(openai.RateLimitError) as full:
        client.chat.completions.create(model=MODEL, messages=HI, stream=stream)
    assert full.value.response.headers["retry-after"] == "3"
    engine.pace = failing_at(0, PromptTooLong("too long"))
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(model=MODEL, messages=HI, stream=stream)
    assert long.value.code == "context_length_exceeded"
    engine.pace = failing_at(0, EngineDied("died"))
    with pytest.raises(openai.InternalServerError) as died:
        client.chat.completions.create(model=MODEL, messages=HI, stream=stream)
    assert died.value.status_code == 503
    assert died.value.code == "engine_died"


def test_a_prompt_that_is_too_long_is_told_in_openais_words(client: openai.OpenAI) -> None:
    """Refuse a too long prompt in OpenAI's words: LiteLLM and agents then compact the chat, or
    choose another model.
    """
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "x" * 5000}]
        )
    assert long.value.code == "context_length_exceeded"
    assert re.search(r"this model's maximum context length is \d+ tokens", str(long.value))


def test_an_error_behind_the_first_byte(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.pace = failing_at(3, EngineDied("died"))
    chunks = iter(client.chat.completions.create(model=MODEL, messages=HI, stream=True))
    assert next(chunks).choices
    with pytest.raises(openai.APIError) as broken:
        list(chunks)
    assert broken.value.code == "engine_died"


def test_the_first_error_ends_all_choices_once(client: openai.OpenAI, engine: FakeEngine) -> None:
    async def only_the_second_fails(request: object, at: int) -> None:
        await asyncio.sleep(0)
        if request is engine.requests[1]:
            raise EngineDied("died")
        await asyncio.Event().wait()

    engine.pace = only_the_second_fails
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model=MODEL, messages=HI, n=3)
    assert engine.wait_until(lambda engine: engine.running == 0)
    assert (engine.failed, engine.cancelled) == (1, 2)


def test_no_engine_is_503_with_retry_after(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.welcome = None
    with pytest.raises(openai.InternalServerError) as away:
        client.chat.completions.create(model=MODEL, messages=HI)
    assert away.value.status_code == 503
    assert int(away.value.response.headers["retry-after"]) >= 1
    assert client.models.list().data[0].id == MODEL


def test_open_streams_of_a_tenant_are_bounded(
    client: openai.OpenAI, served: Served, engine: FakeEngine
) -> None:
    engine.pace = hanging_at(1)
    open_streams = [
        client.chat.completions.create(model=MODEL, messages=HI, n=16, stream=True)
        for _ in range(4)
    ]
    with pytest.raises(openai.RateLimitError) as full:
        client.chat.completions.create(model=MODEL, messages=HI)
    assert full.value.response.headers["retry-after"]
    other = client.with_options(api_key=served.other_key)
    engine.pace = hanging_at(10_000)
    assert other.chat.completions.create(model=MODEL, messages=HI, max_tokens=1).choices
    for stream in open_streams:
        stream.close()
    assert served.wait_idle()
    assert client.chat.completions.create(model=MODEL, messages=HI, max_tokens=1).choices


async def test_the_async_client(served: Served, engine: FakeEngine) -> None:
    engine.script = saying("async")
    async with openai.AsyncOpenAI(
        base_url=f"{served.url}/v1", api_key=served.key, max_retries=0
    ) as client:
        answers = await asyncio.gather(
            *(client.chat.completions.create(model=MODEL, messages=HI) for _ in range(8))
        )
        assert {answer.choices[0].message.content for answer in answers} == {"async"}
        told = ""
        stream = await client.chat.completions.create(model=MODEL, messages=HI, stream=True)
        async for chunk in stream:
            told += chunk.choices[0].delta.content or ""
        assert told == "async"
