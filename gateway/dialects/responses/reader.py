"""The conversion of a parsed request, including the stored items that it names.

Elsewhere: which fields of an answer are stored (`routes.py`).
"""

from dataclasses import dataclass, replace

from gateway.dialects.dialect import RouteParts
from gateway.dialects.dialect_request import BYTES_PER_CHARACTER
from gateway.dialects.responses.input_items.items import input_items
from gateway.dialects.responses.reading import Understood, check_fields, understood
from gateway.dialects.responses.schema import ResponsesRequest
from gateway.dialects.responses.stored import StoredResponses, items_of, resolved
from gateway.processes.fair_executor import Steps
from gateway.requests.permits import Permit


@dataclass(frozen=True, slots=True)
class ResponsesReader:
    """A converter of requests. It finds the stored responses that a request names."""

    parts: RouteParts
    stored: StoredResponses

    async def understood(
        self, wire: ResponsesRequest, permit: Permit, request_id: str
    ) -> Understood:
        """Convert `wire`; raise GatewayError for wrong or unsupported fields."""
        parts, tenant_id = self.parts, permit.caller.tenant_id
        model = parts.card.named(wire.model, permit.caller)
        check_fields(wire)
        previous = None
        if wire.previous_response_id is not None:
            previous = await self.stored.continued(
                tenant_id, wire.previous_response_id, permit.body
            )
        sent = input_items(wire.input)
        referred = await self.stored.referred(tenant_id, sent, permit.body)

        def work() -> Steps[Understood]:
            before = [] if previous is None else items_of(previous)
            yield
            items, name = (yield from resolved(sent, referred)), model.name
            found = understood(
                wire, before, items, request_id, name, parts.bounds, parts.card.defaults
            )
            wanted = replace(found.generation_request, adapter=model.adapter)
            return replace(found, generation_request=wanted)

        size = permit.body.size // BYTES_PER_CHARACTER
        return await parts.answering.admission.off_the_loop(permit.caller, work(), size)
