"""Requests made up from `/openapi.json`, good and bad ones: no 5xx, nothing undocumented.

What is right by its schema may still be refused (a model that is not served, a salt too long), so
`positive_data_acceptance` is not asked for; that bad data is refused is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from gateway.openapi import JSON
from tests.doubles.fake_engine import FakeEngine
from tests.doubles.served import Served

EXAMPLES = 30  # of each operation, in each mode
FUZZ = settings(
    max_examples=EXAMPLES,
    deadline=None,
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
    return described | {"servers": [{"url": served.url}]}


def operations_of(description: dict[str, Any]) -> list[Any]:
    schema: Any = schemathesis.openapi.from_dict(description)
    schema.config.update(base_url=description["servers"][0]["url"])
    return [found.ok() for found in schema.get_all_operations()]


def is_operators(operation: Any) -> bool:
    return str(operation.path).startswith(("/admin", "/metrics"))


def fuzz(operation: Any, mode: GenerationMode, checks: list[Any], key: str) -> Iterator[int]:
    """Send made-up requests and check their answers; the statuses that came back."""
    statuses: list[int] = []

    @FUZZ
    @given(operation.as_strategy(generation_mode=mode))
    def send(case: Any) -> None:
        answer = case.call(headers={"authorization": f"Bearer {key}"})
        statuses.append(answer.status_code)
        case.validate_response(answer, checks=checks)

    send()
    yield from statuses


@pytest.mark.parametrize("operators", [False, True])
def test_good_data_gets_a_documented_answer(
    description: dict[str, Any], served: Served, operators: bool
) -> None:
    key = served.admin_key if operators else served.key
    chosen = [
        operation
        for operation in operations_of(description)
        if is_operators(operation) is operators
    ]
    assert len(chosen) >= 6
    for operation in chosen:
        statuses = set(fuzz(operation, GenerationMode.POSITIVE, UNDOCUMENTED, key))
        assert statuses
        assert 401 not in statuses, "not a request got past the key"


@pytest.mark.parametrize("operators", [False, True])
def test_bad_data_is_refused(description: dict[str, Any], served: Served, operators: bool) -> None:
    key = served.admin_key if operators else served.key
    refused = 0
    for operation in operations_of(description):
        if is_operators(operation) is operators and operation.body:
            statuses = list(fuzz(operation, GenerationMode.NEGATIVE, BAD_DATA, key))
            refused += sum(400 <= status < 500 for status in statuses)
    assert refused > EXAMPLES


def test_every_route_says_what_it_answers(description: dict[str, Any]) -> None:
    """Without a schema the fuzzing above has nothing to hold an answer against."""
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
    list(fuzz(models, GenerationMode.POSITIVE, UNDOCUMENTED, served.key))
    teapot = {"418": {"description": "A teapot"}}
    description["paths"]["/v1/models"]["get"]["responses"] = teapot
    (models,) = operations_of(description)
    with pytest.raises(FailureGroup, match="Undocumented status code"):
        list(fuzz(models, GenerationMode.POSITIVE, UNDOCUMENTED, served.key))


def test_a_405_names_every_method_of_the_path(served: Served) -> None:
    headers = {"authorization": f"Bearer {served.admin_key}"}
    answer = httpx.put(f"{served.url}/admin/tenants", headers=headers)
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, POST"
