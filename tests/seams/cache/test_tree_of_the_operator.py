"""The operator sees the owners and sizes of the cache's tree, but no tenant's text.

Two tenants send prompts that continue a published prefix, in a real server. The prefix is shown
with its text, as a positive control for the tenants' canaries, which are never shown.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from handbook.texts.handbooks import make_handbook
from tests.doubles.waiting import wait_for
from tests.seams.support.canaries import canary, finds, forms
from tests.seams.support.ratoon import printed_by
from tests.seams.support.server import Server, running_server

BLOCK = 16
SETTINGS = {"RATOON_HOST_CACHE_TOKENS": "0", "RATOON_DISK_CACHE_GIB": "0"}


class House:
    """A server with a published prefix, and two tenants whose prompts continued the prefix."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.system = make_handbook(7, 25).text
        self.prefix = self._publish(f"handbook-{uuid.uuid4().hex[:8]}")
        self.names = [f"tenant-{uuid.uuid4().hex[:8]}" for _ in range(2)]
        self.said = [canary("what is the meaning of ") * 4 for _ in range(2)]
        self.ids = [self._ask(name, text) for name, text in zip(self.names, self.said, strict=True)]

    def admin(self, path: str, **params: Any) -> Any:
        answer = self.raw(path, **params)
        return answer.json()

    def raw(self, path: str, **params: Any) -> Any:
        with self.server.client(self.server.admin_key) as client:
            answer = client.get(path, params=params)
            answer.raise_for_status()
            return answer

    def ratoon(self, *words: str) -> str:
        """Return the output of an operator's command."""
        target = ("--url", self.server.url, "--admin-key", self.server.admin_key)
        log = self.server.data_dir.parent / f"{uuid.uuid4().hex}.log"
        return printed_by([*words, *target], log)

    def namespaces(self) -> dict[str, dict[str, Any]]:
        return {row["label"]: row for row in self.admin("/admin/cache/tree")["children"]}

    def below(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        found = self.admin("/admin/cache/tree", node=row["node"])
        assert found["node"]["node"] == row["node"]
        assert found["more"] == 0
        children: list[dict[str, Any]] = found["children"]
        return children

    def everything(self) -> dict[str, bytes]:
        """Return every answer about the cache, including the whole tree."""
        paths = ("/admin/overview", "/admin/requests", "/admin/refusals", "/admin/cache/tree")
        found = {path: self.raw(path).content for path in paths}
        for order in ("hot", "wasteful"):
            found[order] = self.raw("/admin/cache/prefixes", order=order, limit=200).content
        waiting = list(self.namespaces().values())
        while waiting:
            row = waiting.pop()
            found[row["node"]] = self.raw("/admin/cache/tree", node=row["node"]).content
            waiting += self.below(row)
        return found

    def _publish(self, name: str) -> dict[str, Any]:
        messages = [{"role": "system", "content": self.system}]
        with self.server.client(self.server.admin_key) as client:
            sent = {"name": name, "scope": "all", "messages": messages}
            made: dict[str, Any] = client.post("/admin/prefixes", json=sent).json()
        path = f"/admin/prefixes/{made['id']}"
        wait_for(lambda: self.admin(path)["state"] == "warm", 60)
        return made

    def _ask(self, name: str, text: str) -> str:
        """Send the same prompt twice, so that the second request hits the cache."""
        with self.server.client(self.server.admin_key) as client:
            made = client.post("/admin/tenants", json={"name": name}).json()
            key = client.post(f"/admin/tenants/{made['id']}/keys").json()["key"]
        messages = [
            {"role": "system", "content": self.system},
            {"role": "user", "content": text},
        ]
        with self.server.client(key) as client:
            for _ in range(2):
                sent = {"model": "handbook", "messages": messages, "max_tokens": 2}
                client.post("/v1/chat/completions", json=sent).raise_for_status()
        tenant_id: str = made["id"]
        return tenant_id


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    data_dir = tmp_path_factory.mktemp("tree") / "data"
    with running_server(data_dir, SETTINGS) as server:
        yield House(server)


def test_there_is_a_namespace_for_what_is_published_and_for_each_tenant(house: House) -> None:
    found = house.namespaces()
    assert found.keys() == {"published for everyone", *house.names}
    assert {row["kind"] for row in found.values()} == {"namespace"}
    for name, tenant_id in zip(house.names, house.ids, strict=True):
        assert (found[name]["tenant"], found[name]["name"]) == (tenant_id, name)
    assert found["published for everyone"]["tenant"] is None


def test_each_has_its_tokens_and_hits_and_all_lie_on_the_device(house: House) -> None:
    found = house.namespaces()
    published = found["published for everyone"]
    assert house.prefix["tokens"] <= published["tokens"] < house.prefix["tokens"] + BLOCK
    assert published["hits"] >= 4  # two requests of each tenant
    for row in found.values():
        assert row["tokens"] == BLOCK * row["blocks"] > 0
        assert row["tiers"] == {"device": row["blocks"], "host": 0, "disk": 0}
    assert [found[name]["hits"] for name in house.names] == [1, 1]
    held = house.admin("/admin/cache/stats")["pool"]["blocks"]["used"]
    assert sum(row["blocks"] for row in found.values()) == held


def test_the_tree_can_be_walked_to_its_leaves_and_adds_up(house: House) -> None:
    for row in house.namespaces().values():
        tokens, waiting = 0, house.below(row)
        while waiting:
            node = waiting.pop()
            if node["tenant"] != row["tenant"]:
                # a child of a published node, which is listed in the tenant's own namespace
                continue
            tokens += node["tokens"]
            waiting += house.below(node)
        assert tokens == row["tokens"]


def test_a_tenants_first_node_comes_after_what_is_published(house: House) -> None:
    (first,) = house.below(house.namespaces()[house.names[0]])
    assert first["tokens_before"] == house.prefix["tokens"] // BLOCK * BLOCK
    assert first["text"] is None
    assert first["published"] is None


def test_what_is_published_has_its_name_and_its_text(house: House) -> None:
    (first, *_) = house.below(house.namespaces()["published for everyone"])
    assert first["published"] == house.prefix["id"]
    assert first["label"] == f"{house.prefix['name']} v1"
    assert house.system[:200] in first["text"]


def test_the_hottest_prefix_is_the_published_one(house: House) -> None:
    found = house.admin("/admin/cache/prefixes", order="hot")
    assert found["surveyed"] == found["nodes"] > 0
    assert found["prefixes"][0]["published"] == house.prefix["id"]
    wasteful = house.admin("/admin/cache/prefixes", order="wasteful")["prefixes"]
    uses = [row["blocks"] / (1 + row["hits"]) for row in wasteful]
    assert uses == sorted(uses, reverse=True)


def test_no_answer_has_a_tenants_text_and_what_is_published_is_there(house: House) -> None:
    with house.server.client() as client:
        told = [client.post("/tokenize", json={"prompt": text}).json() for text in house.said]
    secrets = {
        name: forms(text, said["tokens"][2:-2])
        for name, text, said in zip(house.names, house.said, told, strict=True)
    }
    places = house.everything()
    assert len(places) > 8
    assert finds(secrets, places) == []
    shown = house.system.strip().splitlines()[1]
    assert finds({"published": {"plain": shown.encode()}}, places)


def test_a_node_that_is_gone_is_not_found(house: House) -> None:
    with house.server.client(house.server.admin_key) as client:
        answer = client.get("/admin/cache/tree", params={"node": "nothing-1"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"


def test_the_command_shows_the_same_tree(house: House) -> None:
    shown = house.ratoon("cache", "tree", "--depth", "9")
    for name in ("published for everyone", *house.names):
        assert f"\n{name}: " in "\n" + shown
    assert house.system.strip().splitlines()[1][:20] in shown
    assert not any(text[:40] in shown for text in house.said)
    alone = house.ratoon("cache", "tree", "--tenant", house.names[0], "--json")
    (namespace,) = json.loads(alone)
    assert namespace["tenant"] == house.ids[0]
    assert namespace["below"]
