"""The parsers of a model's answers, and the grammars that answers must follow.

The formats of a model's calls and reasoning are chosen once, from the chat template or by the
operator.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from engine.link.messages import Grammar
from gateway.errors import BadRequest
from gateway.prompts.form_length import check_length
from gateway.prompts.generation_request import AnswerForm
from gateway.prompts.templates.chat_template import ChatTemplate
from gateway.prompts.tokens.tokenizer import Tokenizer
from gateway.turn_formats.call_limit import CallLimit
from gateway.turn_formats.choose import reasoning_format, tool_format
from gateway.turn_formats.grammar import GrammarTooLong
from gateway.turn_formats.reading import TurnReader
from gateway.turn_formats.reasoning import ReasoningFormat
from gateway.turn_formats.shapes.schemas import properties_of
from gateway.turn_formats.structural_tag import StructuralTag
from gateway.turn_formats.turn_format import ToolFormat, ToolSpec, TurnParser

_START = re.compile(r"^start:", re.MULTILINE)
_TYPES = {"string", "number", "integer", "boolean", "array", "object", "null"}


@dataclass(frozen=True, slots=True)
class AnswerForms:
    """The answer formats of one model: tool calls and reasoning. None: an unknown format."""

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None
    special_tokens: Mapping[str, int] = field(default_factory=dict)
    # whether the chat template or `tools.tools_text` shows tools to the model
    are_tools_shown: bool = True

    @classmethod
    def of(
        cls, template: ChatTemplate | None, tokenizer: Tokenizer, tool_format_name: str | None
    ) -> AnswerForms:
        """Choose a model's formats by its template; raise UnknownToolFormat for an unknown name."""
        shown = None if template is None else template.shown
        tokens = tokenizer.grammar_tokens()
        tools = tool_format(shown, tool_format_name, tokens)
        shows_tools = template is None or template.shows_tools
        is_told = shows_tools or (tools is not None and tools.tools_text is not None)
        return cls(tools, reasoning_format(shown), tokens, is_told)

    @property
    def markers(self) -> frozenset[str]:
        """The special tokens that a parser must see."""
        formats = [one for one in (self.tools, self.reasoning) if one is not None]
        return frozenset(marker for one in formats for marker in one.markers)

    def check(self, form: AnswerForm) -> None:
        """Raise BadRequest for tools that the model is not shown, or cannot call."""
        if form.may_call and self.tools is None:
            raise BadRequest(
                '`tools` is not supported unless `tool_choice` is "none", since the model\'s chat '
                "template shows no known form of calls; its operator can name a form by "
                "--tool-format, or a template by --chat-template",
                code="unsupported_parameter",
                param="tools",
            )
        if form.may_call and not self.are_tools_shown:
            raise BadRequest(
                "the model's chat template shows no tools, so they could not be called; its "
                "operator can name one that does by --chat-template",
                code="unsupported_parameter",
                param="tools",
            )

    def parser(
        self, form: AnswerForm, prompt: str, prefill: str = ""
    ) -> Callable[[], TurnParser] | None:
        """Return a maker of parsers for answers to a chat.

        `prompt` is the end of the chat's rendered text. The answer continues `prefill`, which
        follows `prompt`. Returns None if the answer is plain text.
        """
        make = self._turn_parser(form, prompt, prefill)
        most = form.most_calls if form.may_call else None
        if make is None or most is None:
            return make
        return lambda: CallLimit(make(), most)

    def _turn_parser(
        self, form: AnswerForm, prompt: str, prefill: str
    ) -> Callable[[], TurnParser] | None:
        reasoning, answer = self.reasoning, self._answer_parser(form, prompt)
        if reasoning is None:
            return answer
        make, is_open = answer or TurnReader, reasoning.is_open(prompt, prefill)
        marks = () if self.tools is None or answer is None else self.tools.call_marks
        return lambda: reasoning.parser(make, is_open=is_open, calls=marks)

    def _answer_parser(self, form: AnswerForm, prompt: str) -> Callable[[], TurnParser] | None:
        """Return a maker of parsers for the text after reasoning, or None for plain text."""
        tools = self.tools
        if tools is None or not (form.may_call or tools.marks_text):
            return None
        make = partial(tools.parser, form.tools if form.may_call else ())
        opened = tools.opened(prompt)
        return partial(_having_read, make, opened) if opened else make

    def grammar(self, form: AnswerForm, prompt: str | None, prefill: str = "") -> Grammar | None:
        """Return the grammar of the answer, or None for a free answer.

        `prompt` is the rendered chat. `prompt` is None for other prompts. Raises BadRequest for a
        grammar that is too long to write, or to send with each choice.
        """
        param = self.grammar_param(form)
        try:
            grammar = self._whole(form, prompt, prefill)
        except GrammarTooLong as error:
            raise BadRequest(str(error), param=param) from None
        if grammar is not None:
            check_length("the grammar", len(grammar.text), param)
        return grammar

    def _whole(self, form: AnswerForm, prompt: str | None, prefill: str) -> Grammar | None:
        """Write the grammar of a whole answer, with the reasoning before it."""
        grammar = self._of_turn(form, None if prompt is None else prompt + prefill)
        if grammar is None or prompt is None:
            return grammar
        grammar = self._resumed(grammar, prompt + prefill)
        if self.reasoning is None or self.reasoning.is_closed(prompt, prefill):
            return grammar
        is_open = self.reasoning.is_open(prompt, prefill)
        lark = self.reasoning.before(_as_lark(grammar), self.special_tokens, is_open=is_open)
        return Grammar("lark", lark)

    def _resumed(self, grammar: Grammar, prompt: str) -> Grammar:
        """Write the grammar of an answer that continues `prompt`, perhaps within a thought."""
        if self.tools is None:
            return grammar
        turn = _as_lark(grammar)
        rest = self.tools.resumed(turn, prompt)
        return grammar if rest == turn else Grammar("lark", rest)

    def grammar_param(self, form: AnswerForm) -> str | None:
        """Return the request field that the grammar comes from."""
        calls_alone = form.may_call and form.least_calls
        return "tools" if calls_alone or form.text is None else form.text_param

    def _of_turn(self, form: AnswerForm, prompt: str | None) -> Grammar | None:
        if self.tools is None or not form.may_call:
            return self._of_text(form, prompt)
        if form.least_calls:
            calls = self.tools.call_grammar(
                form.tools, at_least=form.least_calls, at_most=form.most_calls
            )
            return Grammar("lark", calls)
        if form.text is None and not any(tool.strict for tool in form.tools):
            return None
        tools = [tool if tool.strict else _loose(tool) for tool in form.tools]
        text = self._of_text(form, prompt)
        if text is not None:
            calls = self.tools.call_grammar(tools, at_most=form.most_calls)
            return Grammar("lark", _either(_as_lark(text), calls))
        return Grammar("lark", self.tools.text_grammar(tools))

    def _of_text(self, form: AnswerForm, prompt: str | None) -> Grammar | None:
        # the structural tag itself has the delimiters of the turn
        if isinstance(form.text, StructuralTag):
            return Grammar("lark", form.text.lark(self.special_tokens))
        if form.text is None or self.tools is None or prompt is None:
            return form.text
        text = _as_lark(form.text)
        around = self.tools.around(text, prompt)
        return form.text if around == text else Grammar("lark", around)


def _having_read(make: Callable[[], TurnParser], text: str) -> TurnParser:
    parser = make()
    parser.feed(text)
    return parser


def _loose(tool: ToolSpec) -> ToolSpec:
    """Keep only the part of the schema of `tool` that is needed to write and read calls."""
    named = properties_of(tool)
    if named is None:
        return msgspec.structs.replace(tool, parameters={"type": "object"})
    typed = {name: {"type": kind} if kind else {} for name, kind in _kinds(named)}
    return msgspec.structs.replace(tool, parameters={"type": "object", "properties": typed})


def _kinds(properties: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    for name, schema in properties.items():
        kind = schema.get("type") if isinstance(schema, dict) else None
        yield name, kind if isinstance(kind, str) and kind in _TYPES else None


def _either(text: str, calls: str) -> str:
    return f"start: text | calls\n{_START.sub('text:', text)}\n{_START.sub('calls:', calls)}"


def _as_lark(grammar: Grammar) -> str:
    """Write `grammar` in Lark with the rule `start`, so that other grammars can include it."""
    if grammar.kind == "lark":
        return grammar.text
    return f"start: %grammar {msgspec.json.encode(grammar).decode()}\n"
