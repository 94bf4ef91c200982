"""Handbooks of made-up companies, with questions and dialogues about them, from a seed.

A handbook's size is its number of facts. A fact has about 20 tokens.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from handbook.texts.facts import (
    KINDS,
    UNKNOWN,
    Fact,
    Question,
    Subject,
    TopicKind,
    ask,
    free_kind,
    new_subject,
    state,
)
from handbook.texts.filler import HEADINGS, INTRODUCTIONS, filler
from handbook.texts.names import NameSource, company

Message: TypeAlias = dict[str, str]


@dataclass(frozen=True)
class Handbook:
    """A system prompt and its facts. No two facts answer the same question."""

    text: str
    facts: tuple[Fact, ...]

    @cached_property
    def keys(self) -> frozenset[tuple[str, str]]:
        """The (kind, subject) pairs of the handbook's facts."""
        return frozenset(fact.key for fact in self.facts)


def make_handbook(seed: int, facts: int = 40) -> Handbook:
    """Write the handbook of this seed, which is the same on every run and machine.

    With `facts` 0, the handbook has only an introduction.
    """
    source = _source(f"handbook {seed}")
    lines = source.chance(0.6)
    stated = _state_facts(source, facts, lines)
    return Handbook(_lay_out(source, stated, lines), stated)


def make_questions(handbook: Handbook, seed: int, count: int = 1) -> tuple[Question, ...]:
    """Write `count` questions. About one in seven has no answer in the handbook."""
    source = _source(f"questions {seed}")
    return tuple(_ask_any(source, handbook) for _ in range(count))


def make_messages(handbook: Handbook, questions: tuple[Question, ...]) -> list[Message]:
    """Write the chat that asks `questions` in turn, without an answer to the last."""
    messages = [{"role": "system", "content": handbook.text}]
    for question in questions:
        messages.append({"role": "user", "content": question.text})
        messages.append({"role": "assistant", "content": question.answer})
    return messages[:-1] if questions else messages


def _ask_any(source: NameSource, handbook: Handbook) -> Question:
    """Write a question about one of the facts, or about a fact that is not in the handbook."""
    if handbook.facts and source.chance(0.85):
        fact = source.pick(handbook.facts)
        return ask(source, fact.kind, fact.subject, fact.value)
    return ask(source, *_missing_fact(source, handbook), UNKNOWN)


def _source(seed: str) -> NameSource:
    return NameSource(random.Random(f"held-out {seed}"))


def _state_facts(source: NameSource, count: int, lines: bool) -> tuple[Fact, ...]:
    """Draw facts that share subjects and kinds, so that only both together identify a fact."""
    kinds = _choose_kinds(source, count)
    subjects: dict[str, list[Subject]] = {}
    seen: set[tuple[str, str]] = set()
    facts: list[Fact] = []
    while len(facts) < count:
        kind = source.pick(kinds)
        subject = _subject(source, subjects.setdefault(kind.topic, []), kind.topic)
        if (kind.name, subject.name) in seen:
            # All the few kinds of a small topic may be used already. A kind of any topic then ends
            # the loop.
            kinds.append(_any_kind(source, 0.5))
            continue
        seen.add((kind.name, subject.name))
        facts.append(state(source, kind, subject, lines))
    return tuple(facts)


def _choose_kinds(source: NameSource, count: int) -> list[TopicKind]:
    free_share = float(source.pick(("0", "0.2", "0.5", "1")))
    wanted = source.number(2, 4 + count // 3)
    return [_any_kind(source, free_share) for _ in range(wanted)]


def _any_kind(source: NameSource, free_share: float) -> TopicKind:
    return free_kind(source) if source.chance(free_share) else source.pick(KINDS)


def _subject(source: NameSource, known: list[Subject], topic: str) -> Subject:
    if known and source.chance(0.5):
        return source.pick(known)
    subject = new_subject(source, topic)
    if topic == "person" and known and source.chance(0.25):
        subject = _namesake(source, known)
    known.append(subject)
    return subject


def _namesake(source: NameSource, known: list[Subject]) -> Subject:
    first, last = source.pick(known).name.split(" ", 1)
    other_first, other_last = new_subject(source, "person").name.split(" ", 1)
    name = f"{first} {other_last}" if source.chance(0.5) else f"{other_first} {last}"
    return Subject("person", name)


def _missing_fact(source: NameSource, handbook: Handbook) -> tuple[TopicKind, Subject]:
    """Draw a kind and a subject about which the handbook states no fact."""
    while True:
        kind, subject = _near(source, handbook) if handbook.facts else _far(source)
        if (kind.name, subject.name) not in handbook.keys:
            return kind, subject


def _near(source: NameSource, handbook: Handbook) -> tuple[TopicKind, Subject]:
    fact = source.pick(handbook.facts)
    draw = source.rng.random()
    if draw < 0.35:
        return _other_kind(source, handbook, fact), fact.subject
    if draw < 0.55 and fact.kind.topic == "person":
        return fact.kind, _namesake(source, [fact.subject])
    if draw < 0.8:
        return fact.kind, new_subject(source, fact.kind.topic)
    return _far(source)


def _other_kind(source: NameSource, handbook: Handbook, fact: Fact) -> TopicKind:
    for _ in range(4):
        other = source.pick(handbook.facts).kind
        if other.topic == fact.kind.topic and other != fact.kind:
            return other
    listed = [kind for kind in KINDS if kind.topic == fact.kind.topic]
    return free_kind(source) if source.chance(0.3) else source.pick(listed)


def _far(source: NameSource) -> tuple[TopicKind, Subject]:
    kind = _any_kind(source, 0.3)
    return kind, new_subject(source, kind.topic)


def _lay_out(source: NameSource, facts: tuple[Fact, ...], lines: bool) -> str:
    name = company(source)
    parts = [source.pick(INTRODUCTIONS).format(name)] if source.chance(0.9) else []
    ordered = list(facts)
    by_topic = source.chance(0.5)
    if by_topic:
        ordered.sort(key=lambda fact: fact.subject.topic)
    fill = source.rng.random() * 0.35
    bullet = "- " if lines and source.chance(0.4) else ""
    topic = ""
    for fact in ordered:
        if by_topic and fact.subject.topic != topic:
            topic = fact.subject.topic
            parts.append(f"\n{source.pick(HEADINGS[topic])}")
        if source.chance(fill):
            parts.append(filler(source, name))
        parts.append(bullet + fact.sentence)
    return _join(parts, lines)


def _join(parts: list[str], lines: bool) -> str:
    if lines:
        return "\n".join(parts)
    text = " ".join(f"{part}\n" if part.startswith("\n") else part for part in parts)
    return text.replace(" \n", "\n").replace("\n ", "\n")
