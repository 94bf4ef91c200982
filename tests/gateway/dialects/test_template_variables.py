"""An operator's default template variables keep thoughts that a template would drop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.zoo.families import family
from tests.zoo.gateways import ZooGateway, zoo_gateway

THOUGHT = "I think of a color."
ASKED = {"role": "user", "content": "Name a color."}
MORE = {"role": "user", "content": "And another."}
KEPT = '{"preserve_thinking": true}'


@pytest.fixture(scope="module", params=[KEPT, None], ids=["kept", "dropped"])
def zoo(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    directory: Path = tmp_path_factory.mktemp("zoo")
    settings = {"default_chat_template_kwargs": request.param}
    with zoo_gateway(family("qwen3.6"), directory, **settings) as gateway:
        gateway.says("Blue.")
        yield gateway, request.param == KEPT


Zoo = tuple[ZooGateway, bool]


def test_chats(zoo: Zoo) -> None:
    gateway, keeps = zoo
    said = {"role": "assistant", "content": "Red.", "reasoning_content": THOUGHT}
    chat = {"model": "tiny", "messages": [ASKED, said, MORE]}
    gateway.client.chat.completions.create(**chat)  # type: ignore[call-overload]
    assert (THOUGHT in gateway.prompt()) == keeps
    own = {"chat_template_kwargs": {"preserve_thinking": not keeps}}
    gateway.client.chat.completions.create(**chat, extra_body=own)  # type: ignore[call-overload]
    assert (THOUGHT in gateway.prompt()) != keeps


def test_responses(zoo: Zoo) -> None:
    gateway, keeps = zoo
    thought: dict[str, Any] = {"type": "reasoning", "id": "rs_1", "summary": []}
    thought["content"] = [{"type": "reasoning_text", "text": THOUGHT}]
    said = {"role": "assistant", "content": "Red."}
    items: Any = [ASKED, thought, said, MORE]
    gateway.client.responses.create(model="tiny", input=items)
    assert (THOUGHT in gateway.prompt()) == keeps


def test_messages(zoo: Zoo) -> None:
    gateway, keeps = zoo
    thought = {"type": "thinking", "thinking": THOUGHT, "signature": ""}
    said = {"role": "assistant", "content": [thought, {"type": "text", "text": "Red."}]}
    turns: Any = [ASKED, said, MORE]
    gateway.anthropic.messages.create(model="tiny", max_tokens=9, messages=turns)
    assert (THOUGHT in gateway.prompt()) == keeps


def test_a_request_s_own_thinking_comes_before_the_operators_and_that_before_none(
    tmp_path: Path,
) -> None:
    asked: Any = [ASKED]
    opened = []
    for place, default in enumerate((None, '{"enable_thinking": true}')):
        settings: dict[str, Any] = {"default_chat_template_kwargs": default}
        with zoo_gateway(family("qwen3.6"), tmp_path / str(place), **settings) as gateway:
            gateway.says("Blue.")
            unsaid: Any = {}
            for thinking in (unsaid, {"thinking": {"type": "disabled"}}):
                gateway.anthropic.messages.create(
                    model="tiny", max_tokens=9, messages=asked, **thinking
                )
                opened.append(gateway.prompt().endswith("<think>\n"))
    assert opened == [False, False, True, False]
