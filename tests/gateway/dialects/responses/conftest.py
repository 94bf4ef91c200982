"""Fixtures: a gateway whose tiny model reasons in `<think>` and writes Hermes calls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doubles.engine.fake_engine import FakeEngine
from tests.doubles.engine.tiny_model import write_tiny_model
from tests.doubles.gateway.served import Served, config_of, serving
from tests.gateway.conftest import BOUNDS

TEMPLATE = """\
{%- if tools %}{{ "<|turn|>tools:" + (tools | tojson) }}{% endif %}
{%- for message in messages %}
{{- "<|turn|>" + message.role + ":" }}
{%- if message.reasoning_content %}
{{- "<think>" + message.reasoning_content + "</think>" }}
{%- endif %}
{{- message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>{"name": "' + call.function.name + '", "arguments": ' }}
{{- (call.function.arguments | tojson) + '}</tool_call>' }}
{%- endfor %}
{%- endfor %}
{%- if reasoning_effort %}{{ "<|turn|>effort:" + reasoning_effort }}{% endif %}
{%- if add_generation_prompt %}{{ "<|turn|>assistant:" }}{% endif %}"""


@pytest.fixture(scope="package")
def hermes_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "hermes", TEMPLATE)


@pytest.fixture(scope="module")
def served(
    hermes_model: Path, tmp_path_factory: pytest.TempPathFactory, module_engine: FakeEngine
) -> Iterator[Served]:
    config = config_of(hermes_model, tmp_path_factory.mktemp("data"), bounds=BOUNDS)
    with serving(config, module_engine) as gateway:
        yield gateway
