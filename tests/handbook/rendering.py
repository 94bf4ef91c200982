"""The shipped chat template, rendered by jinja2 as transformers renders it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment

from tests.doubles.engine.shapes import EMBEDDED


class RefusedRoleError(Exception):
    """The error that a template raises with `raise_exception`."""


def refuse(message: str) -> None:
    raise RefusedRoleError(message)


def render(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
    *,
    add_generation_prompt: bool = False,
) -> str:
    config: dict[str, Any] = json.loads((EMBEDDED / "tokenizer_config.json").read_text())
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = refuse
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    return environment.from_string(config["chat_template"]).render(
        messages=messages,
        tools=tools,
        add_generation_prompt=add_generation_prompt,
        bos_token=config["bos_token"],
        eos_token=config["eos_token"],
    )
