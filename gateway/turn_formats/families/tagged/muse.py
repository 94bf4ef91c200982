"""Muse Glimmer: messages to recipients, of which calls are messages to a tool.

    to=self<|message|>The user asks for the weather.<|eom|>
    <|start|>assistant to=get_weather<|message|><atem:function_calls>
    <atem:invoke name="get_weather">
    <atem:parameter name="city">Oslo</atem:parameter>
    </atem:invoke>
    </atem:function_calls><|eot|>

The model writes a space before each `to=`, and nothing between the messages. A text is a message to
`user`. The prompt ends with `<|start|>assistant`.
"""

import re
from collections.abc import Sequence
from typing import ClassVar

from gateway.turn_formats.grammar import ANY_TEXT, GrammarText, checked, repeated
from gateway.turn_formats.shapes.tagged import TaggedFormat
from gateway.turn_formats.shapes.tags import Tags
from gateway.turn_formats.turn_format import ToolSpec

_BEGIN, _HEAD_END, _END = "<|start|>assistant", "<|message|>", "<|eom|>"
_TO = "to="
_TEXT_START = re.compile(r"^start:", re.MULTILINE)


class MuseFormat(TaggedFormat):
    """The `ToolFormat` of Muse Glimmer."""

    name: ClassVar[str] = "muse"
    marks_text: ClassVar[bool] = True
    tags: ClassVar[Tags] = Tags(
        tokens=("<|start|>", _HEAD_END, _END),
        block="<atem:function_calls>",
        call='<atem:invoke name="',
        named='">',
        key='<atem:parameter name="',
        keyed=('">',),
        value_end="</atem:parameter>",
        call_end="</atem:invoke>",
        block_end="</atem:function_calls>",
    )

    def around_text(self, tools: Sequence[ToolSpec]) -> Sequence[str]:
        """List the markers that begin messages, with or without the previous message's end."""
        heads = [f"{_TO}{name}{_HEAD_END}" for name in ("user", *(one.name for one in tools))]
        spaced = [f" {head}" for head in heads]
        return (*heads, *spaced, *(f"{end}{_BEGIN}{one}" for one in spaced for end in ("", _END)))

    def call_grammar(
        self, tools: Sequence[ToolSpec], *, at_least: int = 1, at_most: int | None = None
    ) -> str:
        checked(tools, at_least, at_most)
        grammar = GrammarText(self.special_tokens)
        between = grammar.spelled(_END + _BEGIN)
        return grammar.source(repeated(self._message(grammar, tools), between, at_least, at_most))

    def text_grammar(self, tools: Sequence[ToolSpec]) -> str:
        """Write the grammar of messages that are texts, or calls that follow tools' schemas."""
        grammar = GrammarText(self.special_tokens)
        end = grammar.spelled(_END)
        ways = [f"{_head(grammar, 'user')} ({grammar.up_to(_END)} | {ANY_TEXT})"]
        ways += [f"{self._message(grammar, tools)} ({end})?"] if tools else []
        message = grammar.one_of("message", ways)
        return grammar.source(repeated(message, grammar.spelled(_BEGIN), 1, None))

    def around(self, text: str, prompt: str) -> str:
        """Write the grammar of `text`, as a message to the user unless a message is open."""
        if not prompt.endswith((_BEGIN, f"{_TO}self{_HEAD_END}")):
            return text
        grammar = GrammarText(self.special_tokens, prefix="message")
        start = grammar.source(f"{_head(grammar, 'user')} said")
        return f"{start}{_TEXT_START.sub('said:', text, count=1)}"

    def _message(self, grammar: GrammarText, tools: Sequence[ToolSpec]) -> str:
        ways = []
        for tool in tools:
            block = grammar.spelled(self.trigger + self.opens)
            call = f"{block} {self.call(grammar, tool)} {grammar.spelled(self.closes)}"
            ways.append(f"{_head(grammar, tool.name)} {call}")
        return grammar.one_of("call", ways)


def _head(grammar: GrammarText, recipient: str) -> str:
    """Write the grammar of a message's head. The space before the head may be in the prompt."""
    return f'" "? {grammar.spelled(f"{_TO}{recipient}{_HEAD_END}")}'
