"""instructor gets typed answers, whole and in parts, in its modes for tools and for JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.clients.conftest import OSLO, answer
from tests.doubles.engine.fake_engine import FakeEngine, saying
from tests.doubles.gateway.served import MODEL, Served
from tests.gateway.dialects.openai.calling.hermes import written

instructor: Any = pytest.importorskip("instructor")


class Weather(BaseModel):
    city: str
    days: int


CALL = written(("Weather", OSLO))
MODES = {
    "TOOLS": (CALL, True),
    "TOOLS_STRICT": (CALL, True),
    "JSON": (answer(), True),
    "JSON_SCHEMA": (answer(), True),
    "MD_JSON": (f"```json\n{answer()}\n```", False),
    "PARALLEL_TOOLS": (written(("Weather", OSLO), ("Weather", OSLO)), False),
}


def client_of(url: str, served: Served, mode: str) -> Any:
    client = openai.OpenAI(base_url=url, api_key=served.key, max_retries=0)
    return instructor.from_openai(client, mode=getattr(instructor.Mode, mode))


def asked(client: Any, model: Any, **fields: Any) -> Any:
    messages = [{"role": "user", "content": "Hi"}]
    return client.chat.completions.create(
        model=MODEL, messages=messages, response_model=model, max_retries=0, **fields
    )


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "PARALLEL_TOOLS"])
def test_an_answer_of_a_type(url: str, served: Served, engine: FakeEngine, mode: str) -> None:
    said, has_grammar = MODES[mode]
    engine.script = saying(said)
    assert asked(client_of(url, served, mode), Weather).model_dump() == OSLO
    assert (engine.requests[0].sampling.grammar is not None) == has_grammar


def test_several(url: str, served: Served, engine: FakeEngine) -> None:
    engine.script = saying(MODES["PARALLEL_TOOLS"][0])
    found = asked(client_of(url, served, "PARALLEL_TOOLS"), Iterable[Weather])
    assert [one.model_dump() for one in found] == [OSLO, OSLO]


@pytest.mark.parametrize("mode", ["TOOLS", "JSON_SCHEMA"])
def test_a_part_at_a_time(url: str, served: Served, engine: FakeEngine, mode: str) -> None:
    # instructor names the tool after the partial type.
    engine.script = saying(written(("PartialWeather", OSLO)) if mode == "TOOLS" else answer())
    parts = list(asked(client_of(url, served, mode), instructor.Partial[Weather], stream=True))
    assert (parts[-1].city, parts[-1].days) == ("Oslo", 2)
