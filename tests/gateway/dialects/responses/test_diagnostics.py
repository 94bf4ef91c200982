"""OpenAI's `prompt_cache_diagnostics` report a hit, or name the change that made a prompt miss.

OpenAI's client asks a gateway with a fake engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.doubles.engine.fake_engine import FakeEngine
from tests.zoo.families import family
from tests.zoo.gateways import ZooGateway, zoo_gateway

RULES = "You answer questions about the harbour, and you never guess. " * 4
CLOCK: Any = {"type": "function", "name": "clock", "parameters": {"type": "object"}}


def ask(client: openai.OpenAI, beside: str | None = None, **fields: Any) -> Any:
    """Send a question after the rules; return the response, whose cache use is compared with
    response `beside`.
    """
    options = {} if beside is None else {"prompt_cache_options": {"comparison_response_id": beside}}
    asked = {"model": client.models.list().data[0].id, "instructions": RULES, "input": "Who?"}
    return client.responses.create(**asked | fields, max_output_tokens=4, extra_body=options)


def told(response: Any) -> dict[str, Any]:
    found: dict[str, Any] = response.prompt_cache_diagnostics.to_dict()
    return found


def test_what_goes_on_is_a_hit(client: openai.OpenAI, engine: FakeEngine) -> None:
    first = ask(client)
    assert first.prompt_cache_diagnostics is None, "nobody asked"
    second = ask(client, first.id)
    assert told(second) == {"type": "cache_hit"}
    assert second.prompt_cache_options.comparison_response_id == first.id
    assert not hasattr(second, "ratoon")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"instructions": "Today is Monday. " + RULES}, "input_changed"),
        ({"tools": [CLOCK], "tool_choice": "none"}, "tools_changed"),
    ],
)
def test_what_changed_is_named(
    client: openai.OpenAI, engine: FakeEngine, fields: dict[str, Any], reason: str
) -> None:
    first = ask(client)
    engine.lose_cache()
    found = told(ask(client, first.id, **fields))
    assert (found["type"], found["reason"]) == ("cache_miss", reason)
    assert found["comparison_reusable_tokens"] >= found["cache_missed_tokens"] > 200


def test_what_is_not_known(client: openai.OpenAI, engine: FakeEngine) -> None:
    assert told(ask(client, "resp_unknown")) == {"type": "comparison_response_not_found"}
    first = ask(client)
    engine.lose_cache()  # OpenAI's API has no reason for a lost cache
    assert told(ask(client, first.id)) == {"type": "unavailable"}


def test_ours_stands_beside_it(client: openai.OpenAI, engine: FakeEngine) -> None:
    first, other = ask(client), ask(client, instructions="Other rules. " + RULES)
    engine.lose_cache()
    body = {
        "prompt_cache_options": {"comparison_response_id": other.id},
        "ratoon": {"explain": True, "previous_id": first.id},
    }
    both: Any = client.responses.create(
        model=other.model, instructions=RULES, input="Who?", max_output_tokens=4, extra_body=body
    )
    assert both.ratoon["cache_miss"]["compared_with"] == first.id.removeprefix("resp_")
    assert told(both) == {"type": "unavailable"}, "evicted"


def test_a_stream_tells_it_at_its_end(client: openai.OpenAI, engine: FakeEngine) -> None:
    first = ask(client)
    *_, last = ask(client, first.id, stream=True)
    assert last.type == "response.incomplete"
    assert told(last.response) == {"type": "cache_hit"}


@pytest.fixture
def gpt_oss(tmp_path: Path) -> Iterator[ZooGateway]:
    with zoo_gateway(family("gpt-oss"), tmp_path) as zoo:
        yield zoo


def test_another_effort_of_reasoning_is_named(gpt_oss: ZooGateway) -> None:
    """Name a changed reasoning effort as the cause: gpt-oss's template writes the effort before the
    messages.
    """
    first = ask(gpt_oss.client, reasoning={"effort": "low"})
    gpt_oss.engine.lose_cache()
    asks = {
        "prompt_cache_options": {"comparison_response_id": first.id},
        "ratoon": {"explain": True, "previous_id": first.id},
    }
    fields: Any = {"reasoning": {"effort": "high"}, "instructions": RULES, "input": "Who?"}
    again: Any = gpt_oss.client.responses.create(model=first.model, extra_body=asks, **fields)
    assert told(again)["reason"] == "reasoning_effort_changed"
    assert again.ratoon["cache_miss"]["change"] == "reasoning_effort"
