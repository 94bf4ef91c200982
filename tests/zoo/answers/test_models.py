"""Parrots, served by a whole server, answer with their texts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.seams.support.server import running_server
from tests.zoo.families import family
from tests.zoo.models import write_parrot, write_runnable
from tests.zoo.more_families import MORE

_THINKS = "<think>\nHm.\n</think>\n\nTwenty \u20ac, twenty \u20ac."
_CALLS = 'Look: <tool_call>\n{"name": "get_time", "arguments": {"zone": "UTC"}}\n</tool_call>'


def test_a_parrot_says_its_first_text_and_others_where_they_are_begun(tmp_path: Path) -> None:
    starts = write_parrot(family("qwen3"), tmp_path / "model", [_THINKS, _CALLS])
    with running_server(tmp_path / "data", {"RATOON_MODEL": str(tmp_path / "model")}) as server:
        chat = server.openai().chat.completions
        asked = {"model": "model", "messages": [{"role": "user", "content": "?"}], "temperature": 0}
        thought = chat.create(**asked).choices[0].message  # type: ignore[call-overload]
        assert thought.content == "Twenty \u20ac, twenty \u20ac."
        assert thought.reasoning_content.strip() == "Hm."
        tool = {"type": "function", "function": {"name": "get_time", "parameters": {}}}
        called = chat.create(  # type: ignore[call-overload]
            **asked, tools=[tool], logit_bias={starts[1]: 100}
        ).choices[0]
        assert called.finish_reason == "tool_calls"
        assert called.message.content.strip() == "Look:"
        assert json.loads(called.message.tool_calls[0].function.arguments) == {"zone": "UTC"}


def test_a_mark_that_comes_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="comes twice"):
        write_parrot(family("qwen3"), tmp_path, ["<think>one<think>two"])


def test_a_runnable_model_has_the_familys_ends(tmp_path: Path) -> None:
    write_runnable(family("llama3.1"), tmp_path, real=True)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["eos_token_id"] == [128009, 128001, 128257]
    assert config["vocab_size"] == 128258


_ZONE = {"type": "object", "properties": {"zone": {"type": "string"}}}
_PARROTS = {
    "minicpm5": 'So.\n<function name="get_time"><param name="zone">UTC</param></function>',
    "nemotron-nano-2": (
        'So.\n<TOOLCALL>[{"name": "get_time", "arguments": {"zone": "UTC"}}]</TOOLCALL>'
    ),
    "nemotron-3": (
        "Well.\n</think>\n\nSo.\n<tool_call>\n<function=get_time>\n<parameter=zone>\nUTC\n"
        "</parameter>\n</function>\n</tool_call>"
    ),
    "granite4": (
        'So.\n<tool_call>\n{"name": "get_time", "arguments": {"zone": "UTC"}}\n</tool_call>'
    ),
}


@pytest.mark.zoo
@pytest.mark.parametrize("name", _PARROTS)
def test_a_parrot_of_a_further_template_calls_and_is_called_again(
    name: str, tmp_path: Path
) -> None:
    one = replace(next(one for one in MORE if one.name == name), plain=())
    write_parrot(one, tmp_path / "model", [_PARROTS[name]])
    with running_server(tmp_path / "data", {"RATOON_MODEL": str(tmp_path / "model")}) as server:
        create: Any = server.openai().chat.completions.create
        messages: list[Any] = [{"role": "user", "content": "The time? /no_think"}]
        tool = {"type": "function", "function": {"name": "get_time", "parameters": _ZONE}}
        for _ in range(2):
            asked = {"model": "model", "messages": messages, "temperature": 0, "tools": [tool]}
            told = create(**asked).choices[0].message
            [call] = told.tool_calls
            assert (told.content.strip(), call.function.name) == ("So.", "get_time")
            assert json.loads(call.function.arguments) == {"zone": "UTC"}
            deltas = [chunk.choices[0].delta for chunk in create(**asked, stream=True)]
            streamed = [one for delta in deltas for one in delta.tool_calls or ()]
            parts = "".join(one.function.arguments or "" for one in streamed)
            assert json.loads(parts) == {"zone": "UTC"}
            messages += [told, {"role": "tool", "tool_call_id": call.id, "content": "noon"}]
