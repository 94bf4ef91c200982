"""`ratoon cache tree`: the cached prefixes by owner, as an indented tree."""

from typing import Annotated, Any
from urllib.parse import quote

import typer

from cli.echo import echo
from cli.errors import CliError
from cli.operating.admin_client import TENANTS, AdminClient, with_admin
from cli.options.options import AdminFlags
from cli.output import print_result

TREE = "/admin/cache/tree"
MOST_LEVELS, MOST_CHILDREN, MOST_NODES = 20, 200, 2000
_TEXT = 60
_INDENT = "  "


def tree(
    admin: AdminFlags,
    tenant: Annotated[
        str | None, typer.Option(help="Only what this tenant owns, by name or id.")
    ] = None,
    depth: Annotated[
        int, typer.Option(help="How many levels to show.", min=1, max=MOST_LEVELS)
    ] = 3,
    limit: Annotated[
        int, typer.Option(help="How many of each node's children.", min=1, max=MOST_CHILDREN)
    ] = 20,
) -> None:
    """Show the cache's tree: namespaces, and below each the prefixes that lie in it.

    Each line has the tokens that it adds, the requests that found it, when it was last used, and
    the tiers that its blocks lie in. Only published prefixes are shown with their text.

    Example:

        ratoon cache tree --tenant acme --depth 5
    """

    async def use(client: AdminClient) -> list[dict[str, Any]]:
        owner = None if tenant is None else await TENANTS.find(client, tenant, "--tenant")
        return await Walk(client, limit, owner).from_root(depth)

    print_result(with_admin(admin, use), show, as_json=admin.json)


class Walk:
    """A walk over at most MOST_NODES nodes of the tree, of all owners or of `owner`."""

    def __init__(self, client: AdminClient, limit: int, owner: str | None) -> None:
        self._client = client
        self._limit = limit
        self._owner = owner
        self._left = MOST_NODES

    async def from_root(self, depth: int) -> list[dict[str, Any]]:
        """Read the namespaces and the nodes below. A row's `below` is None if it was not read."""
        found = await self._level(f"{TREE}?limit={MOST_CHILDREN}")
        mine = [row for row in found["children"] if self._owner in (None, row["tenant"])]
        if not mine and found["more"]:
            raise CliError(f"it owns none of the {MOST_CHILDREN} largest namespaces")
        return [await self._with_below(row, depth - 1) for row in mine[: self._limit]]

    async def _with_below(self, row: dict[str, Any], depth: int) -> dict[str, Any]:
        if not row["children"]:
            return row | {"below": [], "more": 0}
        if depth <= 0 or self._left <= 0:
            return row | {"below": None, "more": row["children"]}
        level = await self._level(f"{TREE}?limit={self._limit}&node={quote(row['node'])}")
        # A published prefix may be continued in another namespace, which lists the continuation
        # itself.
        own = [child for child in level["children"] if child["parent"] == row["node"]]
        below = [await self._with_below(child, depth - 1) for child in own]
        return row | {"below": below, "more": level["more"]}

    async def _level(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = await self._client.call("GET", path)
        self._left -= len(found["children"])
        return found


def show(rows: list[dict[str, Any]]) -> None:
    """Print the tree as indented lines."""
    if not rows:
        echo("The cache holds nothing.")
    for row in rows:
        _show(row, 0)


def _show(row: dict[str, Any], level: int) -> None:
    echo(_INDENT * level + _line(row))
    for child in row["below"] or ():
        _show(child, level + 1)
    if row["more"]:
        echo(_INDENT * (level + 1) + f"({row['more']} more)")


def _line(row: dict[str, Any]) -> str:
    tiers = ", ".join(f"{blocks} {tier}" for tier, blocks in row["tiers"].items() if blocks)
    said = f' "{_shortened(row["text"])}"' if row["text"] else ""
    counts = f"{row['tokens']:,} tokens, {row['hits']} hits, used {row['last_used_s']:.0f} s ago"
    return f"{row['label']}: {counts}; blocks: {tiers or 'none'}{said}"


def _shortened(text: str) -> str:
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= _TEXT else line[: _TEXT - 3] + "..."
