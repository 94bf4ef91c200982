"""The reading of bodies, which are parsed and converted off the event loop.

A body is freed as soon as it is parsed. The parsed fields are freed as soon as the
`GenerationRequest` is made.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import msgspec
from fastapi import Request
from msgspec import UNSET, UnsetType

from gateway.config import Bounds
from gateway.dialects.dialect import ModelCard, NamedModel
from gateway.dialects.dialect_request import (
    BYTES_PER_CHARACTER,
    DialectRequest,
    read_wire,
    work_with,
)
from gateway.dialects.openai.answers.chat_reply import ChatReply
from gateway.dialects.openai.answers.mistral_reply import MistralReply, is_mistrals
from gateway.dialects.openai.answers.replies import ServedTier
from gateway.dialects.openai.answers.usage_at_end import PREFIX, UsageAtEnd
from gateway.dialects.openai.completions import CompletionReply, request_of_completion
from gateway.dialects.openai.deployments import model_of
from gateway.dialects.openai.prefill.schema import DecisionRequest, EmbeddingRequest, RerankRequest
from gateway.dialects.openai.requests.chat import request_of_chat
from gateway.dialects.openai.requests.prompts import prompt_in
from gateway.dialects.openai.requests.schema import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    Generating,
    TokenizeRequest,
)
from gateway.dialects.openrouter_models import PROVIDER, is_openrouters
from gateway.http.bodies.body import Body, Part
from gateway.http.error_dialect import path_sent
from gateway.http.request_head import request_id_of
from gateway.processes.fair_executor import in_one_step
from gateway.prompts.chats.chat_tools import SentTools
from gateway.prompts.generation_request import GenerationRequest, size_of
from gateway.prompts.pipeline.admission import Admission
from gateway.requests.permits import Permit

Understood = TypeVar("Understood")
T = TypeVar(
    "T",
    ChatRequest,
    CompletionRequest,
    TokenizeRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    RerankRequest,
    DecisionRequest,
)

_CHAT = msgspec.json.Decoder(ChatRequest)
_COMPLETION = msgspec.json.Decoder(CompletionRequest)


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader of request bodies. It checks the model that a body names."""

    card: ModelCard
    bounds: Bounds
    admission: Admission

    async def chat(self, request: Request, permit: Permit) -> tuple[DialectRequest, bool]:
        """Read a chat request; return the request, and whether its answer is a stream."""
        wire, model = await self.read(request, permit, _CHAT)
        request_id = request_id_of(request.scope)

        def understand(bounds: Bounds) -> tuple[GenerationRequest, SentTools]:
            sent = SentTools.of(wire.tools)
            wanted = request_of_chat(wire, request_id, bounds, self.card.defaults, sent)
            return replace(wanted, adapter=model.adapter), sent

        size = permit.body.size // BYTES_PER_CHARACTER
        wanted, sent = await self.understood(permit, size, understand)
        reply = _reply_format(request, wire)(
            id=f"chatcmpl-{request_id}",
            request_id=request_id,
            service_tier=_served_tier(wire),
            free=sent.free,
            ignored=sent.passed_over,
            prompt_logprobs=wire.prompt_logprobs,
            **self._reply_fields(request, wire, model),
        )
        return DialectRequest(wanted, reply, request, permit), bool(wire.stream)

    async def completion(self, request: Request, permit: Permit) -> tuple[DialectRequest, bool]:
        """Read a completion request; return the request, and whether its answer is a stream."""
        wire, model = await self.read(request, permit, _COMPLETION, prompt_in)
        request_id = request_id_of(request.scope)
        context = (await self.admission.engine()).max_model_len
        wanted = await self.understood(
            permit,
            work_with(bytes(wire.prompt), permit.body.size),
            lambda bounds: replace(
                request_of_completion(wire, request_id, bounds, context, self.card.defaults),
                adapter=model.adapter,
            ),
        )
        reply = CompletionReply(
            id=f"cmpl-{request_id}",
            echoed=wanted.prompts if wire.echo else (),
            choices=wanted.choices,
            skip_special_tokens=wanted.text.skip_special_tokens,
            has_logprobs=wire.logprobs is not None,
            prompt_logprobs=wire.prompt_logprobs,
            **self._reply_fields(request, wire, model),
        )
        echoed = wanted.choices * sum(map(size_of, wanted.prompts)) if wire.echo else 0
        asked = DialectRequest(wanted, reply, request, permit, echoed=echoed)
        return asked, bool(wire.stream)

    async def read(
        self,
        request: Request,
        permit: Permit,
        decoder: msgspec.json.Decoder[T],
        bulk: Callable[[Body], Part] | None = None,
    ) -> tuple[T, NamedModel]:
        """Parse the body and find its model; raise GatewayError for a bad body or unknown model.

        `bulk` removes the parts of the body that stay unparsed (`Raw`). The values in these parts
        do not count toward limits.
        """
        wire = await read_wire(request, permit, decoder, self.bounds, self.admission, bulk)
        return wire, self.card.named(model_of(request, wire.model), permit.caller)

    async def understood(
        self, permit: Permit, size: int, understand: Callable[[Bounds], Understood]
    ) -> Understood:
        """Run `understand` in another thread.

        `size` is the work in units of one tokenised character.
        """
        bounds = self.bounds
        if permit.caller.is_operator:  # an operator's request may always set `cache.load`
            bounds = msgspec.structs.replace(bounds, allow_cache_load=True)

        return await self.admission.off_the_loop(
            permit.caller, in_one_step(lambda: understand(bounds)), size
        )

    def _reply_fields(
        self, request: Request, wire: Generating, model: NamedModel
    ) -> dict[str, Any]:
        options = wire.stream_options
        asks_usage = options is not None and options.include_usage is True
        is_routed = is_openrouters(request)
        return {
            "created": int(time.time()),
            "model": model.name,
            # OpenRouter always sends the usage
            "include_usage": asks_usage or is_routed,
            "provider": PROVIDER if is_routed else UNSET,
            "tokenizer": self.admission.tokenizer,
            "shows_ids": bool(wire.return_token_ids),
            "fingerprint": self.card.fingerprint,
        }


def _reply_format(request: Request, wire: ChatRequest) -> Callable[..., ChatReply]:
    """Return the class that writes the answer for the client's API.

    The class also depends on the chunk in which the client reads the usage.
    """
    if is_mistrals(request):
        return partial(MistralReply, usage_field="usage")
    if path_sent(request.scope).startswith(PREFIX):
        return partial(UsageAtEnd, usage_field="x_groq")
    if wire.stream_options is None and not is_openrouters(request):
        return partial(UsageAtEnd, usage_field="usage")
    return ChatReply


def _served_tier(wire: ChatRequest) -> ServedTier | UnsetType:
    if wire.service_tier is None:
        return UNSET
    return "flex" if wire.service_tier == "flex" else "default"
