"""Renders a chat into the prompt's text with the chat template of the model directory.

The template is code by whoever made the model: it runs in jinja2's immutable sandbox and is
given what `transformers` gives it. Clients only supply values for it.

Knows: jinja2, where a model directory keeps its template. Does not know: tokens or HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gateway.errors import BadRequest
from gateway.tokenizer import ModelFileBroken, read_tokenizer_config, special_tokens

Message = Mapping[str, str]
Tool = dict[str, Any]  # as it was sent
Scalar = str | int | float | bool | None


class TemplateBroken(ModelFileBroken):
    """The model's chat template does not compile: the model cannot be served as it is."""


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks assistant text for training; here its body is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled chat template and the special tokens it may name.

    Some models have another template for chats with tools, `tool_use`.
    """

    def __init__(self, source: str, tokens: Mapping[str, str], tool_use: str | None = None) -> None:
        self._template = _compiled(source)
        self._tool_use = self._template if tool_use is None else _compiled(tool_use)
        self._tokens = dict(tokens)

    @classmethod
    def load(cls, model_dir: Path) -> ChatTemplate | None:
        """The template of a model directory; None if it has none; raises ModelFileBroken."""
        sources = _sources(model_dir)
        if "default" not in sources:
            return None
        return cls(sources["default"], special_tokens(model_dir), sources.get("tool_use"))

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool = False,
        variables: Mapping[str, Scalar] | None = None,
        tools: Sequence[Tool] | None = None,
    ) -> str:
        """The chat as text; BadRequest if the template refuses these messages.

        With `continue_final_message` the text ends where the last message's content ends, so
        that the model continues it. `variables` cannot replace what every template is given.
        Whether and where the model sees `tools` is the template's decision.
        """
        try:
            text = (self._tool_use if tools else self._template).render(
                {
                    **(variables or {}),
                    **self._tokens,
                    "messages": messages,
                    "tools": tools or None,
                    "documents": None,
                    "add_generation_prompt": add_generation_prompt,
                }
            )
        except _Refused as refused:
            raise BadRequest(
                f"the model's chat template refuses these messages: {refused}", param="messages"
            ) from None
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError):
            # The messages of these may quote the prompt.
            raise BadRequest(
                "the model's chat template cannot render these messages", param="messages"
            ) from None
        return _cut_behind(text, messages[-1]["content"]) if continue_final_message else text


class _Refused(jinja2.TemplateError):
    """The template called `raise_exception`."""


def _raise_exception(message: str) -> NoReturn:
    raise _Refused(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: jinja2's own filter escapes for HTML, which models never saw in training."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _compiled(source: str) -> jinja2.Template:
    try:
        return _environment().from_string(source)
    except jinja2.TemplateError as error:
        raise TemplateBroken(f"the chat template does not compile: {error}") from error


def _sources(model_dir: Path) -> dict[str, str]:
    """By name: chat_template.jinja when there is one, else what tokenizer_config.json holds."""
    alone = model_dir / "chat_template.jinja"
    if alone.exists():
        try:
            return {"default": alone.read_text(encoding="utf-8")}
        except (OSError, UnicodeDecodeError) as error:
            raise ModelFileBroken(f"{alone}: {error}") from error
    found = read_tokenizer_config(model_dir).get("chat_template")
    named = found if isinstance(found, list) else [{"name": "default", "template": found}]
    return {
        entry["name"]: entry["template"]
        for entry in named
        if isinstance(entry, dict)
        and isinstance(entry.get("name"), str)
        and isinstance(entry.get("template"), str)
    }


def _cut_behind(text: str, content: str) -> str:
    """`text` up to the end of the last message's content; templates often trim that content."""
    for wanted in (content, content.rstrip(), content.strip()):
        place = text.rfind(wanted)
        if wanted and place >= 0:
            return text[: place + len(wanted)]
    raise BadRequest("the last message is not in the rendered chat", param="continue_final_message")
