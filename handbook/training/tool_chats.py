"""Dialogues that offer tools: questions, calls, results and answers.

A fact that the handbook states is answered from the handbook. Otherwise the tool that knows the
kind of fact is called, and its result is the answer. If no tool knows the kind or the tool returns
nothing, the answer is that the handbook does not say.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from handbook.training.facts import UNKNOWN, Question, Subject, TopicKind, ask, new_subject, state
from handbook.training.hermes import ToolMessage
from handbook.training.names import NameSource, Split
from handbook.training.text import (
    Handbook,
    missing_fact,
    write_handbook,
    write_question,
    write_small_talk,
)
from handbook.training.tools import (
    LIVE_KINDS,
    NOT_FOUND,
    Tool,
    any_tool,
    getter,
    getter_kind,
    odd_kind,
    result_text,
)

BARE = ("You are a helpful assistant.", "", "", "Answer from the handbook, or with the tools.")
"""System messages of chats without a handbook."""


@dataclass(frozen=True)
class ToolTurn:
    """A question, and the messages up to its answer.

    `sort` is the sort of the called tool, empty without a call. `label` is the source of the
    answer.
    """

    question: Question
    messages: tuple[ToolMessage, ...]
    label: str
    sort: str = ""


@dataclass(frozen=True)
class ToolChat:
    """A system message, which may be empty, with tools and turns."""

    system: str
    tools: tuple[Tool, ...]
    turns: tuple[ToolTurn, ...]

    @property
    def schemas(self) -> list[dict[str, object]]:
        """The tools' JSON schemas, in the form of a request."""
        return [tool.schema for tool in self.tools]

    @property
    def messages(self) -> list[ToolMessage]:
        """The whole chat, in the form of OpenAI's API."""
        start = [{"role": "system", "content": self.system}] if self.system else []
        return start + [message for turn in self.turns for message in turn.messages]


def make_tool_chat(
    seed: int, facts: int = 10, turns: int = 1, split: Split = Split.HELD_OUT
) -> ToolChat:
    """Write the chat of this seed, which is the same on every run and machine."""
    source = NameSource(random.Random(f"tool chat {split.value} {seed}"), split)
    return write_tool_chat(source, facts, turns)


def write_tool_chat(source: NameSource, facts: int, turns: int, most_tools: int = 3) -> ToolChat:
    """Write a chat of `turns` questions over `facts` facts, with tools."""
    handbook = write_handbook(source, facts)
    system = source.pick(BARE) if not facts and source.chance(0.7) else handbook.text
    tools = _offer(source, handbook, most_tools)
    written = tuple(_write_turn(source, handbook, tools) for _ in range(turns))
    return ToolChat(system, tools, written)


def write_bare_chat(source: NameSource, facts: int, turns: int) -> ToolChat:
    """Write a chat without tools whose questions need tools, so that no tool is called."""
    handbook = write_handbook(source, facts)
    system = handbook.text if facts else source.pick(BARE)
    written = tuple(_write_bare_turn(source, handbook) for _ in range(turns))
    return ToolChat(system, (), written)


def _offer(source: NameSource, handbook: Handbook, most: int) -> tuple[Tool, ...]:
    """Offer different tools, at most one of which answers any question."""
    count = 1 if source.chance(0.6) else source.number(1, most)
    tools = [any_tool(source)] if source.chance(0.55) else []
    while len(tools) < count:
        tool = getter(source, getter_kind(source, handbook.facts))
        known = {other.kind.name for other in tools if other.kind}
        if tool.kind and tool.kind.name not in known:
            tools.append(tool)
    source.rng.shuffle(tools)
    return tuple(tools)


def _write_turn(source: NameSource, handbook: Handbook, tools: tuple[Tool, ...]) -> ToolTurn:
    draw = source.rng.random()
    if draw < 0.03:
        return _answered(write_small_talk(source), "talk")
    if draw < 0.4 and handbook.facts:
        question = write_question(source, handbook)
        if question.answer != UNKNOWN:
            return _answered(question, "stated")
    if draw < 0.85:
        return _called(source, handbook, source.pick(tools), tools)
    kind, subject = missing_fact(source, handbook)
    tool = _knowing(kind, tools)
    if tool is None:
        return _answered(ask(source, kind, subject, UNKNOWN), "no tool")
    return _result(source, tool, kind, subject)


def _write_bare_turn(source: NameSource, handbook: Handbook) -> ToolTurn:
    draw = source.rng.random()
    if draw < 0.05:
        return _answered(write_small_talk(source), "talk")
    if draw < 0.3 and handbook.facts:
        question = write_question(source, handbook)
        return _answered(question, "no tool" if question.answer == UNKNOWN else "stated")
    kind, subject = missing_fact(source, handbook)
    if draw < 0.75:
        kind = (
            source.pick(LIVE_KINDS) if source.chance(0.6) else getter_kind(source, handbook.facts)
        )
        subject = _unstated(source, handbook, kind)
    elif draw < 0.85:
        kind = odd_kind(source, subject.topic)
    return _answered(ask(source, kind, subject, UNKNOWN), "no tool")


def _knowing(kind: TopicKind, tools: tuple[Tool, ...]) -> Tool | None:
    own = [tool for tool in tools if tool.kind and tool.kind.name == kind.name]
    return next(iter(own + [tool for tool in tools if tool.kind is None]), None)


def _called(
    source: NameSource, handbook: Handbook, tool: Tool, tools: tuple[Tool, ...]
) -> ToolTurn:
    if tool.kind is None:
        kind, subject = missing_fact(source, handbook)
        draw = source.rng.random()
        if draw < 0.15:
            kind = source.pick(LIVE_KINDS)
            subject = new_subject(source, kind.topic)
        elif draw < 0.35:
            kind = odd_kind(source, subject.topic)
    else:
        kind, subject = tool.kind, _unstated(source, handbook, tool.kind)
    return _result(source, _knowing(kind, tools) or tool, kind, subject)


def _unstated(source: NameSource, handbook: Handbook, kind: TopicKind) -> Subject:
    known = [fact.subject for fact in handbook.facts if fact.subject.topic == kind.topic]
    near = [subject for subject in known if (kind.name, subject.name) not in handbook.keys]
    if near and source.chance(0.5):
        return source.pick(near)
    while True:
        subject = new_subject(source, kind.topic)
        if (kind.name, subject.name) not in handbook.keys:
            return subject


def _answered(question: Question, label: str) -> ToolTurn:
    return ToolTurn(question, (_user(question), _assistant(question.answer)), label)


def _result(source: NameSource, tool: Tool, kind: TopicKind, subject: Subject) -> ToolTurn:
    question = ask(source, kind, subject, UNKNOWN)
    call = {"type": "function", "function": tool.call(question)}
    answer, returned = UNKNOWN, source.pick(NOT_FOUND)
    if source.chance(0.85):
        fact = state(source, kind, subject, lines=True)
        answer = fact.value
        returned = result_text(source, tool, question, fact.value, fact.sentence)
    messages = (
        _user(question),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": returned},
        _assistant(answer),
    )
    label = "nothing found" if answer == UNKNOWN else "result"
    return ToolTurn(question, messages, label, tool.sort)


def _user(question: Question) -> ToolMessage:
    return {"role": "user", "content": question.text}


def _assistant(text: str) -> ToolMessage:
    return {"role": "assistant", "content": text}
