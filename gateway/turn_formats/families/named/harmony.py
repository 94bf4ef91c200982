"""Harmony, of gpt-oss: a turn is a series of messages on channels, some with a recipient.

    <|channel|>analysis<|message|>The user asks for ...<|end|>
    <|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json
    <|message|>{"city": "Oslo"}<|call|>

The model writes all of this on one line. The channel `analysis` is reasoning. The channel `final`
is text, and so are messages on `commentary` without a recipient. The recipient may also be before
the channel, or lack `functions.`. The prompt ends with `<|start|>assistant`, so the first message
lacks this beginning. The model stops at `<|call|>`, so a call's arguments may end with the turn.

Text is sent with its whitespace, since there is no whitespace between the markers and a text.
"""

import re
from collections.abc import Sequence
from typing import ClassVar

from gateway.turn_formats.calls import CallReader
from gateway.turn_formats.grammar import ANY_TEXT, GrammarText, checked, repeated
from gateway.turn_formats.pieces import ReasoningPiece, TextPiece
from gateway.turn_formats.reading import SPACE, Kind, Markers, Read
from gateway.turn_formats.shapes.block_format import UnmarkedText
from gateway.turn_formats.turn_format import ToolSpec

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_END, _RETURN, _CALL, _CONSTRAIN = "<|end|>", "<|return|>", "<|call|>", "<|constrain|>"

_ENDS = Markers(_END, _RETURN, _CALL)
_BREAKS = Markers(_END, _RETURN, _CALL, _START, _CHANNEL)
_HEADS = Markers(_START, _CHANNEL, _MESSAGE, " to=", "to=")
_WITHIN_HEADS = (_START, _CHANNEL, _CONSTRAIN)
_MARKS = Markers(*_WITHIN_HEADS, _MESSAGE, _END, _RETURN, _CALL)
_PLAIN = re.compile(r"[^<]*")
_TO = re.compile(r"to=([^\s<]+)")
_FINAL = "final"
_CHANNELS: dict[str, Kind] = {
    "analysis": ReasoningPiece,
    _FINAL: TextPiece,
    "commentary": TextPiece,
}
_NO_TOOLS = ("assistant", "user", "all")  # recipients of texts
_TYPE = re.compile(rf"{re.escape(_CONSTRAIN)}\s*\w*")
_CHANNEL_NAME = re.compile(rf"{re.escape(_CHANNEL)}\s*(\w+)")
_OPENED = re.compile(
    rf"{re.escape(_START)}assistant([^<]*{re.escape(_CHANNEL)}[^<]*{re.escape(_MESSAGE)})\Z"
)
_TEXT_START = re.compile(r"^start:", re.MULTILINE)
_MAX_HEAD = 1024
_BETWEEN = f"{_START}assistant"


class HarmonyFormat(UnmarkedText):
    """The `ToolFormat` of gpt-oss. Its parser also reads reasoning."""

    name: ClassVar[str] = "harmony"
    reads_reasoning: ClassVar[bool] = True
    marks_text: ClassVar[bool] = True
    markers: ClassVar[tuple[str, ...]] = (
        *(_START, _CHANNEL, _MESSAGE),
        *(_END, _RETURN, _CALL, _CONSTRAIN),
    )
    call_marks: ClassVar[tuple[str, ...]] = ()

    def is_in(self, template: str) -> bool:
        return all(mark in template for mark in (_CHANNEL, _MESSAGE, "to=", "functions."))

    def parser(self, tools: Sequence[ToolSpec]) -> CallReader:
        return _HarmonyReader(tools)

    def opened(self, prompt: str) -> str:
        """Return the head of the message that a prompt leaves open, or ""."""
        found = _OPENED.search(prompt)
        return "" if found is None else found[1]

    def resumed(self, turn: str, prompt: str) -> str:
        """Write the grammar of the rest of an open thought, if any, then `turn`."""
        if not _is_in_thought(prompt):
            return turn
        grammar = GrammarText(self.special_tokens, prefix="resumed")
        start = f"{grammar.up_to(_END)} {grammar.spelled(_BETWEEN)} turn"
        return f"{grammar.source(start)}{_TEXT_START.sub('turn:', turn, count=1)}"

    def call_grammar(
        self, tools: Sequence[ToolSpec], *, at_least: int = 1, at_most: int | None = None
    ) -> str:
        """Write the grammar of optional reasoning, then `at_least` (>= 1) to `at_most` calls."""
        checked(tools, at_least, at_most)
        grammar = GrammarText(self.special_tokens)
        between = grammar.spelled(f"{_CALL}{_BETWEEN}")
        calls = repeated(_call(grammar, tools), between, at_least, at_most)
        return grammar.source(f"{_thoughts(grammar)} {calls} ({grammar.spelled(_CALL)})?")

    def text_grammar(self, tools: Sequence[ToolSpec]) -> str:
        """Write the grammar of messages on all channels, and calls that follow tools' schemas."""
        grammar = GrammarText(self.special_tokens)
        text = f"({grammar.up_to(_END)} | {ANY_TEXT})"
        ways = [f"{_said(grammar, channel)} {text}" for channel in _CHANNELS]
        if tools:
            ways.append(f"{_call(grammar, tools)} ({grammar.spelled(_CALL)})?")
        message = grammar.one_of("message", ways)
        return grammar.source(repeated(message, grammar.spelled(_BETWEEN), 1, None))

    def around(self, text: str, prompt: str) -> str:
        """Write the grammar of optional reasoning, then `text` on `final`.

        Returns `text` itself if the prompt ends within a message that is not reasoning.
        """
        if not (prompt.endswith(_BETWEEN) or _is_in_thought(prompt)):
            return text
        grammar = GrammarText(self.special_tokens, prefix="final")
        start = f"{_thoughts(grammar)} {_said(grammar, 'final')} said"
        return f"{grammar.source(start)}{_TEXT_START.sub('said:', text, count=1)}"


def _is_in_thought(prompt: str) -> bool:
    head, found, said = prompt.rpartition(_MESSAGE)
    is_over = any(end in said for end in (_END, _RETURN, _CALL))
    return bool(found) and head.endswith(f"{_CHANNEL}analysis") and not is_over


def _thoughts(grammar: GrammarText) -> str:
    """Write the grammar of reasoning messages, each with the next message's start."""
    thought = f"{_said(grammar, 'analysis')} {grammar.up_to(_END)} {grammar.spelled(_BETWEEN)}"
    return f"({thought})*"


def _said(grammar: GrammarText, channel: str) -> str:
    return grammar.spelled(f"{_CHANNEL}{channel}{_MESSAGE}")


def _call(grammar: GrammarText, tools: Sequence[ToolSpec]) -> str:
    """Write the grammar of a call without its end token, at which the model stops."""
    ways = []
    for tool in tools:
        recipient, json_follows = f"to=functions.{tool.name}", f" {_CONSTRAIN}json{_MESSAGE}"
        heads = (
            grammar.spelled(f"{_CHANNEL}commentary {recipient}{json_follows}"),
            grammar.spelled(f" {recipient}{_CHANNEL}commentary{json_follows}"),
        )
        ways.append(f"({' | '.join(heads)}) {grammar.arguments(tool)}")
    return grammar.one_of("call", ways)


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return next(iter([*pattern.finditer(text)][-1:]), None)


class _HarmonyReader(CallReader):
    def turn(self) -> Read[None]:
        while (yield from self.peek()):
            if (yield from self.literal(_HEADS)):
                yield from self._message()
            else:  # the prompt ended within a message
                yield from self._body(TextPiece)

    def _message(self) -> Read[None]:
        head, mark = yield from self._head()
        channel, to = _last(_CHANNEL_NAME, head), _last(_TO, head)
        to = None if to is not None and to[1] in _NO_TOOLS else to
        name = self.known(to[1]) if to else None
        kind = _CHANNELS.get(channel[1]) if channel else TextPiece
        is_known = name is not None or (to is None and kind is not None)
        if not is_known or (not mark and (yield from self.peek())):
            yield from self._as_text()
        elif name is not None:
            yield from self._call(name, mark)
        else:
            self.drop()
            if mark == _MESSAGE:
                yield from self._body(kind or TextPiece)
            elif channel is not None and channel[1] == _FINAL and not self.is_cut:
                self._forgotten(head[channel.end() :])

    def _head(self) -> Read[tuple[str, str]]:
        """Read a message's head; return the head and the control token after it ("" if absent)."""
        parts = [self.held()]
        if parts == [_MESSAGE]:
            return "", _MESSAGE
        while sum(map(len, parts)) < _MAX_HEAD:
            parts.append((yield from self.run(_PLAIN, _MAX_HEAD)))
            mark = yield from self.literal(_MARKS)
            if mark not in _WITHIN_HEADS:
                return "".join(parts), mark
            parts.append(mark)
        return "".join(parts), ""

    def _forgotten(self, head: str) -> None:
        """Send a text in a message's head, where the model forgot the mark before the text."""
        self.hold(_TYPE.sub("", head).strip(SPACE))
        self.send(TextPiece)

    def _body(self, kind: Kind) -> Read[None]:
        found = yield from self.until(_BREAKS, kind, strips=False)
        if found in (_START, _CHANNEL):
            self.unread(found)
        self.drop() if found else self.send(kind)

    def _as_text(self) -> Read[None]:
        self.send(TextPiece)
        yield from self.until(_ENDS, TextPiece, strips=False)
        self.send(TextPiece)

    def _call(self, name: str, mark: str) -> Read[None]:
        """Read and send a call's arguments. A message with only a head has empty arguments."""
        if mark != _MESSAGE:
            if not self.is_cut:
                self.whole_call(name, "{}")
            self.drop()
            return
        if not (yield from self.call_of(name, _ENDS)):
            yield from self._as_text()
            return
        yield from self.spaces()
        yield from self.closing(_ENDS)
        self.drop()
