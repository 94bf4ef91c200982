"""The stored responses: how they are stored, found, referred to, continued and deleted.

A response is stored with its whole input, including the items of the responses that it continued. A
request can therefore continue a response after the earlier responses have expired.

Elsewhere: where responses are stored (`gateway/state`).
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Raw, Struct

from gateway.dialects.responses.input_items.items import REFERENCE, response_of
from gateway.dialects.responses.schema import Item
from gateway.dialects.stored_records import StoredRecords
from gateway.errors import BadRequest, NotFound, Unavailable
from gateway.http.body_memory import BodyLease
from gateway.processes.fair_executor import Steps
from gateway.state.store_errors import missing_response

_MAX_REFERRED = 16
_LOG = logging.getLogger(__name__)


class Content(Struct, frozen=True):
    """The stored content of a response: the response as answered, and the input items."""

    response: Raw
    input: Raw

    @property
    def size(self) -> int:
        """The content's size in bytes."""
        return len(memoryview(self.response)) + len(memoryview(self.input))


class _Output(Struct, frozen=True):
    output: list[Item]


_CONTENT = msgspec.json.Decoder(Content)
_ITEMS = msgspec.json.Decoder(list[Item])
_LISTED = msgspec.json.Decoder(list[dict[str, Any]])
_OUTPUT = msgspec.json.Decoder(_Output)


@dataclass(frozen=True, slots=True)
class StoredResponses:
    """The stored responses of all tenants."""

    records: StoredRecords

    async def find(self, tenant_id: str, response_id: str, body: BodyLease) -> Content:
        """Find a stored response of the tenant; raise NotFound if there is none.

        The memory counted for `body` grows by the bytes of the record.
        """
        _check_id(response_id)
        found = await self.records.find(tenant_id, response_id, body)
        return _CONTENT.decode(found.content)

    async def delete(self, tenant_id: str, response_id: str) -> None:
        """Delete a stored response of the tenant; raise NotFound if there is none."""
        _check_id(response_id)
        await self.records.drop(tenant_id, response_id)

    async def continued(self, tenant_id: str, response_id: str, body: BodyLease) -> Content:
        """Find the response that a request continues; raise BadRequest if it is missing."""
        try:
            return await self.find(tenant_id, response_id, body)
        except NotFound:
            raise BadRequest(
                "there is no such response to continue; it may have expired, or was not stored",
                code="previous_response_not_found",
                param="previous_response_id",
            ) from None

    async def referred(
        self, tenant_id: str, items: Sequence[Item], body: BodyLease
    ) -> list[Content]:
        """Find the stored responses whose items the references in `items` name.

        Missing responses are skipped. Raises BadRequest for references to items of too many
        responses, or for two references to one item.
        """
        ids = [item.id for item in items if item.type == REFERENCE and item.id is not None]
        if len(set(ids)) < len(ids):
            raise BadRequest("there are two references to one item", param="input")
        responses = dict.fromkeys(map(response_of, ids))
        if len(responses) > _MAX_REFERRED:
            raise BadRequest(
                f"the references are to items of more than {_MAX_REFERRED} responses", param="input"
            )
        found = await self.records.find_all(tenant_id, [*responses], body)
        return [_CONTENT.decode(record.content) for record in found]

    async def keep(
        self, tenant_id: str, response_id: str, created_at: float, content: Content
    ) -> bool:
        """Store the response; return whether there was room for it."""
        spelled, seconds = msgspec.json.encode(content), self.records.bounds.response_ttl_s
        try:
            kept = await self.records.keep(tenant_id, response_id, spelled, created_at, seconds)
            return kept is not None
        except Unavailable as error:
            _LOG.warning("a response is not stored: %s", error.code)
            return False
        except NotFound:  # the tenant was deleted while the request ran
            return False


def _check_id(response_id: str) -> None:
    if not response_id.startswith("resp_"):
        raise missing_response()


def items_of(content: Content) -> list[Item]:
    """List the items that a continuation begins with: the response's input and output."""
    return _ITEMS.decode(content.input) + _OUTPUT.decode(content.response).output


def listed(content: Content) -> list[dict[str, Any]]:
    """List the response's input items, oldest first."""
    return _LISTED.decode(content.input)


def resolved(items: Sequence[Item], referred: Iterable[Content]) -> Steps[list[Item]]:
    """Replace each reference by the item that it names; raise BadRequest for a missing item."""
    found: dict[str | None, Item] = {}
    for content in referred:
        found |= {item.id: item for item in items_of(content)}
        yield
    return [_resolved(item, found, f"input[{place}]") for place, item in enumerate(items)]


def _resolved(item: Item, found: Mapping[str | None, Item], param: str) -> Item:
    if item.type != REFERENCE:
        return item
    if item.id not in found:
        raise BadRequest(
            "there is no stored item of this id", code="item_not_found", param=f"{param}.id"
        )
    return found[item.id]
