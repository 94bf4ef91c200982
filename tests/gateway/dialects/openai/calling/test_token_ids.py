"""`return_token_ids` adds the tokens of the prompt and of the answer, as in vLLM."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.doubles.engine.fake_engine import EOS, FakeEngine, prompt_of, saying
from tests.doubles.gateway.served import MODEL
from tests.gateway.dialects.openai.calling.hermes import CLOCK, HI, TOOLS, written

IDS = {"return_token_ids": True}
SAID = "<think>\nso\n</think>\n\nYes.\n" + written(CLOCK)


def chat(client: openai.OpenAI, **fields: Any) -> Any:
    create: Any = client.chat.completions.create
    return create(model=MODEL, messages=HI, tools=TOOLS, **fields)


def complete(client: openai.OpenAI, **fields: Any) -> Any:
    create: Any = client.completions.create
    return create(model=MODEL, **fields)


def test_a_chat(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = saying(SAID)
    answer = chat(client, extra_body=IDS, n=2)
    assert answer.prompt_token_ids == prompt_of(engine.requests[-1])
    assert [one.token_ids for one in answer.choices] == [[*SAID.encode(), EOS]] * 2
    cut = chat(client, extra_body=IDS, max_tokens=3)
    assert cut.choices[0].token_ids == [*SAID.encode()[:3]]


@pytest.mark.parametrize("per_step", [1, 7, 1000])
@pytest.mark.parametrize("tools", [TOOLS, openai.omit])
def test_a_streamed_chat(
    client: openai.OpenAI, engine: FakeEngine, per_step: int, tools: Any
) -> None:
    engine.script, engine.per_step = saying(SAID), per_step
    create: Any = client.chat.completions.create
    asked = {"model": MODEL, "messages": HI, "tools": tools, "stream": True}
    first, *rest = create(**asked, extra_body=IDS)
    assert first.prompt_token_ids == prompt_of(engine.requests[-1])
    assert not any(hasattr(chunk, "prompt_token_ids") for chunk in rest)
    ids = [getattr(one.choices[0], "token_ids", []) for one in (first, *rest)]
    assert [one for some in ids for one in some] == [*SAID.encode(), EOS]


def test_completions(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = saying("Yes.")
    answer = complete(client, prompt=["a", "bc"], extra_body=IDS, max_tokens=9)
    prompts = [prompt_of(request) for request in engine.requests]
    assert [one.prompt_token_ids for one in answer.choices] == prompts
    assert [one.token_ids for one in answer.choices] == [[*b"Yes.", EOS]] * 2
    first, *rest = complete(client, prompt="a", extra_body=IDS, max_tokens=9, stream=True)
    assert first.choices[0].prompt_token_ids == prompts[0]
    assert not any(hasattr(chunk.choices[0], "prompt_token_ids") for chunk in rest)
    ids = [one.choices[0].token_ids for one in (first, *rest)]
    assert [one for some in ids for one in some] == [*b"Yes.", EOS]


SCORED = {"logprobs": True, "top_logprobs": 0}


@pytest.mark.parametrize("said", ["Yes.", ""])
def test_each_id_has_a_log_probability(
    client: openai.OpenAI, engine: FakeEngine, said: str
) -> None:
    """Score the token that ends an answer, too: Harbor 0.26.0 reads ids and scores in pairs."""
    engine.script = saying(said)
    [choice] = chat(client, extra_body=IDS, **SCORED).choices
    assert choice.token_ids == [*said.encode(), EOS]
    assert len(choice.logprobs.content) == len(choice.token_ids)
    chunks = [one.choices[0] for one in chat(client, extra_body=IDS, stream=True, **SCORED)]
    scored = [len(one.logprobs.content) if one.logprobs else 0 for one in chunks]
    assert scored == [len(getattr(one, "token_ids", [])) for one in chunks]
    [choice] = complete(client, prompt="a", extra_body=IDS, max_tokens=9, logprobs=0).choices
    assert len(choice.logprobs.token_logprobs) == len(choice.token_ids) == len(said) + 1
    asked = complete(client, prompt="a", extra_body=IDS, max_tokens=9, logprobs=0, stream=True)
    chunks = [one.choices[0] for one in asked]
    scored = [len(one.logprobs.tokens) if one.logprobs else 0 for one in chunks]
    assert scored == [len(one.token_ids) for one in chunks]


def test_without_ids_only_the_text_is_scored(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = saying("Yes.")
    [choice] = chat(client, **SCORED).choices
    assert [one.token for one in choice.logprobs.content] == [*"Yes."]
    chunks = [one.choices[0] for one in chat(client, stream=True, **SCORED)]
    assert sum(len(one.logprobs.content) for one in chunks if one.logprobs) == 4


def test_none_are_shown_unless_they_are_asked_for(
    client: openai.OpenAI, engine: FakeEngine
) -> None:
    for fields in ({}, {"extra_body": {"return_token_ids": False}}):
        answer = chat(client, max_tokens=3, **fields)
        assert not hasattr(answer, "prompt_token_ids")
        assert not hasattr(answer.choices[0], "token_ids")
    alone = chat(client, max_tokens=0, extra_body=IDS)
    assert (alone.prompt_token_ids, alone.choices[0].token_ids) == (
        prompt_of(engine.requests[-1]),
        [],
    )
