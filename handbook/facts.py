"""Facts and the questions that ask for them: one draw from the tables of `handbook.topics` each.

A fact remembers what it is about, so that a question can be phrased quite differently from the
sentence that states it. Knows nothing of handbooks: which facts stand together is `handbook.text`.
"""

from __future__ import annotations

from dataclasses import dataclass

from handbook import values
from handbook.names import Source
from handbook.topics import ASKS, FACTS, FREE_HEADS, FREE_MODIFIERS, KINDS, LINES, TOPICS, Kind

UNKNOWN = "The handbook does not say."
"""The answer to a question whose fact is not in the handbook."""


@dataclass(frozen=True)
class Subject:
    """Who or what a fact is about: a topic's name and the subject's own."""

    topic: str
    name: str


@dataclass(frozen=True)
class Fact:
    """One thing a handbook states: `sentence` says that the `kind` of `subject` is `value`."""

    kind: Kind
    subject: Subject
    value: str
    sentence: str

    @property
    def key(self) -> tuple[str, str]:
        """What makes two facts answer the same question: the kind and the subject's name."""
        return self.kind.name, self.subject.name


@dataclass(frozen=True)
class Question:
    """What a user asks, the one right answer, and the kind of fact asked for (for reports)."""

    text: str
    answer: str
    kind: str


def free_kind(source: Source) -> Kind:
    """A kind nobody listed, such as "the cellar ticket", of any topic and any sort of value."""
    noun = f"{source.pick(FREE_MODIFIERS)} {source.pick(FREE_HEADS)}"
    value = values.ANYTHING[source.number(0, len(values.ANYTHING) - 1)]
    return Kind(noun, source.pick(tuple(TOPICS)), (noun,), value)


def listed_kind(source: Source) -> Kind:
    """One of the kinds with phrasings of their own."""
    return KINDS[source.number(0, len(KINDS) - 1)]


def new_subject(source: Source, topic: str) -> Subject:
    """A subject of `topic`, drawn afresh."""
    return Subject(topic, TOPICS[topic].draw(source))


def state(source: Source, kind: Kind, subject: Subject, lines: bool) -> Fact:
    """A fact with a fresh value; where `lines` holds it may be a bare line, not a sentence."""
    value = kind.value(source)
    if kind.facts and source.chance(0.5):
        template = source.pick(kind.facts)
    else:
        template = source.pick(LINES if lines and source.chance(0.5) else FACTS)
    if template.startswith("{v}") and value[0].islower():
        template = FACTS[0]
    return Fact(kind, subject, value, _fill(source, template, kind, subject, value))


def ask(source: Source, kind: Kind, subject: Subject, answer: str) -> Question:
    """A question for the `kind` of `subject`, in any phrasing."""
    own = kind.asks and source.chance(0.5)
    template = source.pick(kind.asks if own else ASKS)
    label = "unknown" if answer == UNKNOWN else kind.name if kind in KINDS else "free"
    return Question(_fill(source, template, kind, subject, ""), answer, label)


def _fill(source: Source, template: str, kind: Kind, subject: Subject, value: str) -> str:
    noun = source.pick(kind.nouns)
    name = source.pick(TOPICS[subject.topic].forms).format(subject.name)
    return template.format(n=noun, N=_capital(noun), s=name, S=_capital(name), v=value)


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
