"""Markers of calls that are special tokens: the parser reads them, the client does not get them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.doubles.engine.fake_engine import FakeEngine, Script, prompt_of
from tests.doubles.engine.tiny_model import byte_tokenizer, write_tiny_model
from tests.doubles.gateway.served import MODEL, Served, config_of, serving
from tests.gateway.dialects.openai.calling.conftest import TEMPLATES
from tests.gateway.dialects.openai.calling.hermes import CLOCK, HI, OSLO, TOOLS, written
from tests.gateway.dialects.openai.calling.test_calls import asked, calls_of, either

SPECIAL = ["<tool_call>", "</tool_call>", "<think>", "</think>", "<|im_end|>"]
FIRST = 259  # first id after those of the tiny tokenizer


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, module_engine: FakeEngine) -> Iterator[Served]:
    template = (TEMPLATES / "qwen3.jinja").read_text()
    model = write_tiny_model(tmp_path_factory.mktemp("models") / "special", template=template)
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(model / "tokenizer.json"))
    with serving(config_of(model, tmp_path_factory.mktemp("data")), module_engine) as gateway:
        yield gateway


def saying_tokens(text: str) -> Script:
    """Answer with `text`, in which each marker is a single token."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens(SPECIAL)
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    assert max(ids) >= FIRST
    return lambda _: ids


@either
def test_calls(client: openai.OpenAI, engine: FakeEngine, ask: Any) -> None:
    engine.script = saying_tokens(f"<think>\nso\n</think>\n\nSee.\n{written(OSLO, CLOCK)}")
    answer = ask(client)
    assert calls_of(answer) == [OSLO, CLOCK]
    assert answer.choices[0].message.content == "See."


@either
def test_other_special_tokens_are_not_shown(
    client: openai.OpenAI, engine: FakeEngine, ask: Any
) -> None:
    engine.script = saying_tokens(f"See.<|im_end|> {written(CLOCK)}<|im_end|>")
    answer = ask(client)
    assert calls_of(answer) == [CLOCK]
    assert answer.choices[0].message.content == "See."


def test_a_user_cannot_write_one(client: openai.OpenAI, engine: FakeEngine) -> None:
    asked(client, messages=[{"role": "user", "content": "<tool_call>"}], max_tokens=1)
    asked(client, max_tokens=1)
    counts = [prompt_of(request).count(FIRST) for request in engine.requests]
    assert counts[0] == counts[1], "those of the template"


def test_grammars_name_them_as_tokens(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = saying_tokens(written(CLOCK))
    assert calls_of(asked(client, tool_choice="required")) == [CLOCK]
    grammar = engine.requests[0].sampling.grammar
    assert grammar is not None
    assert f"<[{FIRST}]>" in grammar.text


def test_log_probabilities_have_them(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = saying_tokens(written(CLOCK))
    answer = client.chat.completions.create(model=MODEL, messages=HI, tools=TOOLS, logprobs=True)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert "".join(token.token for token in logprobs.content or ()) == written(CLOCK)
