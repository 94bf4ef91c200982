"""What handbooks speak about: topics, the kinds of fact each has, and how facts and questions read.

The tables are the whole knowledge of this module; drawing from them is `handbook.facts`.
Placeholders: `{n}` the noun of the kind, `{s}` the subject, `{v}` the value; `{N}` and `{S}` are
the same at the start of a sentence. Knows nothing of names, values or handbooks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from handbook import names, values
from handbook.names import Source

Draw: TypeAlias = Callable[[Source], str]


@dataclass(frozen=True)
class Topic:
    """A sort of subject: how its names are drawn and how a sentence refers to one."""

    draw: Draw
    forms: tuple[str, ...]


@dataclass(frozen=True)
class Kind:
    """One attribute of a topic: its nouns (synonyms), its values, its own phrasings."""

    name: str
    topic: str
    nouns: tuple[str, ...]
    value: Draw
    facts: tuple[str, ...] = ()
    asks: tuple[str, ...] = ()


TOPICS: Mapping[str, Topic] = {
    "city": Topic(names.city, ("{}", "{}", "the {} office")),
    "person": Topic(names.person, ("{}",)),
    "department": Topic(names.department, ("the {} team", "the {} department", "{}")),
    "product": Topic(names.product, ("the {}", "{}")),
    "room": Topic(names.room, ("meeting room {}", "the {} room", "room {}")),
    "client": Topic(names.company, ("{}", "{}", "the client {}")),
    "project": Topic(names.project, ("project {}", "the {} project")),
    "machine": Topic(names.machine, ("server {}", "the server {}", "{}")),
}

KINDS = (
    Kind("support code", "city", ("support code", "helpdesk code"), values.code),
    Kind(
        "door code", "city", ("door code", "entry code"), values.four_digits,
        ("The door of {s} opens with the code {v}.", "To enter {s}, type {v} at the door."),
        ("Which code opens the door of {s}?", "How do I get into {s}?"),
    ),
    Kind(
        "manager", "city", ("manager", "office manager"), names.person,
        ("{v} manages {s}.", "{s} is managed by {v}.", "{S} is run by {v}."),
        ("Who manages {s}?", "Who is the manager of {s}?", "Who runs {s}?"),
    ),
    Kind(
        "wifi", "city", ("wifi password", "Wi-Fi password", "wireless password"), values.password,
        ("Guests in {s} use the wifi password {v}.",),
        ("Which wifi password do guests in {s} use?",),
    ),
    Kind(
        "hours", "city", ("opening hours", "opening times"), values.hours,
        ("{S} is open from {v}.", "You can visit {s} from {v}."),
        ("When is {s} open?", "What are the opening hours of {s}?", "When can I visit {s}?"),
    ),
    Kind(
        "address", "city", ("address", "street address"), values.street,
        ("{S} is at {v}.", "You will find {s} at {v}."),
        ("Where is {s}?", "Where do I find {s}?"),
    ),
    Kind("emergency", "city", ("emergency number", "emergency line"), values.telephone),
    Kind(
        "extension", "person", ("extension", "phone extension"), values.extension,
        ("{S} answers on extension {v}.", "Dial {v} to reach {s}.", "{S}, extension {v}."),
        ("On which extension can I reach {s}?", "What do I dial to reach {s}?"),
    ),
    Kind("parking", "person", ("parking space", "parking spot"), values.parking_space,
         ("{S} parks in space {v}.",), ("Where does {s} park?",)),
    Kind("birthday", "person", ("birthday",), values.date,
         ("{S} has a birthday on {v}.",), ("When is {s}'s birthday?",)),
    Kind("locker", "person", ("locker", "locker number"), values.code,
         ("{S} keeps things in locker {v}.",), ("Which locker does {s} have?",)),
    Kind(
        "mentor", "person", ("mentor",), names.person,
        ("{v} mentors {s}.", "{S} is mentored by {v}."),
        ("Who mentors {s}?", "Who is the mentor of {s}?"),
    ),
    Kind(
        "floor", "department", ("floor",), values.floor,
        ("{S} sits on floor {v}.", "{S} is on floor {v}.", "You find {s} on floor {v}."),
        ("On which floor is {s}?", "Where does {s} sit?", "Which floor is {s} on?"),
    ),
    Kind("mailbox", "department", ("email address", "mailbox"), values.email,
         ("Write to {s} at {v}.",), ("How do I write to {s}?",)),
    Kind(
        "head", "department", ("head", "lead"), names.person,
        ("{v} leads {s}.", "{S} is led by {v}."), ("Who leads {s}?", "Who is the head of {s}?"),
    ),
    Kind("badge", "department", ("badge colour", "badge color"), values.colour,
         ("People in {s} wear {v} badges.",), ("Which badges do people in {s} wear?",)),
    Kind("meeting", "department", ("weekly meeting",), values.weekday,
         ("{S} meets every {v}.",), ("When does {s} meet?", "On which day does {s} meet?")),
    Kind(
        "price", "product", ("price", "list price"), values.price,
        ("{S} costs {v}.", "{S} sells for {v}.", "We sell {s} for {v}."),
        ("How much is {s}?", "How much does {s} cost?", "What does {s} cost?"),
    ),
    Kind("warranty", "product", ("warranty", "guarantee"), values.span,
         ("{S} has a warranty of {v}.",), ("How long is the warranty of {s}?",)),
    Kind("part", "product", ("part number", "order number"), values.part_number,
         ("Order {s} as {v}.",), ("How do I order {s}?",)),
    Kind("supplier", "product", ("supplier",), names.company,
         ("{v} supplies {s}.", "We buy {s} from {v}."),
         ("Who supplies {s}?", "Where do we buy {s}?")),
    Kind("seats", "room", ("capacity", "number of seats"), values.small_number,
         ("{S} seats {v} people.", "{S} has {v} seats."),
         ("How many people fit in {s}?", "How many seats does {s} have?")),
    Kind("account", "client", ("account number", "customer number"), values.code),
    Kind("contact", "client", ("contact", "contact person"), names.person,
         ("At {s}, speak to {v}.",), ("Whom do I speak to at {s}?",)),
    Kind("delivery", "client", ("delivery day",), values.weekday,
         ("We deliver to {s} on {v}.",), ("When do we deliver to {s}?",)),
    Kind("deadline", "project", ("deadline", "due date"), values.date,
         ("{S} is due on {v}.",), ("When is {s} due?",)),
    Kind("budget", "project", ("budget",), values.price,
         ("{S} may spend {v}.",), ("How much may {s} spend?",)),
    Kind("ip", "machine", ("IP address", "network address"), values.network_address,
         ("{S} answers at {v}.",), ("At which address does {s} answer?",)),
    Kind("restart", "machine", ("restart time",), values.time_of_day,
         ("{S} restarts at {v}.",), ("When does {s} restart?",)),
    Kind("lunch", "city", ("lunch", "canteen dish"), values.dish,
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
