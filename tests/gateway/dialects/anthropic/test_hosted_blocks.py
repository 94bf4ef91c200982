"""Histories with tool calls that Anthropic's servers ran: a prompt shows each call that has a
result.
"""

from __future__ import annotations

from typing import Any

import anthropic
import pytest

from tests.doubles.engine.fake_engine import FakeEngine
from tests.gateway.dialects.anthropic.asking import HI, ask, assistant, prompt_for, shown, user

BEFORE = user("Look it up.")
AFTER = user("Sure?")


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def use(name: str, given: Any, kind: str = "server_tool_use", call: str = "srvtoolu_1") -> Any:
    more = {"server_name": "zoo"} if kind == "mcp_tool_use" else {}
    return {"type": kind, "id": call, "name": name, "input": given, **more}


def result(kind: str, content: Any, call: str = "srvtoolu_1", **more: Any) -> dict[str, Any]:
    return {"type": kind, "tool_use_id": call, "content": content, **more}


PAGE = {"type": "web_search_result", "url": "https://example.org", "title": "Owls"}
RAN = {"type": "code_execution_result", "stdout": "2 owls", "stderr": "", "return_code": 0}
BASH = {**RAN, "type": "bash_code_execution_result", "content": []}
FILE = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0"}
FETCHED = {
    "type": "web_fetch_result",
    "url": "https://example.org",
    "content": {"type": "document", "source": FILE, "title": "Owls"},
}
VIEWED = {
    "type": "text_editor_code_execution_view_result",
    "file_type": "text",
    "content": "An owl.",
}
FOUND = {
    "type": "tool_search_tool_search_result",
    "tool_references": [{"type": "tool_reference", "tool_name": "find_owl"}],
}
# Content blocks of Anthropic's API, and the text that the model reads for them.
SHOWN: list[tuple[list[dict[str, Any]], list[str]]] = [
    (
        [
            use("web_search", {"query": "owls"}),
            result("web_search_tool_result", [{**PAGE, "encrypted_content": "SEALED"}]),
        ],
        ["web_search", '"query": "owls"', "https://example.org", "Owls"],
    ),
    (
        [
            use("web_search", {"query": "owls"}),
            result(
                "web_search_tool_result",
                {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"},
            ),
        ],
        ["web_search", "max_uses_exceeded"],
    ),
    (
        [use("web_fetch", {"url": "x"}), result("web_fetch_tool_result", FETCHED)],
        ["web_fetch", "https://example.org", "Owls"],
    ),
    (
        [use("code_execution", {"code": "print(2)"}), result("code_execution_tool_result", RAN)],
        ["print(2)", "2 owls"],
    ),
    (
        [
            use("bash_code_execution", {"command": "ls"}),
            result("bash_code_execution_tool_result", BASH),
        ],
        ["bash_code_execution", "2 owls"],
    ),
    (
        [
            use("text_editor_code_execution", {"command": "view", "path": "a"}),
            result("text_editor_code_execution_tool_result", VIEWED),
        ],
        ["text_editor_code_execution", "An owl."],
    ),
    (
        [
            use("tool_search_tool_regex", {"query": "owl"}),
            result("tool_search_tool_result", FOUND),
        ],
        ["tool_search_tool_regex", "find_owl"],
    ),
    (
        [
            use("find_owl", {"kind": "barn"}, "mcp_tool_use"),
            result("mcp_tool_result", [text("in the barn")], is_error=True),
        ],
        ["find_owl", '"kind": "barn"', "Error: in the barn"],
    ),
]
PASSED_OVER: list[dict[str, Any]] = [
    use("web_search", {"query": "owls"}),
    use("find_owl", {}, "mcp_tool_use"),
    {"type": "server_tool_use"},
    result("code_execution_tool_result", RAN),
    result("mcp_tool_result", "in the barn"),
]


@pytest.mark.parametrize(("blocks", "texts"), SHOWN)
def test_what_it_returned_is_shown_in_its_place(
    claude: anthropic.Anthropic, engine: FakeEngine, blocks: list[Any], texts: list[str]
) -> None:
    turn = assistant([text("I look."), *blocks, text("It is so.")])
    answer = ask(claude, messages=[BEFORE, turn, AFTER])
    seen = shown(engine)
    order = ("Look it up.", "I look.", *texts, "It is so.", "Sure?")
    places = [seen.index(one) for one in order]
    assert places == sorted(places)
    assert "SEALED" not in seen
    assert "JVBERi0" not in seen
    assert not hasattr(answer, "ratoon")


def test_calls_one_after_the_other_are_shown_one_after_the_other(
    claude: anthropic.Anthropic, engine: FakeEngine
) -> None:
    blocks = [
        block
        for number in "12"
        for block in (
            use("find", {"n": number}, call=f"srvtoolu_{number}"),
            result("mcp_tool_result", f"owl {number}", f"srvtoolu_{number}"),
        )
    ]
    seen = prompt_for(engine, claude, BEFORE, assistant(blocks), AFTER)
    places = [seen.index(one) for one in ('"n": "1"', "owl 1", '"n": "2"', "owl 2", "Sure?")]
    assert places == sorted(places)


def test_a_turn_that_ends_with_a_result_is_gone_on_with(
    claude: anthropic.Anthropic, engine: FakeEngine
) -> None:
    blocks = [use("find", {}), result("mcp_tool_result", "owl!")]
    seen = prompt_for(engine, claude, BEFORE, assistant(blocks))
    assert seen.index("owl!") < seen.index("|assistant:", seen.index("owl!"))


@pytest.mark.parametrize("block", PASSED_OVER, ids=lambda one: str(one["type"]))
def test_half_of_a_call_is_passed_over_and_the_answer_says_so(
    claude: anthropic.Anthropic, engine: FakeEngine, block: dict[str, Any]
) -> None:
    answer: Any = ask(claude, messages=[BEFORE, assistant([text("So."), block]), AFTER])
    seen = shown(engine)
    [told] = answer.ratoon["ignored"]
    assert (told["param"], told["type"]) == ("messages[1].content[1]", block["type"])
    assert "hosted tool" in told["reason"]
    assert prompt_for(engine, claude, BEFORE, assistant([text("So.")]), AFTER) == seen


def test_a_file_for_a_hosted_machine_is_passed_over(
    claude: anthropic.Anthropic, engine: FakeEngine
) -> None:
    upload = {"type": "container_upload", "file_id": "file_1"}
    answer: Any = ask(claude, messages=[user([text("hi"), upload])])
    seen = shown(engine)
    assert [one["type"] for one in answer.ratoon["ignored"]] == ["container_upload"]
    assert prompt_for(engine, claude, *HI) == seen


def test_a_hosted_call_of_the_user_is_refused(claude: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="server_tool_use"):
        ask(claude, messages=[user([use("find", {})])])
