"""Shell and patch tools, which the client runs: the model's calls, and the results sent back as
items.
"""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai.types.responses import (
    ResponseApplyPatchToolCall,
    ResponseFunctionShellToolCall,
)
from openai.types.responses.response_output_item import LocalShellCall

from tests.doubles.engine.fake_engine import FakeEngine, prompt_of, saying
from tests.doubles.gateway.served import MODEL

SHELL = {"type": "shell", "environment": {"type": "local"}}
DIFF = '@@\n-old "line"\n+new \\ line\n'
# For each: the tool, the arguments that the model writes, the item's class and field, and its
# contents.
KINDS: dict[str, tuple[Any, dict[str, Any], type, str, dict[str, Any]]] = {
    "local_shell": (
        {"type": "local_shell"},
        {"command": ["ls", "-l"], "timeout_ms": 5},
        LocalShellCall,
        "action",
        {"type": "exec", "command": ["ls", "-l"], "env": {}, "timeout_ms": 5},
    ),
    "shell": (
        SHELL,
        {"commands": ["ls", "pwd"]},
        ResponseFunctionShellToolCall,
        "action",
        {"commands": ["ls", "pwd"], "timeout_ms": None, "max_output_length": None},
    ),
    "apply_patch": (
        {"type": "apply_patch"},
        {"type": "update_file", "path": "a.txt", "diff": DIFF},
        ResponseApplyPatchToolCall,
        "operation",
        {"type": "update_file", "path": "a.txt", "diff": DIFF},
    ),
}
# For each: the item that a client sends back, and the text that the model reads for it.
OUTPUTS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "local_shell": ({"type": "local_shell_call_output", "output": "two files"}, ["two files"]),
    "shell": (
        {
            "type": "shell_call_output",
            "max_output_length": 100,
            "output": [
                {"stdout": "a b", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}},
                {"stdout": "", "stderr": "oh", "outcome": {"type": "exit", "exit_code": 3}},
                {"stdout": "c", "stderr": "", "outcome": {"type": "timeout"}},
            ],
        },
        ["a b", "oh", "exit code 3", "c", "took too long"],
    ),
    "apply_patch": (
        {"type": "apply_patch_call_output", "status": "failed", "output": "no such file"},
        ["no such file"],
    ),
}


def called(name: str, arguments: dict[str, Any]) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    return client.responses.create(**{"model": MODEL, "input": "hi", **fields})


def prompt(engine: FakeEngine) -> str:
    return bytes(one for one in prompt_of(engine.requests[-1]) if one < 256).decode()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_call_comes_back_as_the_item_that_the_client_knows(
    client: openai.OpenAI, engine: FakeEngine, kind: str, stream: bool
) -> None:
    tool, arguments, made, field, said = KINDS[kind]
    engine.script = saying(called(kind, arguments))
    answer = ask(client, tools=[tool], stream=stream)
    events = list(answer) if stream else []
    [item] = events[-1].response.output if stream else answer.output
    assert (type(item), item.type, item.status) == (made, f"{kind}_call", "completed")
    assert getattr(item, field).to_dict() == said
    if stream:
        [done] = [one.item for one in events if one.type == "response.output_item.done"]
        assert done == item
    assert f'"name": "{kind}"' in prompt(engine)


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_and_its_output_are_shown_and_kept(
    client: openai.OpenAI, engine: FakeEngine, kind: str
) -> None:
    tool, arguments, *_ = KINDS[kind]
    output, shown = OUTPUTS[kind]
    spelled = called(kind, arguments)
    engine.script = saying(spelled)
    first = ask(client, tools=[tool])
    [call] = first.output
    # the field of the call's id in OpenAI's types
    key = "id" if kind == "local_shell" else "call_id"
    returned = {**output, key: call.call_id}
    next_one = ask(client, tools=[tool], input=[returned], previous_response_id=first.id)
    assert spelled in prompt(engine)
    assert all(text in prompt(engine) for text in shown)
    before = prompt(engine)
    ask(client, tools=[tool], input=[{"role": "user", "content": "hi"}, call.to_dict(), returned])
    assert prompt(engine) == before
    kept = client.responses.input_items.list(next_one.id, order="asc").data[-1].to_dict()
    assert {name: kept[name] for name in output} == output


@pytest.mark.parametrize("kind", KINDS)
def test_it_can_be_forced_and_is_held_to_its_fields(
    client: openai.OpenAI, engine: FakeEngine, kind: str
) -> None:
    engine.script = saying("So.")
    ask(client, tools=[KINDS[kind][0]], tool_choice={"type": kind})
    grammar = engine.requests[-1].sampling.grammar
    assert grammar is not None
    assert all(f'\\"{name}\\"' in grammar.text or name in grammar.text for name in KINDS[kind][1])


def test_what_a_model_writes_amiss_is_an_item_all_the_same(
    client: openai.OpenAI, engine: FakeEngine
) -> None:
    engine.script = saying(called("shell", {"commands": "ls"}) + called("apply_patch", {}))
    shell, patch = ask(client, tools=[SHELL, {"type": "apply_patch"}]).output
    assert shell.action.commands == ["ls"]
    assert (patch.operation.type, patch.operation.path) == ("update_file", "")


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "shell_call", "call_id": "c"}, "action"),
        ({"type": "apply_patch_call", "call_id": "c"}, "operation"),
        ({"type": "local_shell_call", "action": {}}, "call_id"),
        ({"type": "shell_call_output", "call_id": "c"}, "output"),
        ({"type": "apply_patch_call_output", "call_id": "c"}, "status"),
        ({"type": "local_shell_call_output", "output": ""}, "call_id"),
    ],
)
def test_a_field_that_is_missing_is_named(
    client: openai.OpenAI, item: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, input=[{"role": "user", "content": "hi"}, item])
    assert refused.value.param == f"input[1].{param}"
