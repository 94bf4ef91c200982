"""The tree's levels at `/admin/cache/tree`, and its top prefixes at `/admin/cache/prefixes`."""

from typing import Annotated, Any, get_args

import msgspec
from fastapi import APIRouter, Query, Response

from engine.link.interface import Engine
from engine.link.view_messages import PrefixesQuery, PrefixOrder, TreeQuery
from gateway.errors import BadRequest, NotFound, refusing
from gateway.http.admin_json import json_response
from gateway.http.openapi import described
from gateway.overview.tree_rows import TreeRow, TreeRows

MOST = 200
_AN_ORDER: dict[str, Any] = {"enum": list(get_args(PrefixOrder))}
_A_LIMIT: dict[str, Any] = {"minimum": 1, "maximum": MOST}


class TreeShown(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of GET /admin/cache/tree. `node` is None at the root, whose children are namespaces.

    If there are many children, only the children with most blocks are listed. `more` counts the
    others.
    """

    node: TreeRow | None
    parent: str | None
    tokens_before: int  # number of tokens of the prefix before the children
    children: list[TreeRow]
    more: int


class PrefixesShown(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of GET /admin/cache/prefixes, a survey of the tree from `age_s` seconds ago.

    The survey has looked at `surveyed` of the tree's `nodes`. `age_s` is None until the first
    survey has ended.
    """

    order: str
    prefixes: list[TreeRow]
    surveyed: int
    nodes: int
    age_s: float | None


def tree_router(engine: Engine, rows: TreeRows) -> APIRouter:
    """Serve this module's two routes. `admin_router` guards the routes."""
    router = APIRouter(prefix="/admin/cache")

    @router.get("/tree", openapi_extra=described(TreeShown))
    async def tree(
        node: str | None = None, limit: Annotated[int, Query(json_schema_extra=_A_LIMIT)] = MOST
    ) -> Response:
        _check(limit)
        with refusing():
            level = await engine.ask(TreeQuery(node=node, limit=limit))
        if not level.is_known:
            raise NotFound("the cache has no such node, or not any more", param="node")
        here = [] if level.node is None else [level.node]
        shown = await rows.of([*here, *level.children], _fingerprint(engine), engine.replicas)
        at = shown[0] if here else None
        return json_response(
            TreeShown(
                node=at,
                parent=None if at is None else at.parent,
                tokens_before=0 if at is None else _before_children(at),
                children=shown[len(here) :],
                more=level.more,
            )
        )

    @router.get("/prefixes", openapi_extra=described(PrefixesShown))
    async def prefixes(
        order: Annotated[str, Query(json_schema_extra=_AN_ORDER)] = "hot",
        limit: Annotated[int, Query(json_schema_extra=_A_LIMIT)] = 50,
    ) -> Response:
        _check(limit)
        with refusing():
            found = await engine.ask(PrefixesQuery(order=_order(order), limit=limit))
        return json_response(
            PrefixesShown(
                order=order,
                prefixes=await rows.of(found.prefixes, _fingerprint(engine), engine.replicas),
                surveyed=found.surveyed,
                nodes=found.nodes,
                age_s=found.age_s,
            )
        )

    return router


def _before_children(at: TreeRow) -> int:
    return 0 if at.kind == "namespace" else at.tokens_before + at.tokens


def _check(limit: int) -> None:
    if not 1 <= limit <= MOST:
        raise BadRequest(f"`limit` must be from 1 to {MOST}", param="limit")


def _order(order: str) -> PrefixOrder:
    for known in get_args(PrefixOrder):
        if order == known:
            return order  # type: ignore[return-value]
    raise BadRequest("`order` must be hot or wasteful", param="order")


def _fingerprint(engine: Engine) -> bytes:
    welcome = engine.welcome
    return b"" if welcome is None else welcome.fingerprint
