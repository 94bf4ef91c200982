"""A running server with the embedded model behaves as web clients expect of HTTP servers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anthropic
import httpx
import openai
import pytest

from tests.seams.support.server import Server, running_server

HERE = "https://chat.example.com"
SMALL = {"tokens_per_minute": 3000}


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data_dir: Path = tmp_path_factory.mktemp("web") / "data"
    with running_server(data_dir, {"RATOON_CORS_ORIGINS": HERE}) as running:
        yield running


def limited(server: Server) -> str:
    """Create a tenant limited to 3,000 tokens a minute; return its key."""
    with server.client(server.admin_key) as operator:
        made = operator.post("/admin/tenants", json={"name": uuid.uuid4().hex, "limits": SMALL})
        issued = operator.post(f"/admin/tenants/{made.json()['id']}/keys")
    return str(issued.json()["key"])


def test_a_default_chat_passes_a_small_limit_which_still_ends_in_429(web: Server) -> None:
    with openai.OpenAI(base_url=web.url + "/v1", api_key=limited(web), max_retries=0) as client:

        def ask(number: int) -> openai.RateLimitError | None:
            try:
                said = client.chat.completions.create(
                    model="handbook", messages=[{"role": "user", "content": f"Hello {number}"}]
                )
            except openai.RateLimitError as error:
                return error
            # Sampled text may be nonsense, so the test only checks that there is an answer.
            assert said.choices[0].finish_reason in ("stop", "length")
            return None

        assert ask(0) is None
        with ThreadPoolExecutor(40) as pool:
            refused = [error for error in pool.map(ask, range(40)) if error is not None]
    # at least 8 requests, each of 256 tokens and a prompt, are within the limit
    assert 0 < len(refused) <= 32
    assert all(int(error.response.headers["retry-after"]) > 0 for error in refused)


def test_a_request_that_can_never_pass_is_not_sent_again(web: Server) -> None:
    """Even a client that is allowed to retry does not retry a request that can never pass."""
    sent: list[object] = []
    with (
        openai.DefaultHttpxClient(event_hooks={"request": [sent.append]}) as http,
        openai.OpenAI(
            base_url=web.url + "/v1", api_key=limited(web), max_retries=2, http_client=http
        ) as client,
        pytest.raises(openai.RateLimitError, match="set `max_tokens` to"),
    ):
        client.chat.completions.create(
            model="handbook", messages=[{"role": "user", "content": "Hello"}], max_tokens=3400
        )
    assert len(sent) == 1


def test_official_clients_see_their_own_id(web: Server) -> None:
    given = {"x-request-id": "job-7"}
    with web.openai() as client:
        answer = client.chat.completions.create(
            model="handbook",
            messages=[{"role": "user", "content": "Hello"}],
            max_tokens=4,
            extra_headers=given,
        )
        assert answer._request_id == "job-7"
        with pytest.raises(openai.NotFoundError) as refused:
            client.models.retrieve("none", extra_headers=given)
        assert refused.value.request_id == "job-7"
    with anthropic.Anthropic(base_url=web.url, api_key=web.demo_key) as other:
        said = other.messages.create(
            model="handbook",
            max_tokens=4,
            messages=[{"role": "user", "content": "Hello"}],
            extra_headers=given,
        )
        assert said._request_id == "job-7"


def test_azures_client_is_let_in_by_its_own_header_and_paths(web: Server) -> None:
    with openai.AzureOpenAI(
        azure_endpoint=web.url, api_key=web.demo_key, api_version="2026-01-01"
    ) as client:
        assert [model.id for model in client.models.list()] == ["handbook"]
        said = client.chat.completions.create(
            model="handbook", messages=[{"role": "user", "content": "Hello"}], max_tokens=4
        )
        assert said.choices[0].message.content


def test_a_page_of_a_listed_origin_chats_and_reads_refusals(web: Server) -> None:
    asked = {
        "origin": HERE,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    with httpx.Client(base_url=web.url, timeout=60) as page:
        allowed = page.options("/v1/chat/completions", headers=asked)
        assert allowed.status_code == 204
        assert allowed.headers["access-control-allow-headers"] == "authorization,content-type"
        body = {
            "model": "handbook",
            "messages": [{"role": "user", "content": "Hello"}],
            "max_tokens": 4,
            "stream": True,
        }
        for key, status in ((web.demo_key, 200), ("sk-none", 401)):
            headers = {"origin": HERE, "authorization": f"Bearer {key}"}
            answer = page.post("/v1/chat/completions", headers=headers, json=body)
            assert answer.status_code == status
            assert answer.headers["access-control-allow-origin"] == HERE
            headers["origin"] = "https://other.example.com"
            other = page.post("/v1/chat/completions", headers=headers, json=body)
            assert not [name for name in other.headers if name.startswith("access-control")]


def test_probes_of_other_servers_are_answered(web: Server) -> None:
    with httpx.Client(base_url=web.url) as probe:
        for path in ("/health", "/livez", "/healthz", "/readyz", "/version", "/"):
            assert probe.get(path).status_code == 200
            assert probe.head(path).status_code == 200
