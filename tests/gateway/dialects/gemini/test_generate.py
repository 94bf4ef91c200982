"""Unstreamed answers have the parts, finish reasons and usage that the official client expects."""

from __future__ import annotations

from typing import Any

import pytest
from google import genai
from google.genai import errors, types

from tests.doubles.engine.fake_engine import FakeEngine, parrot, saying
from tests.doubles.gateway.served import MODEL, Served
from tests.gateway.dialects.gemini.asking import ask, parts_of, reason_of, shown, usage_of


def test_an_answer(gemini: genai.Client, engine: FakeEngine) -> None:
    engine.script = saying("Hello, wörld 😀")
    answer = ask(gemini)
    assert answer.text == "Hello, wörld 😀"
    assert reason_of(answer) == "STOP"
    assert answer.model_version == MODEL
    assert answer.response_id
    assert shown(engine) == "|user:hi|assistant:"


def test_usage_says_what_came_from_the_cache(gemini: genai.Client, engine: FakeEngine) -> None:
    engine.script = saying("ok")
    cold, warm = (usage_of(ask(gemini, "x" * 500)) for _ in range(2))
    assert cold.prompt_token_count == warm.prompt_token_count
    assert cold.cached_content_token_count == 0
    assert warm.cached_content_token_count == (warm.prompt_token_count or 0) // 16 * 16
    assert cold.candidates_token_count == 3  # "o", "k" and the end token
    assert cold.total_token_count == (cold.prompt_token_count or 0) + 3


def test_the_system_and_the_turns(gemini: genai.Client, engine: FakeEngine) -> None:
    turns = [
        types.Content(role="user", parts=[types.Part(text="a"), types.Part(text="b")]),
        types.Content(role="model", parts=[types.Part(text="c")]),
        types.Content(role="model", parts=[types.Part(text="d")]),
        types.Content(role="user", parts=[types.Part(text="e")]),
    ]
    ask(gemini, turns, system_instruction="Be brief.")
    assert shown(engine) == "|system:Be brief.|user:a\nb|assistant:cd|user:e|assistant:"


def test_the_models_last_turn_is_continued(gemini: genai.Client, engine: FakeEngine) -> None:
    turns = [
        types.Content(role="user", parts=[types.Part(text="a")]),
        types.Content(role="model", parts=[types.Part(text="The")]),
    ]
    ask(gemini, turns)
    assert shown(engine) == "|user:a|assistant:The"


def test_sampling_reaches_the_engine(gemini: genai.Client, engine: FakeEngine) -> None:
    ask(gemini)
    default = engine.requests[-1].sampling
    assert (default.temperature, default.top_p, default.top_k) == (1.0, 1.0, 0)
    ask(
        gemini,
        temperature=0.5,
        top_p=0.25,
        top_k=7,
        seed=3,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
    )
    sampling = engine.requests[-1].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.25, 7)
    assert (sampling.seed, sampling.max_tokens) == (3, 400)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, -0.5)


def test_candidates(gemini: genai.Client, engine: FakeEngine) -> None:
    engine.script = saying("ok")
    answer = ask(gemini, candidate_count=2)
    assert [parts_of(answer, place)[0].text for place in range(2)] == ["ok", "ok"]
    assert [one.index for one in answer.candidates or ()] == [0, 1]


def test_stop_sequences(gemini: genai.Client, engine: FakeEngine) -> None:
    engine.script = saying("one two three")
    answer = ask(gemini, stop_sequences=["three", " two"])
    assert answer.text == "one"
    assert reason_of(answer) == "STOP"


def test_an_answer_that_is_cut_off(gemini: genai.Client, engine: FakeEngine) -> None:
    engine.script = parrot
    answer = ask(gemini, "long enough", max_output_tokens=4)
    assert reason_of(answer) == "MAX_TOKENS"


def test_an_empty_answer_has_a_part(gemini: genai.Client, engine: FakeEngine) -> None:
    engine.script = saying("")
    [part] = parts_of(ask(gemini))
    assert part.text == ""


def test_a_chat_of_the_client(gemini: genai.Client, engine: FakeEngine) -> None:
    chat = gemini.chats.create(model=MODEL)
    engine.script = saying("one")
    chat.send_message("a")
    engine.script = saying("two")
    assert "".join(chunk.text or "" for chunk in chat.send_message_stream("b")) == "two"
    assert [turn.role for turn in chat.get_history(curated=True)][:3] == ["user", "model", "user"]
    chat.send_message("c")
    assert shown(engine) == "|user:a|assistant:one|user:b|assistant:two|user:c|assistant:"


def test_models(gemini: genai.Client) -> None:
    [model] = gemini.models.list()
    assert model.name == f"models/{MODEL}"
    assert model.input_token_limit == 4096
    assert gemini.models.get(model=MODEL).name == model.name
    with pytest.raises(errors.ClientError, match="404"):  # OpenAI's API has the same path
        gemini.models.get(model="nobody")


def test_tokens_are_counted(gemini: genai.Client, engine: FakeEngine) -> None:
    counted = gemini.models.count_tokens(model=MODEL, contents="hi").total_tokens
    assert counted == usage_of(ask(gemini)).prompt_token_count


@pytest.mark.parametrize(
    ("key", "code", "status"), [("", 401, "UNAUTHENTICATED"), ("made-up", 401, "UNAUTHENTICATED")]
)
def test_a_wrong_key(served: Served, key: str, code: int, status: str) -> None:
    options = types.HttpOptions(base_url=served.url, headers={"x-goog-api-key": key})
    with (
        genai.Client(api_key="x", http_options=options) as client,
        pytest.raises(errors.ClientError) as raised,
    ):
        ask(client)
    assert (raised.value.code, raised.value.status) == (code, status)


def test_a_prompt_that_is_too_long_is_told_in_googles_words(gemini: genai.Client) -> None:
    words = "input token count exceeds the maximum number of tokens allowed"
    with pytest.raises(errors.ClientError, match=words):
        ask(gemini, "x" * 5000)


def test_an_unknown_model(gemini: genai.Client, engine: FakeEngine) -> None:
    with pytest.raises(errors.ClientError) as raised:
        gemini.models.generate_content(model="nobody", contents="hi")
    assert (raised.value.code, raised.value.status) == (404, "NOT_FOUND")
    assert not engine.requests


@pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")
async def test_the_asynchronous_client(served: Served, engine: FakeEngine) -> None:
    engine.script = saying("ok")
    options: Any = {"base_url": served.url}
    async with genai.Client(api_key=served.key, http_options=options).aio as client:
        answer = await client.models.generate_content(model=MODEL, contents="hi")
        assert answer.text == "ok"
        chunks = await client.models.generate_content_stream(model=MODEL, contents="hi")
        assert "".join([chunk.text or "" async for chunk in chunks]) == "ok"
