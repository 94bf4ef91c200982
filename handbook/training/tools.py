"""Tools that a chat may offer: their JSON schemas, their questions, and results of calls.

There are three kinds: a lookup by field and subject, a search by one text, and a getter. A getter
finds one kind of fact by its subject, such as the weather of a city. Names, descriptions and the
order of keys vary.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from handbook.training import values
from handbook.training.facts import (
    FREE_HEADS,
    FREE_MODIFIERS,
    KINDS,
    Fact,
    Question,
    TopicKind,
    free_kind,
)
from handbook.training.names import NameSource, made_up_word

SKIES = (
    "sunny", "rain", "snow", "fog", "cloudy", "clear", "windy", "storms", "light rain", "hail",
    "overcast", "drizzle", "heavy snow", "thunder",
)  # fmt: skip
STATES = ("running", "stopped", "starting", "offline", "healthy", "busy", "idle", "unreachable")


_IN_FIELDS = re.compile(r"([a-z ]+), (-?\d+) degrees")


def _weather(source: NameSource) -> str:
    degrees = source.number(-20, 40)
    unit = source.pick(("degrees", "degrees", "°C", "C"))
    if source.chance(0.3):
        return f"{degrees} {unit} and {source.pick(SKIES)}"
    return f"{source.pick(SKIES)}, {degrees} {unit}"


_WEATHER = TopicKind(
    "weather", "city", ("weather", "forecast", "current weather"), _weather, (),
    ("What is the weather in {s}?", "What is the weather like in {s}?", "Weather in {s}?",
     "How is the weather in {s}?", "What's the weather in {s}?", "Is it raining in {s}?",
     "What's the weather like in {s} today?", "What's the weather like in {s}?",
     "What is the weather like in {s} today?", "How warm is it in {s}?", "weather in {s}"),
)  # fmt: skip
LIVE_KINDS = (
    _WEATHER, _WEATHER,  # listed twice, as the tool that most users try first
    TopicKind("time", "city", ("local time", "time"), values.time_of_day, (),
              ("What time is it in {s}?", "How late is it in {s}?")),
    TopicKind("stock", "product", ("stock", "stock level"), values.up_to(5000), (),
              ("How many of {s} are in stock?", "Is {s} in stock?")),
    TopicKind("status", "machine", ("status", "state"), values.one_of(STATES), (),
              ("Is {s} up?", "How is {s} doing?", "Is {s} running?")),
    TopicKind("balance", "client", ("balance", "open balance"), values.price, (),
              ("How much does {s} owe us?",)),
)  # fmt: skip
"""Values that change too often for a handbook, so that only tools know them."""

LOOKUPS = (
    "lookup", "lookup", "look_up", "lookup_fact", "get_fact", "find_record", "query_directory",
    "get_attribute", "fetch", "get_info", "read_record", "ask_registry", "directory", "get_value",
)  # fmt: skip
SEARCHES = (
    "search", "search_docs", "web_search", "find", "query", "search_handbook", "search_wiki",
    "knowledge_base", "ask", "retrieve", "lookup", "search_intranet",
)  # fmt: skip
GETTERS = (
    "get_{}", "get_{}", "get_{}", "find_{}", "fetch_{}", "lookup_{}", "{}", "{}_lookup", "read_{}",
)  # fmt: skip
FIELDS = ("field", "field", "attribute", "property", "what", "topic", "fact", "detail", "kind")
SUBJECTS = ("subject", "subject", "name", "entity", "of", "item", "key", "about", "who", "target")
QUERIES = ("query", "query", "q", "text", "question", "search_term", "term", "keywords", "input")
BY_TOPIC: Mapping[str, tuple[str, ...]] = {
    "city": ("city", "city", "location", "location", "office", "place", "site"),
    "person": ("person", "name", "employee", "colleague", "full_name"),
    "department": ("department", "team", "group"),
    "product": ("product", "item", "product_name", "article"),
    "room": ("room", "room_name", "meeting_room"),
    "client": ("client", "customer", "company"),
    "project": ("project", "project_name"),
    "machine": ("machine", "server", "host", "hostname"),
}

OF_LOOKUPS = (
    "Look up a fact of the handbook", "Look up a fact", "Looks up one field of a subject.",
    "Look up what the handbook does not say.", "Get a detail from the company directory.",
    "Find a record by its subject and field", "Returns a fact about someone or something.",
)  # fmt: skip
OF_SEARCHES = (
    "Search the intranet", "Search for information.", "Search the knowledge base.",
    "Find documents that match a query", "Full-text search", "Ask the company wiki.",
)  # fmt: skip
OF_GETTERS = (
    "Get the {n}", "Get the {n} of a {t}.", "Get the current {n} for a {t}", "Returns the {n}.",
    "Look up the {n} for a given {t}", "The {n} of a {t}", "Get current {n} for a given {t}.",
    "Get the current {n} in a given {t}", "Fetch the latest {n} of the {t}.",
)  # fmt: skip
OF_PARAMETERS = (
    "The {p}", "The {p}.", "Name of the {p}", "The {p} to look up", "which {p}", "The {p}'s name",
    "The {p}, e.g. Paris", "What to look for", "The {p}, e.g. San Francisco", "A {p}",
    "The city and state, e.g. San Francisco, CA", "City and country e.g. Bogotá, Colombia",
)  # fmt: skip

NOT_FOUND = (
    "not found", "Not found.", "null", "None", "[]", "{}", "", "unknown", "No results.", "n/a",
    "No results found.", "nothing found", "no record", '{"error": "not found"}', '{"value": null}',
    '{"results": []}', '{"result": null}', '{"error": "no such record"}', '{"found": false}',
    '{"status": "not_found"}', "Error: not found", "No match", '{"answer": null}',
)  # fmt: skip
VALUES = ("value", "value", "result", "answer", "data", "text", "content")


@dataclass(frozen=True)
class Tool:
    """A tool in the form of a request, with the data of its right calls.

    `kind` is the only kind of fact that the tool knows, or None for a tool that knows all kinds.
    `field` and `subject` are the names of its parameters. A getter has no `field`. A search has a
    single text parameter, `subject`.
    """

    schema: dict[str, Any]
    sort: str
    kind: TopicKind | None
    field: str
    subject: str

    @property
    def name(self) -> str:
        """The tool's name in calls."""
        return str(self.schema["function"]["name"])

    def call(self, question: Question) -> dict[str, Any]:
        """Write the right call for `question`, with arguments in the schema's order."""
        by_name = {self.subject: question.subject}
        if self.sort == "search":
            by_name = {self.subject: f"{question.noun} {question.subject}"}
        if self.field:
            by_name[self.field] = question.noun
        properties = self.schema["function"]["parameters"]["properties"]
        given = {name: by_name[name] for name in properties if name in by_name}
        return {"name": self.name, "arguments": given}


def any_tool(source: NameSource) -> Tool:
    """Draw a tool that answers any question: a lookup or a search."""
    if source.chance(0.7):
        name = f"{made_up_word(source)}_lookup" if source.chance(0.1) else source.pick(LOOKUPS)
        field, subject = source.pick(FIELDS), source.pick(SUBJECTS)
        order = [field, subject] if source.chance(0.4) else [subject, field]
        schema = _schema(source, name, source.pick(OF_LOOKUPS), order)
        return Tool(schema, "lookup", None, field, subject)
    name = f"search_{made_up_word(source)}" if source.chance(0.15) else source.pick(SEARCHES)
    query = source.pick(QUERIES)
    return Tool(_schema(source, name, source.pick(OF_SEARCHES), [query]), "search", None, "", query)


def getter(source: NameSource, kind: TopicKind) -> Tool:
    """Draw a tool that knows the `kind` of any subject."""
    noun = source.pick(kind.nouns)
    name = source.pick(GETTERS).format(_snake(noun))
    if source.chance(0.1):
        name = "get" + "".join(word.capitalize() for word in _snake(noun).split("_"))
    parameter = source.pick(BY_TOPIC[kind.topic] if source.chance(0.8) else SUBJECTS)
    told = source.pick(OF_GETTERS).format(n=noun, t=parameter.replace("_", " "))
    return Tool(_schema(source, name, told, [parameter]), "getter", kind, "", parameter)


def getter_kind(source: NameSource, near: tuple[Fact, ...]) -> TopicKind:
    """Draw a kind for a getter: live, from the facts `near`, listed, or free."""
    draw = source.rng.random()
    if draw < 0.45:
        return source.pick(LIVE_KINDS)
    if draw < 0.7 and near:
        return source.pick(near).kind
    return free_kind(source) if source.chance(0.4) else source.pick(KINDS)


def odd_kind(source: NameSource, topic: str) -> TopicKind:
    """Draw a kind with an unlisted word, so that the model learns to copy kinds into calls."""
    word = made_up_word(source)
    first = source.chance(0.5)
    noun = f"{word} {source.pick(FREE_HEADS)}" if first else f"{source.pick(FREE_MODIFIERS)} {word}"
    return TopicKind(noun, topic, (noun,), source.pick(values.ANYTHING))


def result_text(
    source: NameSource, tool: Tool, question: Question, value: str, sentence: str
) -> str:
    """Write the result of a call that found `value`: plain, as a sentence, or as JSON."""
    draw = source.rng.random()
    in_fields = _IN_FIELDS.fullmatch(value)
    if in_fields and draw < 0.2:
        return _weather_in_fields(source, tool, question, in_fields)
    if draw < 0.3:
        return value
    if draw < 0.45:
        return sentence
    given: Any = value
    if value.isdecimal() and value[0] != "0" and source.chance(0.5):
        given = int(value)
    key = _snake(question.noun) if source.chance(0.4) else source.pick(VALUES)
    found: dict[str, Any] = {key: given}
    if source.chance(0.5):
        found = _more(source, tool, question, found)
    whole: Any = {"results": [found]} if source.chance(0.1) else found
    return json.dumps(
        [found] if source.chance(0.08) else whole,
        ensure_ascii=source.chance(0.1),
        separators=(",", ":") if source.chance(0.25) else None,
        indent=2 if source.chance(0.08) else None,
    )


def _weather_in_fields(
    source: NameSource, tool: Tool, question: Question, found: re.Match[str]
) -> str:
    parts: list[tuple[str, Any]] = [
        (source.pick(("condition", "conditions", "weather", "sky")), found[1]),
        (source.pick(("temperature", "temperature", "temperature_c", "temp")), int(found[2])),
    ]
    source.rng.shuffle(parts)
    place = [(tool.subject, question.subject)] if source.chance(0.5) else []
    unit = [("unit", "celsius")] if source.chance(0.3) else []
    return json.dumps(dict([*place, *parts, *unit]), ensure_ascii=False)


def _more(
    source: NameSource, tool: Tool, question: Question, found: dict[str, Any]
) -> dict[str, Any]:
    asked: dict[str, Any] = {tool.subject: question.subject}
    if tool.sort == "search":
        asked = {"title": question.subject}
    if source.chance(0.5):
        asked[tool.field or source.pick(("kind", "field", "type"))] = question.noun
    others: tuple[dict[str, Any], ...] = (
        {}, {"source": "handbook"}, {"updated": values.date(source)}, {"found": True},
        {"score": 0.9}, {"page": source.number(1, 90)}, {"ok": True},
    )  # fmt: skip
    asked |= source.pick(others)
    kept = {name: value for name, value in asked.items() if name not in found}
    return {**found, **kept} if source.chance(0.3) else {**kept, **found}


def _schema(source: NameSource, name: str, told: str, parameters: list[str]) -> dict[str, Any]:
    describes = source.chance(0.6)
    properties: dict[str, Any] = {}
    for parameter in parameters:
        properties[parameter] = {"type": "string"}
        if describes:
            spoken = parameter.replace("_", " ")
            properties[parameter]["description"] = source.pick(OF_PARAMETERS).format(p=spoken)
    if source.chance(0.06):
        properties["unit"] = {"type": "string", "enum": ["celsius", "fahrenheit"]}
    object_: dict[str, Any] = {"type": "object", "properties": properties}
    if source.chance(0.85):
        object_["required"] = parameters
    if source.chance(0.3):
        object_["additionalProperties"] = False
    function: dict[str, Any] = {"name": name}
    if source.chance(0.8):
        function["description"] = told
    function["parameters"] = object_
    if source.chance(0.1):
        function["strict"] = True
    return {"type": "function", "function": function}


def _snake(noun: str) -> str:
    return noun.lower().replace(" ", "_").replace("-", "")
