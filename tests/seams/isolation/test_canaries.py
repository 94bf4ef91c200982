"""No text of a prompt or key appears in logs, metrics, traces, errors or on disk.

One server reports as much as it can: debug logs, and traces to a collector. Canaries are sent in
requests that succeed, are refused, are aborted, or meet the engine's death. Then all files and
outputs are searched in every form in which text survives.
"""

from __future__ import annotations

import base64
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from tests.doubles.gateway.collector import Collector, collecting
from tests.doubles.gateway.redis_server import redis_server
from tests.doubles.waiting import wait_for
from tests.seams.support.canaries import canary, files_of, finds, forms
from tests.seams.support.server import Server, running_server

LOOKED_AT = (
    "/metrics",
    "/admin/cache/stats",
    "/admin/tenants",
    "/admin/overview",
    "/admin/requests",
    "/admin/refusals",
    "/admin/cache/tree",
    "/admin/cache/prefixes",
)
ENDS = ("cancelled", "engine_died")  # ends of requests that traces record for aborted requests
LONG = {"stream": True, "max_tokens": 3000, "ignore_eos": True}


@dataclass
class Scene:
    """A server, and the canaries sent to it."""

    server: Server
    collector: Collector
    log: Path
    kept_in: tuple[Path, ...]  # files that the server, and Redis if there is one, write
    secrets: dict[str, dict[str, bytes]] = field(default_factory=dict)
    errors: dict[str, bytes] = field(default_factory=dict)
    statuses: set[int] = field(default_factory=set)

    def secret(self, name: str, prefix: str = "") -> str:
        """Make a canary, and remember it with its token ids."""
        text = canary(prefix)
        with self.server.client() as client:
            answer = client.post("/tokenize", json={"prompt": text, "add_special_tokens": False})
        # Tokens at the canary's edges depend on the text around it.
        self.secrets[name] = forms(text, answer.json()["tokens"][2:-2])
        return text

    def keep(self, name: str, answer: httpx.Response) -> None:
        """Keep an error's body and headers, to be searched."""
        self.statuses.add(answer.status_code)
        self.errors[f"error body: {name}"] = answer.content + str(answer.headers.raw).encode()

    def places(self) -> dict[str, bytes]:
        """Return all contents of files and outputs that the server has left, by place."""
        with self.server.client(self.server.admin_key) as client:
            told = {path: client.get(path).content for path in LOOKED_AT}
        traces = {f"trace {number}": body for number, body in enumerate(self.collector.raw)}
        log = {"log": self.log.read_bytes()}
        files = [item for place in self.kept_in for item in files_of(place).items()]
        return {**self.errors, **told, **traces, **log, **dict(files)}


@pytest.fixture(scope="module", params=["sqlite", "redis"])
def scene(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    """Run a server with SQLite or Redis as its store, and send every canary to it."""
    directory = tmp_path_factory.mktemp("canaries")
    data_dir, store_dir = directory / "data", directory / "store"
    store_dir.mkdir()
    with ExitStack() as stack:
        collector = stack.enter_context(collecting())
        settings = {"RATOON_LOG_LEVEL": "debug", "RATOON_OTLP_ENDPOINT": collector.url}
        if request.param == "redis":
            redis = stack.enter_context(redis_server(store_dir, "--appendonly", "yes"))
            settings["RATOON_REDIS_URL"] = redis.url
        server = stack.enter_context(running_server(data_dir, settings))
        scene = Scene(server, collector, directory / "data.log", (data_dir, store_dir))
        succeed(scene)
        refuse(scene)
        abort(scene)
        crash(scene)
        wait_for(lambda: all(exported(collector, end) for end in ENDS), 30)
        yield scene


def exported(collector: Collector, end: str) -> bool:
    """Return whether a trace with this end has come. Spans come in batches, seconds later."""
    return any(end in str(body) for body in collector.raw)


def chat(*texts: str, **more: object) -> dict[str, object]:
    """Make a chat whose messages are `texts`."""
    messages = [{"role": "user", "content": text, "name": text[:60]} for text in texts]
    return {"model": "handbook", "messages": messages, "max_tokens": 2, **more}


def succeed(scene: Scene) -> None:
    text, salt, stop = (scene.secret(f"success, {name}") for name in ("prompt", "salt", "stop"))
    key = scene.server.new_tenant()
    scene.secrets["a tenant's key"] = forms(key)
    with scene.server.client(key) as client:
        tool = {
            "type": "function",
            "function": {"name": text, "description": text, "parameters": {text: text}},
        }
        for body in (
            chat(text, cache_salt=salt, stop=[stop]),
            chat(text, user=text, metadata={text: text}),
            chat(text, stream=True),
            chat(text, tools=[tool], tool_choice="none"),
        ):
            headers = {"tracestate": f"vendor={text}", "baggage": f"prompt={text}"}
            answer = client.post("/v1/chat/completions", json=body, headers=headers)
            assert answer.status_code in (200, 400), answer.text
            scene.statuses.add(answer.status_code)
        prompt = {"model": "handbook", "prompt": text, "max_tokens": 1}
        assert client.post("/v1/completions", json=prompt).status_code == 200


def refuse(scene: Scene) -> None:
    text = scene.secret("refusal")
    bodies: dict[str, object] = {
        "wrong type": chat(text, temperature=text),
        "wrong value": chat(text, temperature=-1, seed=text),
        "unknown model": chat(text, model=text),
        "unknown field": chat(text, **{text: text}),
        "template": chat(text, chat_template=text, chat_template_kwargs={text: text}),
        "role": {"model": "handbook", "messages": [{"role": text, "content": text}]},
        "tool": chat(text, tools=[{"type": "function", "function": {"name": text}}]),
        "bad tool": chat(
            text,
            tools=[{"type": "function", "function": {"name": text, "parameters": text}}],
            tool_choice="none",
        ),
        "too long": chat(text * 40_000),
        "logit bias": chat(text, logit_bias={text: 1}),
    }
    with scene.server.client() as client:
        for name, body in bodies.items():
            scene.keep(name, client.post("/v1/chat/completions", json=body))
        broken = f'{{"messages": [{{"content": "{text}'
        scene.keep("no json", client.post("/v1/chat/completions", content=broken))
        scene.keep("no route", client.get(f"/v1/{text}", params={text: text}))
        scene.keep("no model", client.get(f"/v1/models/{text}"))
        scene.keep("no method", client.delete("/v1/models", headers={"x-prompt": text}))
    key = scene.secret("a key that is none", "sk-")
    for headers in (
        {"authorization": f"Bearer {key}"},
        {"x-api-key": key},
        {"authorization": f"Bearer {key}", "x-api-key": scene.server.demo_key},
    ):
        scene.keep(
            str(len(scene.errors)), httpx.get(scene.server.url + "/v1/models", headers=headers)
        )
    scene.keep("admin", httpx.get(scene.server.url + "/admin/tenants", params={"key": key}))


def abort(scene: Scene) -> None:
    body = chat(scene.secret("abort"), **LONG)
    with (
        scene.server.client() as client,
        client.stream("POST", "/v1/chat/completions", json=body) as answer,
    ):
        next(answer.iter_lines())
    wait_for(lambda: scene.server.stats()["queue"]["running"] == 0, 30)


def crash(scene: Scene) -> None:
    body, late = chat(scene.secret("crash"), **LONG), chat(scene.secret("no engine"))
    supervisor = scene.server.process.pid
    with scene.server.client() as client:
        with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            os.kill(supervisor, signal.SIGSTOP)  # stopped, so that no engine is started meanwhile
            os.kill(scene.server.children()["engine"], signal.SIGKILL)
            told = [line for line in lines if '"error"' in line]
        scene.errors["error event: crash"] = told[-1].encode()
        wait_for(lambda: not scene.server.is_ready(), 10)
        scene.keep("no engine", client.post("/v1/chat/completions", json=late))
    os.kill(supervisor, signal.SIGCONT)
    scene.server.wait_until_ready()


def test_every_way_was_taken(scene: Scene) -> None:
    assert scene.statuses >= {200, 400, 401, 404, 405, 503}
    assert b"engine_died" in scene.errors["error event: crash"]
    assert all(exported(scene.collector, end) for end in ENDS)
    assert scene.log.read_bytes()


def test_nothing_of_a_prompt_or_a_key_is_left_behind(scene: Scene) -> None:
    assert finds(scene.secrets, scene.places()) == []


def test_control_the_search_covers_the_places_where_names_are_kept(scene: Scene) -> None:
    """Tenants' names are stored, so the search must find them."""
    kept = {name: content for name, content in scene.places().items() if name.startswith("/")}
    files = {str(path): content for path, content in kept.items() if "/admin/" not in path}
    assert finds({"name": {"plain": b"demo2"}}, {k: v for k, v in files.items() if "keys" not in k})


def test_the_keys_of_the_first_start_are_in_their_file_alone(scene: Scene) -> None:
    keys = {name: forms(key) for name, key in scene.server.keys.items()}
    elsewhere = {
        name: content for name, content in scene.places().items() if not name.endswith("keys.env")
    }
    assert finds(keys, elsewhere) == []
    assert {find.split()[0] for find in finds(keys, scene.places())} == keys.keys()


def test_no_tenant_is_named_where_tenants_share(scene: Scene) -> None:
    """Metrics and traces are seen by more people than one tenant."""
    names = {name: {"plain": name.encode()} for name in ("demo2", "tenant-")}
    shared = {
        name: content
        for name, content in scene.places().items()
        if name == "/metrics" or name.startswith("trace")
    }
    assert finds(names, shared) == []
    assert finds(names, {"list": scene.places()["/admin/tenants"]})


def test_the_search_finds_what_is_planted_in_any_place_and_form(scene: Scene) -> None:
    for place, content in scene.places().items():
        for name, its_forms in scene.secrets.items():
            for form, needle in its_forms.items():
                planted = {
                    place: content[: len(content) // 2] + needle + content[len(content) // 2 :]
                }
                found = finds({name: {form: needle}}, planted)
                assert found == [f"{name} ({form}) in {place}"]


def test_a_planted_canary_is_found_in_base64_wherever_it_begins() -> None:
    text = canary()
    for before in range(3):
        content = base64.b64encode(b"x" * before + text.encode() + b"yy")
        assert finds({"it": forms(text)}, {"there": content})
