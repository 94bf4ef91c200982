"""Renders a chat into the prompt's text with the chat template of the model directory.

The template is code by the maker of the model: it runs in jinja2's immutable sandbox and is
given what `transformers` gives it. Clients only supply values for it, and the control tokens in
these are text: what the template wrote itself is told apart (`content_marks.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import msgspec
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gateway.errors import BadRequest
from gateway.prompts.content_marks import ContentMarks, Given, escaped
from gateway.prompts.control_tokens import ControlTokens, Rendered
from gateway.prompts.messages import Message, template_form, with_short_ids
from gateway.prompts.tokenizer import ModelFileBroken

Tool = dict[str, Any]  # as it was sent
Scalar = str | int | float | bool | None

_SHORT_IDS = "with length 9"  # Mistral's templates refuse ids of calls that are longer


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

    def __init__(
        self,
        source: str,
        tokens: Mapping[str, str],
        tool_use: str | None = None,
        control: ControlTokens | None = None,
    ) -> None:
        """`tokens`: special tokens by name. `control`: those that only the template may write."""
        self._control = control or ControlTokens()
        self._marks = ContentMarks(self._control)
        self._template = _compiled(source)
        self._tool_use = self._template if tool_use is None else _compiled(tool_use)
        self._tokens = dict(tokens)
        self.source = source if tool_use is None else tool_use  # of chats with tools
        self._wants_short_ids = _SHORT_IDS in self.source

    @classmethod
    def load(cls, model_dir: Path, control: ControlTokens) -> ChatTemplate | None:
        """The template of a model directory; None if it has none; raises ModelFileBroken."""
        config = _tokenizer_config(model_dir)
        sources = _sources(model_dir, config)
        if "default" not in sources:
            return None
        return cls(sources["default"], _special_tokens(config), sources.get("tool_use"), control)

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool = False,
        variables: Mapping[str, Scalar] | None = None,
        tools: Sequence[Tool] | None = None,
    ) -> Rendered:
        """The chat as text and control tokens; BadRequest if the template refuses these messages.

        With `continue_final_message` the text ends where the last message's content ends, so
        that the model continues it. `variables` cannot replace what every template is given.
        Whether and where the model sees `tools` is the template's decision.
        """
        if self._wants_short_ids:
            messages = [with_short_ids(message) for message in messages]
        given = {"variables": variables or {}, "messages": messages, "tools": tools or None}
        text_of = partial(
            self._text,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
        )
        mark = self._marks.mark_for(given)
        text = self._marked_text(given, mark, text_of) if mark else text_of(given)
        return self._control.split(text, mark)

    def _marked_text(self, given: Given, mark: str, text_of: Callable[[Given], str]) -> str:
        """With marks in all that only looks like a control token, or could become part of one.

        A template may compare a short string that is near a token, such as a mode named `think`;
        then that is left as it is.
        """

        def rendered(*, near: bool) -> str:
            text = text_of(self._marks.marked(given, mark, near=near))
            return text.replace(escaped(mark), mark)

        text = rendered(near=False)
        try:
            strict = rendered(near=True)
        except BadRequest:
            return text
        return strict if strict.replace(mark, "") == text.replace(mark, "") else text

    def _text(
        self, given: Given, *, add_generation_prompt: bool, continue_final_message: bool
    ) -> str:
        messages = [template_form(one) for one in given["messages"]]
        try:
            text = (self._tool_use if given["tools"] else self._template).render(
                {
                    **given["variables"],
                    **self._tokens,
                    "messages": messages,
                    "tools": given["tools"],
                    "documents": None,
                    "add_generation_prompt": add_generation_prompt,
                }
            )
        except _TemplateRefused as refused:
            raise BadRequest(
                f"the model's chat template refuses these messages: {refused}", param="messages"
            ) from None
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError):
            # The messages of these may quote the prompt.
            raise BadRequest(
                "the model's chat template cannot render these messages", param="messages"
            ) from None
        return _cut_behind(text, messages[-1]["content"]) if continue_final_message else text


class _TemplateRefused(jinja2.TemplateError):
    """The template called `raise_exception`."""


def _raise_exception(message: str) -> NoReturn:
    raise _TemplateRefused(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )
    # Plain JSON: jinja2's own filter escapes for HTML, which models never saw in training.
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _compiled(source: str) -> jinja2.Template:
    try:
        return _environment().from_string(source)
    except jinja2.TemplateError as error:
        raise TemplateBroken(f"the chat template does not compile: {error}") from error


def _sources(model_dir: Path, config: dict[str, Any]) -> dict[str, str]:
    """By name: chat_template.jinja when there is one, else what tokenizer_config.json holds."""
    alone = model_dir / "chat_template.jinja"
    if alone.exists():
        try:
            return {"default": alone.read_text(encoding="utf-8")}
        except (OSError, UnicodeDecodeError) as error:
            raise ModelFileBroken(f"{alone}: {error}") from error
    found = config.get("chat_template")
    named = found if isinstance(found, list) else [{"name": "default", "template": found}]
    return {
        entry["name"]: entry["template"]
        for entry in named
        if isinstance(entry, dict)
        and isinstance(entry.get("name"), str)
        and isinstance(entry.get("template"), str)
    }


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """The named special tokens (`bos_token` ...), which templates use."""
    named = {}
    for name, value in config.items():
        content = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            named[name] = content
    return named


def _tokenizer_config(model_dir: Path) -> dict[str, Any]:
    """tokenizer_config.json as it is; empty when there is none. ModelFileBroken for no JSON."""
    path = model_dir / "tokenizer_config.json"
    if not path.exists():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, OSError) as error:
        raise ModelFileBroken(f"{path}: {error}") from error


def _cut_behind(text: str, content: str) -> str:
    """`text` up to the end of the last message's content; templates often trim that content."""
    for wanted in (content, content.rstrip(), content.strip()):
        place = text.rfind(wanted)
        if wanted and place >= 0:
            return text[: place + len(wanted)]
    raise BadRequest("the last message is not in the rendered chat", param="continue_final_message")
