"""Paths without a route that several official clients ask for: each client gets its own error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anthropic
import httpx
import openai
import pytest
from google import genai
from google.genai import errors

from tests.doubles.gateway.served import Served

Ask = Callable[[genai.Client], Any]
ASKED: dict[str, Ask] = {
    "files": lambda client: list(client.files.list()),
    "batches": lambda client: list(client.batches.list()),
    "stores": lambda client: list(client.file_search_stores.list()),
    "an upload": lambda client: client.files.upload(file=__file__),
}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("version", ["v1", "v1beta"])
def test_googles_client_gets_googles_error(served: Served, version: str, asked: str) -> None:
    options: Any = {"base_url": served.url, "api_version": version}
    client = genai.Client(api_key=served.key, http_options=options)
    with client, pytest.raises(errors.ClientError) as refused:
        ASKED[asked](client)
    assert (refused.value.code, refused.value.status) == (404, "NOT_FOUND")
    assert "there is no such route" in str(refused.value.message)


def test_anthropics_client_gets_anthropics_error(served: Served) -> None:
    client = anthropic.Anthropic(api_key=served.key, base_url=served.url, max_retries=0)
    with client, pytest.raises(anthropic.NotFoundError) as refused:
        client.beta.files.list()
    body: Any = refused.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "not_found_error")
    assert refused.value.request_id == body["request_id"]


def test_openais_client_gets_openais_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        client.files.list()
    assert refused.value.code == "unknown_url"


def test_a_header_decides_only_without_a_route_and_at_no_other_dialects_path(
    served: Served,
) -> None:
    googles = {"x-goog-api-key": served.key}
    with httpx.Client(base_url=served.url, headers=googles) as http:
        assert http.get("/v1/batches").json()["error"]["status"] == "NOT_FOUND", "the control"
        assert http.get("/v1/messages/batches").json()["error"]["type"] == "not_found_error"
        refused = http.post("/v1/chat/completions", json={}).json()["error"]
    assert set(refused) == {"message", "type", "param", "code"}
