from __future__ import annotations

from typing import Any

import pytest

from cli.errors import CliError
from cli.operating import cache_tree
from cli.operating.cache_tree import MOST_CHILDREN, Walk, show


def row(node: str, parent: str | None, children: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "node": node,
        "parent": parent,
        "label": f"label {node}",
        "kind": "namespace" if parent is None else "prefix",
        "tenant": "tn_1",
        "name": "acme",
        "tokens": 1600,
        "tiers": {"device": 90, "host": 10, "disk": 0},
        "hits": 7,
        "last_used_s": 3.4,
        "children": children,
        "text": None,
    } | more


LEVELS = {
    None: [row("n1", None, 2), row("n2", None, 1, tenant="tn_2", name="bell")],
    "n1": [row("a", "n1", 1), row("x", "elsewhere")],
    "a": [row("b", "a", 5)],
    "n2": [row("c", "n2")],
}


class TreeServer:
    """A server of `/admin/cache/tree`; `asked` records the requested nodes."""

    def __init__(self, more: int = 0) -> None:
        self.more = more
        self.asked: list[str | None] = []

    async def call(self, method: str, path: str) -> dict[str, Any]:
        _, _, node = path.partition("&node=")
        self.asked.append(node or None)
        return {"children": LEVELS[node or None], "more": self.more}


async def walk(server: TreeServer, depth: int, owner: str | None = None) -> list[dict[str, Any]]:
    return await Walk(server, 20, owner).from_root(depth)  # type: ignore[arg-type]


async def test_it_reads_as_many_levels_as_wanted() -> None:
    server = TreeServer()
    first, second = await walk(server, 2)
    assert server.asked == [None, "n1", "n2"]
    assert [child["node"] for child in first["below"]] == ["a"]
    assert first["below"][0]["below"] is None
    assert first["below"][0]["more"] == 1
    assert [child["node"] for child in second["below"]] == ["c"]


async def test_one_tenants_part_alone_is_read() -> None:
    server = TreeServer()
    (found,) = await walk(server, 2, "tn_2")
    assert found["name"] == "bell"
    assert server.asked == [None, "n2"]


async def test_a_tenant_that_is_not_among_the_largest_is_said_to_be() -> None:
    assert await walk(TreeServer(), 2, "tn_9") == []
    with pytest.raises(CliError, match=str(MOST_CHILDREN)):
        await walk(TreeServer(more=1), 2, "tn_9")


async def test_no_more_nodes_are_read_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_tree, "MOST_NODES", 3)
    server = TreeServer()
    _, second = await walk(server, 9)
    assert server.asked == [None, "n1"]
    assert second["below"] is None


async def test_it_is_shown_indented(capsys: pytest.CaptureFixture[str]) -> None:
    show(await walk(TreeServer(), 3))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == ("label n1: 1,600 tokens, 7 hits, used 3 s ago; blocks: 90 device, 10 host")
    assert [len(line) - len(line.lstrip()) for line in lines] == [0, 2, 4, 6, 0, 2]
    assert lines[3].strip() == "(5 more)"


def test_text_is_one_line_that_no_terminal_obeys(capsys: pytest.CaptureFixture[str]) -> None:
    show([row("p", "n1", text="Be\nbrief \x1b[31m" + "x" * 99) | {"below": [], "more": 0}])
    out = capsys.readouterr().out
    assert '"Be brief [31mxxx' in out
    assert "\x1b" not in out
    assert out.count("\n") == 1


def test_an_empty_cache_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    show([])
    assert capsys.readouterr().out == "The cache holds nothing.\n"
