"""Requests generated from `/openapi.json`, valid and invalid, get only documented answers, no 5xx.

A request that is valid by its schema may still be refused (an unknown model, a long salt), so
`positive_data_acceptance` is off. Invalid data must be refused.
"""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from jsonschema_rs import Draft202012Validator
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from gateway.http.openapi import JSON
from tests.doubles.engine.fake_engine import FakeEngine
from tests.doubles.gateway.served import MODEL, Served

EVENTS = "text/event-stream"
# Generating one of these bodies takes 0.1 s, so these operations get a third of the examples.
LARGE = (
    *("/v1/chat/completions", "/tokenize", "/admin/prefixes"),
    *("/v1/messages", "/v1/messages/count_tokens"),
    *("/v1/responses", "/v1/responses/input_tokens"),
    *(f"/v1beta/models/{{model}}:{verb}ontent" for verb in ("generateC", "streamGenerateC")),
    *("/v1beta/models/{model}:countTokens", "/v1beta/cachedContents"),
    "/v1beta/models/{model}:batchEmbedContents",
    *("/v1/cache/probe", "/v1/cache/warm", "/v1/decisions", "/v1/modules"),
)
# Number of examples of each operation, in each mode.
examples = pytest.mark.parametrize("most", [4, pytest.param(90, marks=pytest.mark.zoo)])
HANG_S = 60.0
FUZZ = settings(
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
UNDOCUMENTED: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
BAD_DATA: list[Any] = [*UNDOCUMENTED, negative_data_rejection]


@pytest.fixture
def description(served: Served, engine: FakeEngine) -> dict[str, Any]:
    described: dict[str, Any] = httpx.get(f"{served.url}/openapi.json").json()
    for path in described["paths"].values():
        for operation in path.values():
            # The library compares an event's type with the schema, but not its contents.
            content = operation["responses"].get("200", {}).get("content", {})
            content.update({EVENTS: {"schema": {}}} if EVENTS in content else {})
    return described | {"servers": [{"url": served.url}]}


def operations_of(description: dict[str, Any]) -> list[Any]:
    schema: Any = schemathesis.openapi.from_dict(description)
    schema.config.update(base_url=description["servers"][0]["url"], request_timeout=HANG_S)
    return [found.ok() for found in schema.get_all_operations()]


NAMING_A_MODEL = [
    "ChatRequest",
    "CompletionRequest",
    "TokenizeRequest",
    "DetokenizeRequest",
    "MessagesRequest",
    "PromptRequest",
    "CachedContentRequest",
    "GeminiPrompt",
    "GenerateContentRequest",
    "EmbedContentRequest",
]


def of_the_model(description: dict[str, Any]) -> dict[str, Any]:
    """Return the description, with the served model's name as the only value."""
    for name in NAMING_A_MODEL:
        description["components"]["schemas"][name]["properties"]["model"] = {"enum": [MODEL]}
    for path in description["paths"].values():
        for operation in path.values():
            for parameter in operation.get("parameters", ()):
                if (parameter["in"], parameter["name"]) == ("path", "model"):
                    parameter["schema"] = {"enum": [MODEL]}
    return description


def is_operators(operation: Any) -> bool:
    return str(operation.path).startswith(("/admin", "/metrics"))


def answers(
    operation: Any, mode: GenerationMode, checks: list[Any], key: str, most: int
) -> list[Any]:
    """Send generated requests and check their answers; return the answers."""
    came: list[Any] = []
    most //= 3 if operation.path in LARGE else 1
    with requests.Session() as session:

        @settings(FUZZ, max_examples=most)
        @given(operation.as_strategy(generation_mode=mode))
        def send(case: Any) -> None:
            answer = case.call(session=session, headers={"authorization": f"Bearer {key}"})
            came.append(answer)
            case.validate_response(answer, checks=checks)

        send()
    return came


def fuzz(operation: Any, mode: GenerationMode, checks: list[Any], key: str, most: int) -> list[int]:
    """Return the statuses of the answers to generated requests."""
    return [answer.status_code for answer in answers(operation, mode, checks, key, most)]


@examples
@pytest.mark.parametrize("operators", [False, True])
def test_bad_data_is_refused(
    description: dict[str, Any], served: Served, operators: bool, most: int
) -> None:
    """Refuse invalid data.

    The requests name the served model, since another name would be refused first.
    """
    key = served.admin_key if operators else served.key
    refused = 0
    for operation in operations_of(of_the_model(description)):
        if is_operators(operation) is operators and operation.body:
            statuses = list(fuzz(operation, GenerationMode.NEGATIVE, BAD_DATA, key, most))
            refused += sum(400 <= status < 500 for status in statuses)
    assert refused > most


# Refusals that no schema can express: existing state, relations between two fields, the spelling of
# numbers (`1.0` is an integer in a schema), and rules of a model's template.
BEYOND_SCHEMAS = [
    r"no such (tenant|key|group|prefix|response|adapter|deleted tenant)",
    r"this tenant may not load adapters",
    r"there is no (model of that name|such (route|message to continue))",
    r"the name or id is taken",
    r"is in the past",
    r"in the vocabulary",
    r"the prefix has \d+ tokens",
    r"`(n|top_logprobs|logprobs|prompt_logprobs|stop|logit_bias|prompt)` (is|has|times) .*allowed",
    r"`(input|documents)` is .*allowed",
    r"there are more than",
    r"this model's maximum context length is",
    r"Input should be a valid integer",
    r"Expected `(int|int \| null|int \| str \| array)`, got `float`",
    r"`tools` is not supported unless `tool_choice`",
    r"`tool_choice` names a tool",
    r"only the assistant calls tools",
    r"the arguments are not JSON",
    r"`[\w.]+` is not a JSON schema",
    r"`[\w.]+` needs texts to choose from",
    r"`[\w.]+` is not valid JSON",
    r"`(structured_outputs.structural_tag|response_format)`: ",
    r"`structured_outputs` says nothing",
    r"`[\w.]+` of type `\w+` has no `[\w.]+`",
    r"would not show (this|the) message",
    r"there are two references to one item",
    r"has more than \d+ (characters|parts and triggers)",
    r"a stop string (is empty|has more)",
    r"only one prompt at a time can be explained",
    r"what the assistant said cannot have a breakpoint",
    r"an empty text cannot be marked",
    r"at most \d+ blocks may have `cache_control`",
    r"a `cache_control` with a `ttl` of 1h must not come after one of 5m",
    r"`[\w.\[\]]+` is not supported",
    r"`\w+` needs `\w+`",
    r"`min_tokens` is greater than `max_tokens`",
    r"is not tcp://HOST:PORT|is no path of a socket|an address must be printable",
    r"the port is at most|this gateway was started without --find-engines",
    r"Port out of range|Port could not be cast|Invalid IPv6|netloc",
    r"`[\w.]+` and `[\w.\[\]]+` exclude each other",
    r"cannot be given together with `echo`",
    r"needs a last message of the assistant",
    r"a stop string is empty",
    r"a stop sequence has 1 to \d+ characters",
    r"blocks of type `\w+` are not supported",
    r"a block of type `\w+` cannot be in",
    r"the last turn is the assistant's and has more than text",
    r"there is nothing to answer",
    r"(`tools\[\d+\]|definition)\.\w+` is missing",
    r"no tool of this name is defined before it",
    r"another tool has this name",
    r"tools of this type run elsewhere",
    r"is not allowed on this server",
    r"is above its ceiling",
    r"`from` is after `to`",
    r"at most \d+ days",
    r"a name must be printable",
    r"the cache has no such node",
    r"the prefix cannot be used here: (it was computed by another|its source has other tokens)",
    r"`digest` must be 32 bytes in hex",
    r"the model's chat template (refuses|cannot render) these messages",
    r"the last message is not in the rendered chat",
    r"`(dimensions|outputDimensionality)` is \d+, the model's embeddings have \d+",
    r"the model's tokenizer has (no single tokens|labels for)",
    r"(an item|a part) of type `\w+` (lacks its|has no) content",
    r"a cached content expires in the future",
    r"CachedContent (not found|can not be used)",
    r"there is nothing to cache",
    r"an update has `ttl` or `expireTime`",
    r"a turn's role is",
    r"the part has no text, call or result",
    r"this field has texts alone",
    r"the content has no text|all requests have one `cacheSalt`",
    r"a (call|result) is in a turn of",
    r"the last turn is the model's and has more than text",
    r"another function has this name",
    r"this (mode needs|names a) function",
    r"there is no such type",
    r"text/x.enum needs a schema",
    r"(this is not a|these are not)",
    r"at most \d+ (candidates|stop sequences)",
    r"the request names no module|there is no such schema of modules",
    r"a schema (is given as either|in PML has)|this is no XML|a schema has no document type",
    r"a (module|union|scaffold) (has|is|without)|two (modules|parameters) .* one name",
    r"no text stands in the named modules",
]


# The bodies of these routes contain another route's body, which has its own schema.
OF_ANOTHER_ROUTE = ("/v1/cache/probe", "/v1/cache/warm")


def is_checked_by_its_schema(operation: Any) -> bool:
    """Return whether a refusal of valid data must be one of BEYOND_SCHEMAS."""
    return operation.method != "delete" and operation.path not in OF_ANOTHER_ROUTE


@examples
@pytest.mark.parametrize("operators", [False, True])
def test_good_data_gets_a_documented_answer_and_is_refused_only_for_what_no_schema_says(
    description: dict[str, Any], served: Served, operators: bool, most: int
) -> None:
    known = re.compile("|".join(BEYOND_SCHEMAS))
    unexpected, accepted, asked = set(), 0, 0
    for operation in operations_of(of_the_model(description)):
        if is_operators(operation) is not operators:
            continue
        asked += 1
        key = served.admin_key if operators else served.key
        came = answers(operation, GenerationMode.POSITIVE, UNDOCUMENTED, key, most)
        statuses = {answer.status_code for answer in came}
        assert statuses
        assert 401 not in statuses, "not a request got past the key"
        for answer in came if is_checked_by_its_schema(operation) else ():
            accepted += answer.status_code < 300
            if answer.status_code >= 400 and not known.search(answer.json()["error"]["message"]):
                unexpected.add(f"{operation.path}: {answer.json()['error']}")
    assert not unexpected
    assert accepted > most
    assert asked >= 6


PARTS: dict[str, tuple[Any, bool]] = {
    "text": ({"type": "text", "text": ""}, True),
    "no type": ({"text": ""}, False),
    "no text": ({"type": "text"}, False),
    "another type": ({"type": "image_url", "text": "a"}, False),
    "null type": ({"type": None, "text": "a"}, False),
}


@pytest.mark.parametrize(("part", "is_good"), PARTS.values(), ids=list(PARTS))
def test_schema_and_parser_say_the_same_of_a_part(
    description: dict[str, Any], served: Served, part: Any, is_good: bool
) -> None:
    components = description["components"]
    schema = {**components["schemas"]["TextPart"], "components": components}
    assert Draft202012Validator(schema).is_valid(part) is is_good
    body = {"model": MODEL, "messages": [{"role": "user", "content": [part]}]}
    headers = {"authorization": f"Bearer {served.key}"}
    answer = httpx.post(f"{served.url}/tokenize", json=body, headers=headers)
    assert (answer.status_code == 200) is is_good
    if not is_good:
        assert answer.status_code == 400
        assert answer.json()["error"]["param"].startswith("messages[0].content[0].")


def test_every_route_says_what_it_answers(description: dict[str, Any]) -> None:
    """Describe every route's answers: without a schema, the tests above would have nothing to
    compare.
    """
    silent = [
        f"{method} {path} {status}"
        for path, operations in description["paths"].items()
        for method, operation in operations.items()
        for status, answer in operation["responses"].items()
        if not answer.get("content") or answer["content"].get(JSON) == {"schema": {}}
    ]
    assert silent == []
    assert len(description["paths"]) >= 20


def test_an_undocumented_answer_would_be_found(description: dict[str, Any], served: Served) -> None:
    description["paths"] = {"/v1/models": description["paths"]["/v1/models"]}
    (models,) = operations_of(description)
    list(fuzz(models, GenerationMode.POSITIVE, UNDOCUMENTED, served.key, 2))
    teapot = {"418": {"description": "A teapot"}}
    description["paths"]["/v1/models"]["get"]["responses"] = teapot
    (models,) = operations_of(description)
    with pytest.raises(FailureGroup, match="Undocumented status code"):
        list(fuzz(models, GenerationMode.POSITIVE, UNDOCUMENTED, served.key, 2))


def test_a_405_names_every_method_of_the_path(served: Served) -> None:
    headers = {"authorization": f"Bearer {served.admin_key}"}
    answer = httpx.put(f"{served.url}/admin/tenants", headers=headers)
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, HEAD, POST"
