"""Facts and questions about them: tables of their kinds, and random draws.

Placeholders in the tables: `{n}` is the noun of the kind, `{s}` the subject and `{v}` the value.
`{N}` and `{S}` are the noun and subject at the start of a sentence. A fact keeps its kind and
subject, so that a question can be phrased unlike the sentence that states the fact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from handbook.texts import names, values
from handbook.texts.names import Draw, NameSource


@dataclass(frozen=True)
class Topic:
    """A type of subjects, such as people: how names are drawn, how a sentence refers to one."""

    draw: Draw
    forms: tuple[str, ...]


@dataclass(frozen=True)
class TopicKind:
    """An attribute of a topic: its nouns (synonyms), its values and its own phrasings."""

    name: str
    topic: str
    nouns: tuple[str, ...]
    value: Draw
    facts: tuple[str, ...] = ()
    asks: tuple[str, ...] = ()


TOPICS: Mapping[str, Topic] = {
    "city": Topic(names.city, ("{}", "{}", "the {} office")),
    "person": Topic(names.person, ("{}",)),
    "department": Topic(
        values.one_of(names.DEPARTMENTS), ("the {} team", "the {} department", "{}")
    ),
    "product": Topic(names.product, ("the {}", "{}")),
    "room": Topic(
        names.real_or_made_up(names.ROOMS), ("meeting room {}", "the {} room", "room {}")
    ),
    "client": Topic(names.company, ("{}", "{}", "the client {}")),
    "project": Topic(names.real_or_made_up(names.PROJECTS), ("project {}", "the {} project")),
    "machine": Topic(names.real_or_made_up(names.MACHINES), ("server {}", "the server {}", "{}")),
}

KINDS = (
    TopicKind("support code", "city", ("support code", "helpdesk code"), values.code),
    TopicKind(
        "door code", "city", ("door code", "entry code"), values.four_digits,
        ("The door of {s} opens with the code {v}.", "To enter {s}, type {v} at the door."),
        ("Which code opens the door of {s}?", "How do I get into {s}?"),
    ),
    TopicKind(
        "manager", "city", ("manager", "office manager"), names.person,
        ("{v} manages {s}.", "{s} is managed by {v}.", "{S} is run by {v}."),
        ("Who manages {s}?", "Who is the manager of {s}?", "Who runs {s}?"),
    ),
    TopicKind(
        "wifi", "city", ("wifi password", "Wi-Fi password", "wireless password"), values.password,
        ("Guests in {s} use the wifi password {v}.",),
        ("Which wifi password do guests in {s} use?",),
    ),
    TopicKind(
        "hours", "city", ("opening hours", "opening times"), values.hours,
        ("{S} is open from {v}.", "You can visit {s} from {v}."),
        ("When is {s} open?", "What are the opening hours of {s}?", "When can I visit {s}?"),
    ),
    TopicKind(
        "address", "city", ("address", "street address"), values.street,
        ("{S} is at {v}.", "You will find {s} at {v}."),
        ("Where is {s}?", "Where do I find {s}?"),
    ),
    TopicKind("emergency", "city", ("emergency number", "emergency line"), values.telephone),
    TopicKind(
        "extension", "person", ("extension", "phone extension"), values.extension,
        ("{S} answers on extension {v}.", "Dial {v} to reach {s}.", "{S}, extension {v}."),
        ("On which extension can I reach {s}?", "What do I dial to reach {s}?"),
    ),
    TopicKind("parking", "person", ("parking space", "parking spot"), values.parking_space,
         ("{S} parks in space {v}.",), ("Where does {s} park?",)),
    TopicKind("birthday", "person", ("birthday",), values.date,
         ("{S} has a birthday on {v}.",), ("When is {s}'s birthday?",)),
    TopicKind("locker", "person", ("locker", "locker number"), values.code,
         ("{S} keeps things in locker {v}.",), ("Which locker does {s} have?",)),
    TopicKind(
        "mentor", "person", ("mentor",), names.person,
        ("{v} mentors {s}.", "{S} is mentored by {v}."),
        ("Who mentors {s}?", "Who is the mentor of {s}?"),
    ),
    TopicKind(
        "floor", "department", ("floor",), values.up_to(40),
        ("{S} sits on floor {v}.", "{S} is on floor {v}.", "You find {s} on floor {v}."),
        ("On which floor is {s}?", "Where does {s} sit?", "Which floor is {s} on?"),
    ),
    TopicKind("mailbox", "department", ("email address", "mailbox"), values.email,
         ("Write to {s} at {v}.",), ("How do I write to {s}?",)),
    TopicKind(
        "head", "department", ("head", "lead"), names.person,
        ("{v} leads {s}.", "{S} is led by {v}."), ("Who leads {s}?", "Who is the head of {s}?"),
    ),
    TopicKind("badge", "department", ("badge colour", "badge color"), values.one_of(values.COLOURS),
         ("People in {s} wear {v} badges.",), ("Which badges do people in {s} wear?",)),
    TopicKind("meeting", "department", ("weekly meeting",), values.one_of(values.WEEKDAYS),
         ("{S} meets every {v}.",), ("When does {s} meet?", "On which day does {s} meet?")),
    TopicKind(
        "price", "product", ("price", "list price"), values.price,
        ("{S} costs {v}.", "{S} sells for {v}.", "We sell {s} for {v}."),
        ("How much is {s}?", "How much does {s} cost?", "What does {s} cost?"),
    ),
    TopicKind("warranty", "product", ("warranty", "guarantee"), values.span,
         ("{S} has a warranty of {v}.",), ("How long is the warranty of {s}?",)),
    TopicKind("part", "product", ("part number", "order number"), values.part_number,
         ("Order {s} as {v}.",), ("How do I order {s}?",)),
    TopicKind("supplier", "product", ("supplier",), names.company,
         ("{v} supplies {s}.", "We buy {s} from {v}."),
         ("Who supplies {s}?", "Where do we buy {s}?")),
    TopicKind("seats", "room", ("capacity", "number of seats"), values.up_to(60),
         ("{S} seats {v} people.", "{S} has {v} seats."),
         ("How many people fit in {s}?", "How many seats does {s} have?")),
    TopicKind("account", "client", ("account number", "customer number"), values.code),
    TopicKind("contact", "client", ("contact", "contact person"), names.person,
         ("At {s}, speak to {v}.",), ("Whom do I speak to at {s}?",)),
    TopicKind("delivery", "client", ("delivery day",), values.one_of(values.WEEKDAYS),
         ("We deliver to {s} on {v}.",), ("When do we deliver to {s}?",)),
    TopicKind("deadline", "project", ("deadline", "due date"), values.date,
         ("{S} is due on {v}.",), ("When is {s} due?",)),
    TopicKind("budget", "project", ("budget",), values.price,
         ("{S} may spend {v}.",), ("How much may {s} spend?",)),
    TopicKind("ip", "machine", ("IP address", "network address"), values.network_address,
         ("{S} answers at {v}.",), ("At which address does {s} answer?",)),
    TopicKind("restart", "machine", ("restart time",), values.time_of_day,
         ("{S} restarts at {v}.",), ("When does {s} restart?",)),
    TopicKind("lunch", "city", ("lunch", "canteen dish"), values.one_of(values.DISHES),
         ("The canteen in {s} serves {v}.",), ("What does the canteen in {s} serve?",)),
)  # fmt: skip

FREE_MODIFIERS = (
    "vault", "tea", "spare", "backup", "north", "main", "second", "old", "cellar", "roof", "lobby",
    "archive", "secret", "gate", "alarm", "safe", "night", "summer", "winter", "copper", "glass",
    "storage", "visitor", "first", "last", "new", "master", "reserve", "bicycle", "garden", "radio",
    "test", "private", "public", "river", "paper", "silver", "default", "favourite", "launch",
)  # fmt: skip
FREE_HEADS = (
    "code", "number", "key", "name", "contact", "label", "password", "slot", "limit", "word",
    "seal", "drawer", "tag", "box", "ticket", "signal", "pin", "colour", "date", "sign", "token",
    "address", "phrase", "reference",
)  # fmt: skip

FACTS = (
    "The {n} for {s} is {v}.", "The {n} for {s} is {v}.", "The {n} for {s} is {v}.",
    "The {n} of {s} is {v}.", "The {n} of {s} is {v}.", "{S}'s {n} is {v}.",
    "{N} for {s}: {v}.", "{N} of {s}: {v}.", "For {s}, the {n} is {v}.", "{S} has the {n} {v}.",
    "Please note that the {n} for {s} is {v}.", "Remember: {s}'s {n} is {v}.",
    "Use {v} as the {n} for {s}.", "{v} is the {n} of {s}.", "{v} is the {n} for {s}.",
    "At present {v} is the {n} of {s}.", "The current {n} for {s} is {v}.",
)  # fmt: skip
LINES = (
    "{S}: {n} {v}", "{S}, {n}: {v}", "{N} for {s}: {v}", "{N} of {s}: {v}", "{S} {n}: {v}",
    "{S} | {n} | {v}", "{S} {n} = {v}", "{N}, {s}: {v}",
)  # fmt: skip
ASKS = (
    "What is the {n} for {s}?", "What is the {n} for {s}?", "What is the {n} for {s}?",
    "What is the {n} of {s}?", "What is the {n} of {s}?", "What is {s}'s {n}?",
    "What's the {n} for {s}?", "What's {s}'s {n}?", "Tell me the {n} for {s}.",
    "Can you give me the {n} of {s}?", "{N} for {s}?", "{N} of {s}", "I need the {n} for {s}.",
    "Do you know {s}'s {n}?", "Please look up the {n} for {s}.", "For {s}, what is the {n}?",
    "Which {n} does {s} have?", "what is the {n} for {s}", "Could you tell me {s}'s {n}, please?",
    "Hi, what is the {n} of {s}?", "And the {n} for {s}?", "What {n} is given for {s}?",
)  # fmt: skip

UNKNOWN = "The handbook does not say."
"""The answer to a question whose fact is not in the handbook."""


@dataclass(frozen=True)
class Subject:
    """The subject of a fact: a person or thing of a topic."""

    topic: str
    name: str


@dataclass(frozen=True)
class Fact:
    """A fact in a handbook. `sentence` says that the `kind` of `subject` is `value`."""

    kind: TopicKind
    subject: Subject
    value: str
    sentence: str

    @property
    def key(self) -> tuple[str, str]:
        """The key of facts that answer the same question: the kind and the subject's name."""
        return self.kind.name, self.subject.name


@dataclass(frozen=True)
class Question:
    """A user's question, its only right answer, and the kind of its fact for reports."""

    text: str
    answer: str
    kind: str


def free_kind(source: NameSource) -> TopicKind:
    """Make up a kind that no table lists, such as "cellar ticket", with its topic and values."""
    noun = f"{source.pick(FREE_MODIFIERS)} {source.pick(FREE_HEADS)}"
    value = source.pick(values.ANYTHING)
    return TopicKind(noun, source.pick(tuple(TOPICS)), (noun,), value)


def new_subject(source: NameSource, topic: str) -> Subject:
    """Draw a new subject of `topic`."""
    return Subject(topic, TOPICS[topic].draw(source))


def state(source: NameSource, kind: TopicKind, subject: Subject, lines: bool) -> Fact:
    """Write a fact with a new value. With `lines`, the fact may be a line instead of a sentence."""
    value = kind.value(source)
    if kind.facts and source.chance(0.5):
        template = source.pick(kind.facts)
    else:
        template = source.pick(LINES if lines and source.chance(0.5) else FACTS)
    if template.startswith("{v}") and value[0].islower():
        template = FACTS[0]
    noun = source.pick(kind.nouns)
    return Fact(kind, subject, value, _fill(source, template, noun, subject, value))


def ask(source: NameSource, kind: TopicKind, subject: Subject, answer: str) -> Question:
    """Write a question for the `kind` of `subject`, in a random phrasing."""
    own = kind.asks and source.chance(0.5)
    template = source.pick(kind.asks if own else ASKS)
    label = "unknown" if answer == UNKNOWN else kind.name if kind in KINDS else "free"
    noun = source.pick(kind.nouns)
    return Question(_fill(source, template, noun, subject, ""), answer, label)


def _fill(source: NameSource, template: str, noun: str, subject: Subject, value: str) -> str:
    name = source.pick(TOPICS[subject.topic].forms).format(subject.name)
    return template.format(n=noun, N=_capital(noun), s=name, S=_capital(name), v=value)


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
