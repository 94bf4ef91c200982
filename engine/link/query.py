"""The base classes of all queries and replies. A query's type determines its reply's type.

Elsewhere: the queries themselves (`query_messages`, `view_messages`), and the tasks that wait for
replies (`queries`).
"""

from __future__ import annotations

from typing import Generic, TypeVar, get_args

import msgspec

from engine.errors import EngineError


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The base class of an engine's replies. A query gets one reply, with the query's id."""

    query_id: str

    def error(self) -> EngineError | None:
        """Return the error of a refused query, or None for a successful reply."""
        return None


R = TypeVar("R", bound=Reply)


class Query(msgspec.Struct, Generic[R], frozen=True, kw_only=True):
    """The base class of a gateway's queries to an engine. `R` is the type of the reply."""

    query_id: str = ""


def reply_type(kind: type[Query[R]]) -> type[R]:
    """Return the type of reply that belongs to a type of query."""
    [base] = kind.__orig_bases__  # type: ignore[attr-defined]
    [reply] = get_args(base)
    return reply  # type: ignore[no-any-return]
