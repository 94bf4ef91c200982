"""Tenants' adapters on a whole server: each has an owner, and blocks that only it uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import torch
from safetensors.torch import save_file

from tests.doubles.engine.tiny_model import RUNNABLE, write_tiny_model
from tests.doubles.models.lora_files import CONFIG
from tests.doubles.waiting import wait_for
from tests.seams.support.ratoon import forked
from tests.seams.support.server import Server, running_server

RANK = 4
INVOCATION = [70, 71, 72]
PROMPT = "A prompt of more than three blocks of sixteen tokens, each token of which is a byte."
HIDDEN, HEADS = 64, {"q_proj": 64, "v_proj": 32}


def write_lora(folder: Path, seed: int, **config: Any) -> None:
    """Write an adapter that changes the tiny model's answers."""
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(seed)
    fields = {"r": RANK, "lora_alpha": 64, "target_modules": [*HEADS]}
    (folder / "adapter_config.json").write_bytes(msgspec.json.encode(CONFIG | fields | config))
    tensors = {}
    for layer in range(RUNNABLE["num_hidden_layers"]):
        for name, rows in HEADS.items():
            matrix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{matrix}.lora_A.weight"] = torch.randn(RANK, HIDDEN, generator=generator)
            tensors[f"{matrix}.lora_B.weight"] = torch.randn(rows, RANK, generator=generator)
    save_file(tensors, folder / "adapter_model.safetensors")


@dataclass
class Tenant:
    """A tenant's client, and the operator's client for its adapters."""

    id: str
    http: httpx.Client
    operator: httpx.Client

    def load(self, name: str, path: str) -> httpx.Response:
        return self.operator.post(
            f"/admin/tenants/{self.id}/adapters", json={"name": name, "path": path}
        )

    def drop(self, name: str) -> httpx.Response:
        return self.operator.delete(f"/admin/tenants/{self.id}/adapters/{name}")

    def models(self) -> list[str]:
        return [one["id"] for one in self.http.get("/v1/models").json()["data"]]

    def ask(self, model: str, **fields: Any) -> httpx.Response:
        body = {"model": model, "prompt": PROMPT, "max_tokens": 8, "temperature": 0}
        return self.http.post("/v1/completions", json=body | {"ignore_eos": True, **fields})

    def answer(self, model: str, **fields: Any) -> tuple[str, int]:
        """Return the answer, and the number of cached prompt tokens."""
        answer = self.ask(model, return_token_ids=True, **fields)
        assert answer.status_code == 200, answer.text
        found = answer.json()
        assert found["model"] == model
        cached: int = found["usage"]["prompt_tokens_details"]["cached_tokens"]
        return str(found["choices"][0]["token_ids"]), cached


class Place:
    """A model, a folder of adapters, a data directory, and servers with them."""

    def __init__(self, directory: Path) -> None:
        self.model = write_tiny_model(directory / "tiny", config=RUNNABLE)
        self.adapters, self.data_dir = directory / "adapters", directory / "data"
        self.adapters.mkdir()
        for seed, name in enumerate(("one", "two")):
            write_lora(self.adapters / name, seed)
            config = {"alora_invocation_tokens": INVOCATION}
            write_lora(self.adapters / f"activated-{name}", seed, **config)

    @contextmanager
    def serving(self, **settings: str) -> Iterator[Server]:
        wanted = {
            "RATOON_MODEL": str(self.model),
            "RATOON_LOAD_FORMAT": "dummy",
            "RATOON_ADAPTERS_DIR": str(self.adapters),
            "RATOON_ADAPTER_SLOTS": "1",
            **settings,
        }
        with running_server(self.data_dir, wanted) as server:
            yield server


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="module")
def server(place: Place) -> Iterator[Server]:
    with place.serving() as server:
        yield server


@contextmanager
def known(server: Server, tenant_id: str, key: str) -> Iterator[Tenant]:
    with server.client(key) as http, server.client(server.admin_key) as operator:
        yield Tenant(tenant_id, http, operator)


@contextmanager
def tenant_of(server: Server) -> Iterator[Tenant]:
    key = server.new_tenant()
    with server.client(server.admin_key) as operator:
        newest = operator.get("/admin/tenants").json()["tenants"][-1]["id"]
    with known(server, newest, key) as tenant:
        yield tenant


@pytest.fixture
def tenant(server: Server) -> Iterator[Tenant]:
    with tenant_of(server) as tenant:
        yield tenant


@pytest.fixture
def other(server: Server) -> Iterator[Tenant]:
    with tenant_of(server) as tenant:
        yield tenant


def test_activated_adapters_find_what_the_model_has_cached(tenant: Tenant, other: Tenant) -> None:
    before = [(5 * at) % 60 + 5 for at in range(70)]
    prompt, names = [*before, *INVOCATION, *before[:10]], ("one", "two")
    for who in (tenant, other):
        for name in names:
            assert who.load(name, f"activated-{name}").json()["invocation"] == INVOCATION
    answers = {tenant.answer("tiny", prompt=before)[0]}
    for name in names:
        answer, cached = tenant.answer(name, prompt=prompt)
        # all whole blocks before the invocation, at which the adapter is activated
        assert cached == 64
        assert tenant.answer(name, prompt=prompt) == (answer, 80)
        assert tenant.answer(name, prompt=prompt, cache_salt=name) == (answer, 0)
        answers.add(answer)
    assert len(answers) == 3, "else a mix-up would not show"
    assert other.answer("one", prompt=prompt)[1] == 0
    refused = tenant.ask("one", prompt=before)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "adapter_not_invoked")
    assert tenant.drop("one").json()["flushed_blocks"] == 2
    assert tenant.answer("two", prompt=prompt)[1] == 80
    assert tenant.answer("tiny", prompt=before)[1] == 64


def test_what_is_published_is_not_shared_by_two_tenants_with_one_adapter(
    tenant: Tenant, other: Tenant
) -> None:
    """The block with the adapter is not pinned, so a hit would reveal another tenant's request."""
    text = "A text that the operator publishes for all, of more than three blocks of bytes."
    made = tenant.operator.post("/admin/prefixes", json={"name": "text", "text": text})
    assert made.status_code == 201, made.text
    path = f"/admin/prefixes/{made.json()['id']}"
    wait_for(lambda: tenant.operator.get(path).json()["state"] == "warm", 30)
    for who in (tenant, other):
        assert who.load("support", "one").status_code == 201
        assert who.answer("tiny", prompt=text + "?")[1] >= 64, "the control: the model shares it"
    for who in (tenant, other):
        assert who.answer("support", prompt=text + "?")[1] == 0
        assert who.answer("support", prompt=text + "?")[1] >= 64, "the control: its own is found"
    assert tenant.operator.delete(path).status_code < 300


def test_a_tenant_names_its_own_adapters_and_no_others(tenant: Tenant, other: Tenant) -> None:
    made = tenant.load("support", "one")
    assert made.status_code == 201, made.text
    assert made.json()["rank"] == RANK
    assert tenant.models() == ["tiny", "support"]
    assert tenant.http.get("/v1/models/support").json()["parent"] == "tiny"
    assert other.models() == ["tiny"]
    assert tenant.ask("support").status_code == 200
    refused = other.ask("support")
    assert refused.status_code == 404
    assert refused.json()["error"]["code"] == "model_not_found"
    message = {"max_tokens": 2, "messages": [{"role": "user", "content": "hi"}]}
    for who, status in ((tenant, 200), (other, 404)):
        answer = who.http.post("/v1/messages", json={"model": "support", **message})
        assert answer.status_code == status
    assert answer.json()["error"]["type"] == "not_found_error"
    for path, fields in (
        ("/v1/chat/completions", {"messages": message["messages"], "max_tokens": 2}),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 16}),
    ):
        assert tenant.http.post(path, json={"model": "support", **fields}).status_code == 200
        assert other.http.post(path, json={"model": "support", **fields}).status_code == 404


def test_what_cannot_be_loaded_is_refused_by_name(tenant: Tenant, place: Place) -> None:
    assert tenant.load("tiny", "one").status_code == 409
    dora = place.adapters / "dora"
    write_lora(dora, 5)
    (dora / "adapter_config.json").write_bytes(
        msgspec.json.encode(CONFIG | {"r": RANK, "use_dora": True})
    )
    for path, said in (("dora", "use_dora"), ("../data", "below"), ("nobody", "nobody")):
        refused = tenant.load("bad", path)
        assert refused.status_code == 400, refused.text
        assert refused.json()["error"]["code"] == "adapter_not_served"
        assert said in refused.json()["error"]["message"]
    assert tenant.models() == ["tiny"]


def test_a_tenant_loads_its_own_where_it_may(tenant: Tenant, other: Tenant, place: Place) -> None:
    write_lora(place.adapters / tenant.id / "mine", 7)
    wish = {"lora_name": "mine", "lora_path": "mine"}
    refused = tenant.http.post("/v1/load_lora_adapter", json=wish)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "adapters_not_allowed")
    for who in (tenant, other):
        allowed = who.operator.patch(f"/admin/tenants/{who.id}", json={"max_own_adapters": 1})
        assert allowed.json()["max_own_adapters"] == 1
    assert tenant.http.post("/v1/load_lora_adapter", json=wish).json()["is_own"] is True
    assert tenant.ask("mine").status_code == 200
    more = tenant.http.post("/v1/load_lora_adapter", json=wish | {"lora_name": "more"})
    assert (more.status_code, more.json()["error"]["code"]) == (403, "too_many_adapters")
    # names that point to another tenant's adapter, and to the operator's
    for path in ("mine", f"../{tenant.id}/mine", "../one"):
        stolen = other.http.post("/v1/load_lora_adapter", json=wish | {"lora_path": path})
        assert stolen.status_code == 400
    assert tenant.load("given", "one").status_code == 201
    for name, status in (("given", 404), ("mine", 200)):  # the operator's adapter stays
        gone = tenant.http.post("/v1/unload_lora_adapter", json={"lora_name": name})
        assert gone.status_code == status
    assert tenant.models() == ["tiny", "given"]


def test_the_command_loads_lists_and_drops(tenant: Tenant, server: Server, tmp_path: Path) -> None:

    def ratoon(*words: str) -> str:
        log = tmp_path / f"{words[0]}.log"
        process = forked(["adapters", *words], {"RATOON_DATA_DIR": str(server.data_dir)}, log)
        assert process.wait() == 0, log.read_text()
        return log.read_text()

    assert "rank 4" in ratoon("load", tenant.id, "support", "one")
    assert "support" in ratoon("list", tenant.id)
    assert tenant.models() == ["tiny", "support"]
    ratoon("drop", tenant.id, "support")
    assert tenant.models() == ["tiny"]


def test_nothing_that_one_has_computed_serves_another_in_any_tier(tmp_path: Path) -> None:
    place, names = Place(tmp_path), ("tiny", "one", "two")
    first: dict[str, str] = {}
    with place.serving() as server, tenant_of(server) as tenant:
        for name in names[1:]:
            assert tenant.load(name, name).status_code == 201
        for name in names:
            first[name], cached = tenant.answer(name)
            assert cached == 0, f"{name} was given what another has computed"
        for name in names:
            assert tenant.answer(name) == (first[name], 80), "its own is found"
        assert tenant.answer("one", cache_salt="s")[1] == 0
        assert tenant.load("same", "one").status_code == 201
        assert tenant.answer("same") == (first["one"], 80)  # positive control: the same adapter
        key = tenant.http.headers["Authorization"].removeprefix("Bearer ")
    assert len(set(first.values())) == len(names), "else a mix-up would not show"
    with (
        # without a host tier, so that all hits come from the disk
        place.serving(RATOON_HOST_CACHE_TOKENS="0") as server,
        known(server, tenant.id, key) as again,
    ):
        for name in names:
            assert again.answer(name) == (first[name], 80)
        assert again.answer("two", cache_salt="s")[1] == 0
        # the adapter "same" still uses these blocks
        assert again.drop("one").json()["flushed_blocks"] == 0
        assert again.ask("one").status_code == 404
        assert again.answer("same") == (first["one"], 80)
        assert again.drop("same").json()["flushed_blocks"] == 5  # only blocks without a salt
        assert again.load("same", "one").status_code == 201
        assert again.answer("same") == (first["one"], 0)
        assert again.answer("two") == (first["two"], 80)
