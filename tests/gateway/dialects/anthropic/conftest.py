"""Fixtures: Anthropic's client, and a gateway whose model thinks and writes Hermes tool calls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import anthropic
import httpx
import pytest

from tests.doubles.engine.fake_engine import FakeEngine
from tests.doubles.engine.tiny_model import write_tiny_model
from tests.doubles.gateway.served import Served

TEMPLATE = """\
{{ bos_token }}
{%- if tools %}
{{- "<|turn|>tools:" + (tools | tojson) }}
{{- ' in <tool_call>{"name": 0, "arguments": 0}</tool_call>' }}
{%- endif %}
{%- for message in messages %}
{{- "<|turn|>" + message.role + (":" + message.name if message.name else "") + ":" }}
{%- if message.reasoning_content %}
{{- "<think>" + message.reasoning_content + "</think>" }}
{%- endif %}
{{- message.content }}
{%- for call in message.tool_calls %}
{{- '<tool_call>{"name": "' + call.function.name + '", "arguments": ' }}
{{- (call.function.arguments | tojson) + "}</tool_call>" }}
{%- endfor %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- "<|turn|>assistant:" }}
{%- if reasoning_effort is defined %}{{ "effort=" + reasoning_effort }}{% endif %}
{%- if enable_thinking %}{{ "<think>" }}{% endif %}
{%- endif %}"""


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "agent", template=TEMPLATE)


@pytest.fixture
def claude(served: Served, engine: FakeEngine) -> Iterator[anthropic.Anthropic]:
    """Return the official client as users have it, but without retries."""
    with anthropic.Anthropic(
        base_url=served.url, api_key=served.key, max_retries=0, timeout=60
    ) as client:
        yield client


@pytest.fixture
def http(served: Served, engine: FakeEngine) -> Iterator[httpx.Client]:
    """Return an HTTP client for requests and answers that the official client cannot send or
    show.
    """
    headers = {"x-api-key": served.key}
    with httpx.Client(base_url=served.url, headers=headers, timeout=60) as client:
        yield client
