"""outlines, with its classes for vLLM and for OpenAI: each output type becomes a grammar."""

from __future__ import annotations

import datetime
import json
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from tests.clients.conftest import OSLO, answer
from tests.doubles.engine.fake_engine import FakeEngine, saying
from tests.doubles.gateway.served import MODEL, Served

outlines: Any = pytest.importorskip("outlines")


class Weather(BaseModel):
    city: str
    days: int


@pytest.fixture
def client(url: str, served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=url, api_key=served.key, max_retries=0)


def test_a_text(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.script = saying("Hello.")
    assert outlines.from_vllm(client, MODEL)("Hi") == "Hello."
    assert engine.requests[0].sampling.grammar is None


@pytest.mark.parametrize("maker", ["from_vllm", "from_openai"])
def test_an_object(client: openai.OpenAI, engine: FakeEngine, maker: str) -> None:
    engine.script = saying(answer())
    model = getattr(outlines, maker)(client, MODEL)
    assert json.loads(model("Hi", Weather)) == OSLO
    assert "".join(model.stream("Hi", Weather)) == answer()
    for request in engine.requests:
        assert request.sampling.grammar is not None
        assert '"city"' in request.sampling.grammar.text.replace("\\", "")


TYPES: dict[str, tuple[Any, str]] = {
    "choice": (Literal["yes", "no"], "yes"),
    "number": (int, "42"),
    "date": (datetime.date, "2026-11-28"),
    "list": (list[int], "[1, 2]"),
    "regex": (outlines.types.regex(r"[a-z]{3}-\d{2}"), "abc-12"),
    "Lark": (outlines.types.CFG('start: "a" ("b" | "c")+'), "abc"),
    "Lark of JSON": (outlines.types.CFG(outlines.grammars.json), "{}"),
    "Lark of sums": (outlines.types.CFG(outlines.grammars.arithmetic), "1+2"),
}


@pytest.mark.parametrize("name", TYPES)
def test_a_type(client: openai.OpenAI, engine: FakeEngine, name: str) -> None:
    wanted, said = TYPES[name]
    engine.script = saying(said)
    assert outlines.from_vllm(client, MODEL)("Hi", wanted) == said
    assert engine.requests[0].sampling.grammar is not None
