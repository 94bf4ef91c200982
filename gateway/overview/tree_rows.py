"""The nodes of the cache's tree as rows for the operator.

Only published prefixes are shown with text. The text is read from the published record, never from
the cache, whose tokens do not cross the link. No tenant's text can therefore be shown by mistake.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec.structs import replace

from engine.link.interface import ReplicaHealth
from engine.link.view_messages import NodeView
from gateway.overview.namespace_names import ShownNamespaceNames
from gateway.overview.tenant_names import TenantNames
from gateway.sharing.published import Published
from gateway.state.records import PUBLISHED
from gateway.views import TokensByTier

TEXT_TOKENS = 500
TEXTS = 1000
_ID_CHARS = 8  # number of characters of an engine's id that begin the names of its nodes


class TreeRow(msgspec.Struct, frozen=True, kw_only=True):
    """A tree node for the operator: a namespace or a prefix.

    `tiers` counts blocks by their fastest tier.

    A prefix's numbers exclude its children, which continue the prefix. `hits` counts the requests
    that found the prefix. `text` is the beginning of a published prefix's text at this node.
    """

    node: str
    parent: str | None
    label: str
    kind: Literal["namespace", "prefix"]
    tenant: str | None
    name: str | None
    published: str | None  # id of the published prefix at this node; None: not published
    tokens_before: int
    tokens: int
    blocks: int
    tiers: TokensByTier
    hits: int
    last_used_s: float
    children: int
    text: str | None


class TreeRows:
    """The maker of the cache tree's rows, for one process."""

    def __init__(self, published: Published, names: TenantNames) -> None:
        self._published = published
        self._names = names
        self._namespaces = ShownNamespaceNames(published.namespaces)
        self._texts: dict[tuple[str, int, int], str] = {}

    async def of(
        self,
        views: list[NodeView],
        fingerprint: bytes,
        replicas: Mapping[str, ReplicaHealth] | None = None,
    ) -> list[TreeRow]:
        """Make a row for each view, in order. With several engines, each label names the engine."""
        names = await self._names.known({view.flow for view in views})
        rows = [self._row(view, names, fingerprint) for view in views]
        return [replace(row, label=_of_engine(row, replicas)) for row in rows] if replicas else rows

    def _row(self, view: NodeView, names: dict[str, str], fingerprint: bytes) -> TreeRow:
        tenant: str | None = None if view.flow == PUBLISHED else view.flow
        label, published = (
            f"tokens {view.tokens_before:,} to {view.tokens_before + view.tokens:,}",
            None,
        )
        if view.parent is None:
            found = self._namespaces.name(
                view.namespace, view.flow, names, self._names.groups, fingerprint
            )
            label, tenant = found
        else:
            record = next(filter(None, map(self._published.record, view.pins)), None)
            if record is not None:
                label, published, tenant = f"{record.name} v{record.version}", record.id, None
        return TreeRow(
            node=view.node,
            parent=view.parent,
            label=label,
            kind="namespace" if view.parent is None else "prefix",
            tenant=tenant,
            name=None if tenant is None else names.get(tenant),
            published=published,
            tokens_before=view.tokens_before,
            tokens=view.tokens,
            blocks=view.device + view.host + view.disk,
            tiers=TokensByTier(view.device, view.host, view.disk),
            hits=view.hits,
            last_used_s=view.last_used_s,
            children=view.children,
            text=None if published is None else self._text(published, view),
        )

    def _text(self, prefix_id: str, view: NodeView) -> str:
        start = view.tokens_before
        at = (prefix_id, start, min(start + view.tokens, start + TEXT_TOKENS))
        if at not in self._texts:
            if len(self._texts) >= TEXTS:
                self._texts.clear()
            self._texts[at] = self._published.text(*at)
        return self._texts[at]


def _of_engine(row: TreeRow, replicas: Mapping[str, ReplicaHealth]) -> str:
    begin = row.node.partition("-")[0]
    ids = {name: (one.engine_id or "")[:_ID_CHARS] for name, one in replicas.items()}
    name = next((name for name, engine_id in ids.items() if engine_id == begin), None)
    return row.label if name is None else f"{row.label} (engine {name})"
