"""The reading of another route's request, only for its prompt.

Elsewhere: what the prompt is for (`routes.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec
from fastapi import Request

from engine.link.messages import SamplingParams
from gateway.caller import Caller
from gateway.dialects.anthropic.reading import MessagesReader
from gateway.dialects.anthropic.schema import MessagesRequest
from gateway.dialects.dialect import RouteParts
from gateway.dialects.dialect_request import BYTES_PER_CHARACTER, read_wire
from gateway.dialects.openai.completions import request_of_completion
from gateway.dialects.openai.requests.chat import request_of_chat
from gateway.dialects.openai.requests.schema import ChatRequest, CompletionRequest
from gateway.dialects.responses.reader import ResponsesReader
from gateway.dialects.responses.schema import ResponsesRequest
from gateway.dialects.responses.stored import StoredResponses
from gateway.errors import BadRequest
from gateway.http.bodies.body import check_names, parse_part
from gateway.http.request_head import request_id_of
from gateway.processes.fair_executor import in_one_step
from gateway.prompts.generation_request import GenerationRequest
from gateway.requests.permits import Permit
from gateway.tenant_cache.views import RequestOf

_REQUEST = msgspec.json.Decoder(RequestOf)
_CHAT = msgspec.json.Decoder(ChatRequest)
_COMPLETION = msgspec.json.Decoder(CompletionRequest)
_MESSAGES = msgspec.json.Decoder(MessagesRequest)
_RESPONSES = msgspec.json.Decoder(ResponsesRequest)

_PROMPT_ALONE = SamplingParams(max_tokens=0)


@dataclass(frozen=True, slots=True)
class RequestReader:
    """The reader of the bodies of `/v1/cache/probe` and `/v1/cache/warm`."""

    parts: RouteParts
    responses: ResponsesReader
    messages: MessagesReader

    @classmethod
    def of(cls, parts: RouteParts) -> RequestReader:
        """Make a reader that finds the same stored responses and conversations as the routes."""
        stored = StoredResponses(parts.records)
        return cls(parts, ResponsesReader(parts, stored), MessagesReader.of(parts))

    async def wanted(self, request: Request, permit: Permit) -> GenerationRequest:
        """Read the request in the body like that request's own route, but with an empty answer.

        Raises GatewayError for a request that the route would refuse, and for several prompts.
        """
        admission = self.parts.answering.admission
        wire = await read_wire(request, permit, _REQUEST, self.parts.bounds, admission)
        request_id = request_id_of(request.scope)
        context = (await admission.engine()).max_model_len

        size = permit.body.size // BYTES_PER_CHARACTER
        wanted = await admission.off_the_loop(
            permit.caller,
            in_one_step(lambda: self._understood(wire, request_id, context, permit.caller)),
            size,
        )
        if isinstance(wanted, ResponsesRequest):
            asked = await self.responses.understood(wanted, permit, request_id)
            wanted = asked.generation_request
        elif isinstance(wanted, MessagesRequest):
            wanted = await self.messages.generation_request(wanted, permit, request_id)
        if len(wanted.prompts) > 1:
            raise BadRequest("there is more than one prompt", param="body.prompt")
        return replace(wanted, choices=1, sampling=_PROMPT_ALONE, max_tokens_may_shrink=True)

    def _understood(
        self, wire: RequestOf, request_id: str, context: int, caller: Caller
    ) -> GenerationRequest | MessagesRequest | ResponsesRequest:
        """Convert the body. A body that may name stored turns or responses is only parsed."""
        bounds, card, body = self.parts.bounds, self.parts.card, bytes(wire.body)
        check_names(body)
        match wire.url:
            case "/v1/chat/completions":
                chat = parse_part(_CHAT, body)
                of = card.named(chat.model, caller).adapter
                return replace(request_of_chat(chat, request_id, bounds), adapter=of)
            case "/v1/completions":
                text = parse_part(_COMPLETION, body)
                of = card.named(text.model, caller).adapter
                wanted = request_of_completion(text, request_id, bounds, context)
                return replace(wanted, adapter=of)
            case "/v1/messages":
                return parse_part(_MESSAGES, body)
            case "/v1/responses":
                return parse_part(_RESPONSES, body)
