from __future__ import annotations

from typing import Any

import pytest

from engine.link.interface import ReplicaHealth
from engine.link.view_messages import NodeView, Prefixes, TreeLevel
from gateway.overview.tree_routes import MOST
from tests.gateway.admin.office import Office, body, error_of


def a_node(name: str, parent: str | None = "ns", **fields: Any) -> NodeView:
    values: dict[str, Any] = {
        "node": name,
        "parent": parent,
        "namespace": b"n" * 16,
        "flow": "tn_gone",
        "tokens_before": 16,
        "tokens": 48,
        "device": 2,
        "host": 1,
        "disk": 0,
        "hits": 5,
        "last_used_s": 1.5,
        "children": 4,
    }
    return NodeView(**(values | fields))


async def test_a_level_has_its_node_and_what_lies_below(office: Office) -> None:
    acme = (await office.tenant("acme"))["id"]
    office.engine.levels["a"] = TreeLevel(
        query_id="", is_known=True, node=a_node("a"), children=[a_node("b", "a", flow=acme)], more=3
    )
    told = body(await office.operator.get("/admin/cache/tree", params={"node": "a"}))
    assert (told["node"]["node"], told["parent"], told["tokens_before"]) == ("a", "ns", 64)
    assert told["more"] == 3
    assert told["children"] == [
        {
            "node": "b",
            "parent": "a",
            "label": "tokens 16 to 64",
            "kind": "prefix",
            "tenant": acme,
            "name": "acme",
            "published": None,
            "tokens_before": 16,
            "tokens": 48,
            "blocks": 3,
            "tiers": {"device": 2, "host": 1, "disk": 0},
            "hits": 5,
            "last_used_s": 1.5,
            "children": 4,
            "text": None,
        }
    ]


async def test_of_several_engines_each_label_says_which_it_is(office: Office) -> None:
    office.engine.replicas = {
        "0": ReplicaHealth("ready", "", "aaaaaaaabbbb"),
        "1": ReplicaHealth("ready", "", "ccccccccdddd"),
    }
    nodes = [a_node("cccccccc-7"), a_node("aaaaaaaa-7"), a_node("gone-1")]
    office.engine.levels[None] = TreeLevel(query_id="", is_known=True, children=nodes)
    told = body(await office.operator.get("/admin/cache/tree"))
    labels = [one["label"].removeprefix("tokens 16 to 64") for one in told["children"]]
    assert labels == [" (engine 1)", " (engine 0)", ""]


async def test_prefixes_are_asked_for_in_their_order(office: Office) -> None:
    office.engine.listed = Prefixes(
        query_id="", prefixes=[a_node("a")], surveyed=7, nodes=9, age_s=None
    )
    told = body(
        await office.operator.get("/admin/cache/prefixes", params={"order": "wasteful", "limit": 9})
    )
    assert office.engine.prefix_asks == [("wasteful", 9)]
    assert [row["node"] for row in told["prefixes"]] == ["a"]
    assert (told["order"], told["surveyed"], told["nodes"]) == ("wasteful", 7, 9)
    assert told["age_s"] is None


@pytest.mark.parametrize(
    ("path", "param"),
    [
        (f"/admin/cache/tree?limit={MOST + 1}", "limit"),
        ("/admin/cache/prefixes?limit=0", "limit"),
        ("/admin/cache/prefixes?order=best", "order"),
    ],
)
async def test_what_is_out_of_bounds_is_refused(office: Office, path: str, param: str) -> None:
    assert error_of(await office.operator.get(path))[0::2] == (400, param)


async def test_a_node_that_left_is_not_found(office: Office) -> None:
    answer = await office.operator.get("/admin/cache/tree", params={"node": "gone"})
    assert error_of(answer) == (404, "not_found", "node")


async def test_without_an_engine_it_says_so(office: Office) -> None:
    office.engine.connected = False
    assert (await office.operator.get("/admin/cache/tree")).status_code == 503
