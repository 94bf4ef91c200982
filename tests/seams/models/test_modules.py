"""Prompt modules on a whole server are stored, used, isolated, kept over a restart and deleted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.seams.support.server import Server, running_server

CITIES = {"Berlin": 1028, "Oslo": 1417, "Lisbon": 1806, "Madrid": 2195, "Vienna": 2584}
KINDS = ("support", "door", "alarm")
CODES = {"support": 0, "door": 10, "alarm": 20}


def text_of(kind: str) -> str:
    return "".join(
        f"The {kind} code for {city} is {code + CODES[kind]}. " for city, code in CITIES.items()
    )


HANDBOOK = {
    "name": "handbook",
    "modules": [{"name": kind, "text": text_of(kind)} for kind in KINDS],
}


def ask(
    client: httpx.Client, schema: str, use: list[Any], question: str, **fields: Any
) -> dict[str, Any]:
    body = {
        "model": "handbook",
        "messages": [{"role": "user", "content": f"What is the {question}?"}],
        "temperature": 0,
        "ratoon": {"modules": {"schema": schema, "use": use}},
        **fields,
    }
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def said(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


def cached(answer: dict[str, Any]) -> int:
    found: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


def store(client: httpx.Client, schema: dict[str, Any]) -> str:
    made = client.post("/v1/modules", json=schema)
    assert made.status_code == 200, made.text
    return str(made.json()["id"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("modules"), {"RATOON_MODEL": "handbook"}) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with server.client(server.new_tenant()) as client:
        yield client


@pytest.fixture
def stranger(server: Server) -> Iterator[httpx.Client]:
    with server.client(server.new_tenant()) as client:
        yield client


def test_modules_answer_in_any_order_and_are_computed_once(client: httpx.Client) -> None:
    schema = store(client, HANDBOOK)
    first = ask(client, schema, [*KINDS], "door code for Oslo")
    assert (said(first), cached(first)) == ("1427", 0)
    told = first["ratoon"]["modules"]
    assert (told["used"], told["together"], told["cached_tokens"]) == ([*KINDS], [], 0)
    for use, question, right in (
        (["alarm", "door"], "alarm code for Vienna", "2604"),
        (["door"], "door code for Madrid", "2205"),
        (["support", "alarm"], "support code for Berlin", "1028"),
        (["door"], "alarm code for Vienna", "The handbook does not say."),
    ):
        answer = ask(client, schema, use, question)
        assert said(answer) == right
        told = answer["ratoon"]["modules"]
        assert told["cached_tokens"] == told["tokens"] > 0
        left = answer["usage"]["prompt_tokens"] - cached(answer)
        assert left <= answer["usage"]["prompt_tokens"] - told["tokens"] < 30


def test_a_stream_a_conversation_and_several_choices(client: httpx.Client) -> None:
    schema = store(client, HANDBOOK)
    turns = [
        {"role": "user", "content": "What is the door code for Oslo?"},
        {"role": "assistant", "content": "1427"},
        {"role": "user", "content": "What is the door code for Lisbon?"},
    ]
    for _ in range(2):
        answer = ask(client, schema, ["door"], "", messages=turns, n=2)
        assert [one["message"]["content"] for one in answer["choices"]] == ["1816", "1816"]
    assert cached(answer) > answer["ratoon"]["modules"]["tokens"], "its own tokens are found too"
    wish = {"schema": schema, "use": ["door"]}
    body = {"model": "handbook", "messages": turns, "stream": True, "temperature": 0}
    answer_text = client.post(
        "/v1/chat/completions", json=body | {"ratoon": {"modules": wish}}
    ).text
    assert '"used":["door"]' in answer_text
    assert answer_text.count('"modules"') == 1


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": "What?", "max_tokens": 2}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "What?"}], "max_tokens": 2}),
        ("/v1/responses", {"input": "What?", "max_output_tokens": 16}),
        # a field that is ignored
        ("/v1/responses", {"input": "What?", "tools": [{"type": "web_search"}]}),
        ("/v1/chat/completions", {"messages": [{"role": "system", "content": "Say it."}]}),
        ("/v1beta/models/handbook:generateContent", {"contents": {"parts": {"text": "What?"}}}),
    ],
)
def test_every_route_that_generates_takes_modules(
    client: httpx.Client, stranger: httpx.Client, path: str, fields: dict[str, Any]
) -> None:
    schema = store(client, HANDBOOK)
    for _ in range(2):
        body = {"model": "handbook", **fields}
        body["ratoon"] = {"modules": {"schema": schema, "use": ["alarm", "door"]}}
        answer = client.post(path, json=body)
        assert answer.status_code == 200, answer.text
    told = answer.json()["ratoon"]["modules"]
    assert told["used"] == ["door", "alarm"]
    assert told["cached_tokens"] == told["tokens"]
    refused = stranger.post(path, json=body)
    assert refused.status_code == 404, refused.text


def test_a_schema_is_its_tenants_alone(client: httpx.Client, stranger: httpx.Client) -> None:
    schema = store(client, HANDBOOK)
    assert store(client, HANDBOOK) == schema, "the same one is stored once"
    for method in ("GET", "DELETE"):
        refused = stranger.request(method, f"/v1/modules/{schema}")
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "schema_not_found")
    assert stranger.get("/v1/modules").json()["data"] == []
    ask(client, schema, ["door"], "door code for Oslo")
    theirs = store(stranger, HANDBOOK)
    assert cached(ask(stranger, theirs, ["door"], "door code for Oslo")) == 0
    assert cached(ask(client, schema, ["door"], "door code for Oslo", cache_salt="s")) == 0
    assert cached(ask(client, schema, ["door"], "door code for Oslo")) > 0, "the control"
    [listed] = client.get("/v1/modules").json()["data"]
    shown = client.get(f"/v1/modules/{schema}").json()
    assert {**shown, "schema": None} == {**listed, "schema": None}
    assert shown["schema"] == HANDBOOK


def test_another_text_is_another_schema_with_blocks_of_its_own(client: httpx.Client) -> None:
    first = store(client, HANDBOOK)
    ask(client, first, ["door"], "door code for Oslo")
    modules = [*HANDBOOK["modules"], {"name": "more", "text": "The end."}]
    second = store(client, {**HANDBOOK, "modules": modules})
    assert second != first
    assert cached(ask(client, second, ["door"], "door code for Oslo")) == 0
    assert cached(ask(client, first, ["door"], "door code for Oslo")) > 0


COUNTS: dict[str, tuple[str, dict[str, Any]]] = {
    "/v1/messages/count_tokens": (
        "input_tokens",
        {"messages": [{"role": "user", "content": "What is the door code for Oslo?"}]},
    ),
    "/v1/responses/input_tokens": ("input_tokens", {"input": "What is the door code for Oslo?"}),
    "/v1beta/models/handbook:countTokens": (
        "totalTokens",
        {"contents": {"parts": {"text": "What is the door code for Oslo?"}}},
    ),
}


@pytest.mark.parametrize("path", COUNTS)
def test_counted_tokens_are_those_of_the_request(
    client: httpx.Client, stranger: httpx.Client, path: str
) -> None:
    schema = store(client, HANDBOOK)
    field, fields = COUNTS[path]
    wish = {"ratoon": {"modules": {"schema": schema, "use": ["door", "alarm"]}}}
    body = {"model": "handbook", **fields}
    alone, counted = (client.post(path, json=one).json()[field] for one in (body, body | wish))
    usage = ask(client, schema, ["door", "alarm"], "door code for Oslo")["usage"]
    assert counted == usage["prompt_tokens"] > alone + 100
    if path.endswith(":countTokens"):
        whole = {"generateContentRequest": {**body, **wish}}
        assert client.post(path, json=whole).json()[field] == counted
    assert stranger.post(path, json=body | wish).status_code == 404


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/tokenize", {"prompt": "x"}),
        ("/v1/embeddings", {"input": "x"}),
        ("/v1/rerank", {"query": "x", "documents": ["y"]}),
        (
            "/v1/decisions",
            {"input": "x", "questions": [{"type": "predicate", "instructions": "y"}]},
        ),
        ("/v1beta/models/handbook:embedContent", {"content": {"parts": [{"text": "x"}]}}),
        ("/v1/cache/probe", {"url": "/v1/chat/completions"}),
    ],
)
def test_routes_without_modules_refuse_them(
    client: httpx.Client, path: str, fields: dict[str, Any]
) -> None:
    wish = {"modules": {"schema": store(client, HANDBOOK), "use": ["door"]}}
    chat = {"model": "handbook", "messages": [{"role": "user", "content": "x"}]}

    def sent(ratoon: dict[str, Any] | None) -> httpx.Response:
        if path == "/v1/cache/probe":
            return client.post(path, json={**fields, "body": {**chat, "ratoon": ratoon}})
        return client.post(path, json={"model": "handbook", **fields, "ratoon": ratoon})

    refused = sent(wish)
    assert refused.status_code == 400, refused.text
    assert "ratoon" in refused.text
    assert "ratoon" not in sent(None).text, "the control"


def test_a_deleted_schema_is_gone_with_its_blocks(client: httpx.Client) -> None:
    schema = store(client, HANDBOOK)
    ask(client, schema, ["door"], "door code for Oslo")
    assert client.delete(f"/v1/modules/{schema}").json()["deleted"] is True
    assert client.get(f"/v1/modules/{schema}").status_code == 404
    assert store(client, HANDBOOK) == schema
    assert (
        ask(client, schema, ["door"], "door code for Oslo")["ratoon"]["modules"]["cached_tokens"]
        < 16
    )


def test_a_deleted_schema_leaves_no_blocks_with_a_salt(
    server: Server, client: httpx.Client
) -> None:
    ask(client, store(client, UNION), ["south"], "door code for Oslo", cache_salt="kept")
    before = server.pool()["free"]
    schema = store(client, HANDBOOK)
    for salt in ("one", "other"):
        ask(client, schema, ["door"], "door code for Oslo", cache_salt=salt)
    assert server.pool()["free"] < before, "the control"
    client.delete(f"/v1/modules/{schema}")
    assert server.pool()["free"] == before
    again = ask(client, store(client, UNION), ["south"], "door code for Oslo", cache_salt="kept")
    assert cached(again) > 0, "another schema's blocks stay"


UNION = {
    "modules": [
        {"text": "You answer from a handbook. "},
        {
            "union": [
                {"name": "north", "text": text_of("door")},
                {"name": "south", "text": "None. "},
            ]
        },
        {
            "name": "visitor",
            "parts": [
                "The support code for Paris is ",
                {"parameter": "code", "length": 6},
                ". The alarm code for Oslo is 4242. ",
            ],
        },
    ]
}


def test_unions_and_parameters(client: httpx.Client) -> None:
    schema = store(client, UNION)
    visitor = {"name": "visitor", "values": {"code": "8361"}}
    answer = ask(client, schema, ["north", visitor], "support code for Paris")
    assert said(answer) == "8361"
    assert said(ask(client, schema, ["south", visitor], "alarm code for Oslo")) == "4242"
    assert said(ask(client, schema, ["north", "visitor"], "door code for Oslo")) == "1427"
    for use, code in (
        (["north", "south"], "invalid_value"),
        (["north", "north"], "invalid_value"),
        (["east"], "unknown_module"),
        ([{"name": "visitor", "values": {"name": "x"}}], "unknown_parameter"),
        ([{"name": "visitor", "values": {"code": "1234567"}}], "parameter_too_long"),
    ):
        wish = {"schema": schema, "use": use}
        body = {"model": "handbook", "prompt": "x", "ratoon": {"modules": wish}}
        refused = client.post("/v1/completions", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, code), refused.text


def test_a_value_replaces_its_parameters_scaffold(client: httpx.Client) -> None:
    def parts(**more: str) -> list[Any]:
        code = {"parameter": "code", "length": 6, **more}
        return ["The support code for Paris is ", code, ". The alarm code for Oslo is 4242. "]

    def stored(**more: str) -> str:
        return store(client, {"modules": [{"name": "visitor", "parts": parts(**more)}]})

    schema, without = stored(scaffold="1234"), stored()
    shown = [client.get(f"/v1/modules/{one}").json() for one in (schema, without)]
    assert shown[0]["schema"]["modules"][0]["parts"] == parts(scaffold="1234")
    assert shown[0]["modules"] == shown[1]["modules"], "the same tokens and positions"
    for code in ("8361", "2847"):
        visitor = {"name": "visitor", "values": {"code": code}}
        answer = ask(client, schema, [visitor], "support code for Paris", max_tokens=4)
        assert said(answer) == code
        usage = ask(client, without, [visitor], "support code for Paris", max_tokens=1)["usage"]
        assert answer["usage"]["prompt_tokens"] == usage["prompt_tokens"]
    assert answer["ratoon"]["modules"]["cached_tokens"] == answer["ratoon"]["modules"]["tokens"]
    assert "1234" not in said(ask(client, schema, ["visitor"], "support code for Paris"))
    wrong = {"modules": [{"name": "visitor", "parts": parts(scaffold="1234567")}]}
    refused = client.post("/v1/modules", json=wrong)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "parameter_too_long")


def test_a_scaffold_attends_across_its_modules(client: httpx.Client) -> None:
    """A module that refers to the module before it needs both to be computed together."""
    schema = store(client, {**HANDBOOK, "scaffolds": [["door", "alarm"]]})
    both = ask(client, schema, ["alarm", "door"], "alarm code for Oslo")
    assert said(both) == "1437"
    assert both["ratoon"]["modules"]["together"] == [["door", "alarm"]]
    alone = ask(client, schema, ["door"], "door code for Oslo")
    assert (said(alone), alone["ratoon"]["modules"]["together"]) == ("1427", [])


def test_pml_is_the_same_schema_as_its_json(client: httpx.Client) -> None:
    modules = "".join(f'<module name="{kind}">{text_of(kind)}</module>' for kind in KINDS)
    pml = store(client, {"pml": f'<schema name="handbook">{modules}</schema>'})
    assert said(ask(client, pml, ["door"], "door code for Oslo")) == "1427"


def test_modules_of_pml_need_no_text(client: httpx.Client) -> None:
    """The Prompt Cache paper's examples have modules of only unions, and empty choices."""
    made = store(
        client,
        {
            "pml": '<schema name="visits"><module name="city"><union><module name="none"/>'
            f'<module name="all">{text_of("door")}</module></union></module>'
            '<module name="note"><parameter name="of" length="40"/></module></schema>'
        },
    )
    note = {"name": "note", "values": {"of": "The support code for Paris is 8361. "}}
    answer = ask(client, made, ["city", "city.all", note], "door code for Oslo")
    assert (said(answer), answer["ratoon"]["modules"]["used"]) == (
        "1427",
        ["city", "city.all", "note"],
    )
    assert said(ask(client, made, ["city.none", note], "support code for Paris")) == "8361"
    wish = {"modules": {"schema": made, "use": ["city"]}}
    body = {"model": "handbook", "prompt": "x", "ratoon": wish}
    refused = client.post("/v1/completions", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "ratoon.modules.use")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"modules": []},
        {"modules": [{"name": "a"}]},
        {"modules": [{"name": "a", "text": ""}]},
        {"modules": [{"name": "a", "text": "x", "parts": ["x"]}]},
        {"modules": [{"name": "a", "text": "x"}, {"name": "a", "text": "y"}]},
        {"modules": [{"name": "a b", "text": "x"}]},
        {"modules": [{"union": [{"text": "x"}]}]},
        {"modules": [{"union": [{"union": [{"name": "a", "text": "x"}]}]}]},
        {"modules": [{"parts": []}]},
        {"modules": [{"parts": ["x", {"parameter": "p", "length": 3}]}]},
        {"modules": [{"name": "a", "parts": ["x", {"parameter": "p", "length": 0}]}]},
        {"modules": [{"name": "a", "text": "x"}], "scaffolds": [["a", "b"]]},
        {"modules": [{"name": "a", "text": "x"}], "scaffolds": [["a"]]},
        {"modules": [{"name": "a", "text": "word " * 20_000}]},
        {"modules": [{"name": "a", "text": "x", "colour": "red"}]},
        {"pml": "<schema><module name='a'>x</module>"},
        {"pml": "<!DOCTYPE x><schema><module name='a'>x</module></schema>"},
        {"pml": "<schema><paragraph>x</paragraph></schema>"},
        {"pml": "<schema><module>x</module></schema>"},
        {"pml": "<schema><module name='a'>x<param name='p' len='many'/></module></schema>"},
        {"pml": "<schema>x</schema>", "scaffolds": [["a", "b"]]},
    ],
)
def test_a_schema_that_cannot_be_used_is_refused(
    client: httpx.Client, body: dict[str, Any]
) -> None:
    refused = client.post("/v1/modules", json=body)
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["param"]
    assert client.get("/v1/modules").json()["data"] == []


def test_what_cannot_go_with_modules_is_refused(client: httpx.Client) -> None:
    wish = {"schema": store(client, HANDBOOK), "use": ["door"]}
    body = {"model": "handbook", "prompt": "x", "max_tokens": 2}
    for fields in (
        {"ratoon": {"modules": wish, "explain": True}},
        {"ratoon": {"modules": wish}, "echo": True, "logprobs": 1},
        {"ratoon": {"modules": wish}, "prompt_cache_retention": "24h"},
    ):
        refused = client.post("/v1/completions", json=body | fields)
        assert refused.status_code == 400, refused.text
        assert "modules" in refused.json()["error"]["message"]
    assert client.post("/v1/completions", json=body | {"ratoon": {"modules": wish}}).is_success


def test_modules_survive_a_restart(tmp_path: Path) -> None:
    settings = {"RATOON_MODEL": "handbook", "RATOON_HOST_CACHE_GIB": "0"}
    with running_server(tmp_path, settings) as server:
        key = server.new_tenant()
        with server.client(key) as client:
            schema = store(client, HANDBOOK)
            first = ask(client, schema, [*KINDS], "door code for Oslo")
    with running_server(tmp_path, settings) as server, server.client(key) as client:
        again = ask(client, schema, ["alarm", "door"], "door code for Oslo")
    assert said(again) == said(first) == "1427"
    told = again["ratoon"]["modules"]
    assert told["cached_tokens"] >= told["tokens"] - 3 * 16, "all but each one's last block"
