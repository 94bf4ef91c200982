"""A page of the list of a response's input items."""

from collections.abc import Sequence
from typing import Any, Literal

from gateway.dialects.responses.replies import InputItemList
from gateway.errors import BadRequest

MAX_ITEMS = 100


def a_page(
    items: Sequence[dict[str, Any]], limit: int, order: Literal["asc", "desc"], after: str | None
) -> InputItemList:
    """List at most `limit` of `items`, in `order`, after the item with the id `after`.

    Raises BadRequest for a limit out of bounds, or if no item has the id `after`.
    """
    if not 1 <= limit <= MAX_ITEMS:
        raise BadRequest(f"`limit` is from 1 to {MAX_ITEMS}", param="limit")
    ordered = list(items if order == "asc" else reversed(items))
    if after is not None:
        ids = [item["id"] for item in ordered]
        if after not in ids:
            raise BadRequest("no item has this id", param="after")
        ordered = ordered[ids.index(after) + 1 :]
    page = ordered[:limit]
    return InputItemList(
        data=page,
        first_id=page[0]["id"] if page else None,
        last_id=page[-1]["id"] if page else None,
        has_more=len(ordered) > limit,
    )
