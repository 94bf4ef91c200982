"""Histories with tool calls that another server ran: a prompt shows each call that has a result."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.doubles.engine.fake_engine import FakeEngine, prompt_of, saying
from tests.doubles.gateway.served import MODEL

BEFORE: list[Any] = [{"role": "user", "content": "Look it up."}]
AFTER: list[Any] = [
    {"role": "assistant", "content": "It is so."},
    {"role": "user", "content": "Sure?"},
]
SOURCE = {"type": "url", "url": "https://example.org"}
SEARCH = {"type": "search", "query": "owls"}
# Items as OpenAI's API sends them (`include` asks for results), and the text that the model reads
# for them.
SHOWN: list[tuple[dict[str, Any], list[str]]] = [
    (
        {
            "type": "mcp_call",
            "id": "mcp_1",
            "server_label": "zoo",
            "name": "find_owl",
            "arguments": '{"kind": "barn"}',
            "output": "in the barn",
        },
        ["find_owl", '{"kind": "barn"}', "in the barn"],
    ),
    (
        {
            "type": "mcp_call",
            "id": "mcp_2",
            "server_label": "zoo",
            "name": "find_owl",
            "arguments": "",
            "output": None,
            "error": {"type": "mcp_protocol_error", "code": 5, "message": "no owls"},
        },
        ["find_owl", "no owls"],
    ),
    (
        {
            "type": "code_interpreter_call",
            "id": "ci_1",
            "status": "completed",
            "container_id": "cntr_1",
            "code": "print(2)",
            "outputs": [{"type": "logs", "logs": "2 owls"}],
        },
        ["code_interpreter", "print(2)", "2 owls"],
    ),
    (
        {
            "type": "file_search_call",
            "id": "fs_1",
            "status": "completed",
            "queries": ["owls"],
            "results": [{"file_id": "f", "filename": "birds.txt", "text": "Owls fly."}],
        },
        ["file_search", "birds.txt", "Owls fly."],
    ),
    (
        {
            "type": "web_search_call",
            "id": "ws_1",
            "status": "completed",
            "action": {**SEARCH, "sources": [SOURCE]},
        },
        ["web_search", '"query": "owls"', "https://example.org"],
    ),
]
PASSED_OVER: list[dict[str, Any]] = [
    {"type": "web_search_call", "id": "ws_2", "status": "completed", "action": SEARCH},
    {"type": "file_search_call", "id": "fs_2", "status": "completed", "queries": ["owls"]},
    {
        "type": "code_interpreter_call",
        "id": "ci_2",
        "status": "completed",
        "container_id": "cntr_1",
        "code": "print(2)",
        "outputs": None,
    },
    {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "aGk="},
    {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "zoo", "tools": [{"name": "owl"}]},
    {"type": "mcp_approval_request", "id": "mcpr_1", "name": "owl", "arguments": "{}"},
    {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
]
REFUSED: list[dict[str, Any]] = [
    {"type": "computer_call", "id": "cu_1", "call_id": "c", "status": "completed"},
    {"type": "compaction", "id": "cmp_1", "encrypted_content": "x"},
    {"type": "something_new", "id": "n_1"},
]


def ask(client: openai.OpenAI, *items: Any, **fields: Any) -> Any:
    return client.responses.create(model=MODEL, input=[*BEFORE, *items, *AFTER], **fields)


def prompt(engine: FakeEngine) -> str:
    return bytes(one for one in prompt_of(engine.requests[-1]) if one < 256).decode()


def kind_of(item: dict[str, Any]) -> str:
    return str(item["type"])


@pytest.mark.parametrize(("item", "texts"), SHOWN)
def test_what_it_returned_is_shown_in_its_place(
    client: openai.OpenAI, engine: FakeEngine, item: dict[str, Any], texts: list[str]
) -> None:
    engine.script = saying("Yes.")
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": []}
    answer = ask(client, reasoning, item)
    shown = prompt(engine)
    places = [shown.index(text) for text in ("Look it up.", *texts, "It is so.", "Sure?")]
    assert places == sorted(places)
    assert not hasattr(answer, "ratoon")


@pytest.mark.parametrize("item", PASSED_OVER, ids=kind_of)
def test_an_item_without_a_result_is_passed_over_and_the_answer_says_so(
    client: openai.OpenAI, engine: FakeEngine, item: dict[str, Any]
) -> None:
    engine.script = saying("Yes.")
    answer = ask(client, item)
    shown = prompt(engine)
    [told] = answer.ratoon["ignored"]
    assert (told["param"], told["type"]) == ("input[1]", item["type"])
    assert "hosted tool" in told["reason"]
    ask(client)
    assert prompt(engine) == shown
    kept = client.responses.input_items.list(answer.id, order="asc")
    assert len(kept.data) == len([*BEFORE, item, *AFTER])


@pytest.mark.parametrize("item", REFUSED, ids=kind_of)
def test_any_other_item_is_refused_by_name(client: openai.OpenAI, item: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, item)
    assert (refused.value.param, refused.value.code) == ("input[1].type", "unsupported_parameter")
