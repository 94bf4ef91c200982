"""The parsing of request bodies in Anthropic's dialect into generation requests.

Knows: fields of sampling and their defaults. Does not know: how blocks become messages
(`turns.py`), or how a request is answered (`routes.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import msgspec
from fastapi import Request

from engine.link.messages import SamplingParams
from gateway.config import Bounds
from gateway.dialects.anthropic.diagnostics import CacheQuestions, explain_of_messages
from gateway.dialects.anthropic.marks import marks_of
from gateway.dialects.anthropic.prompts import chat_prompt, thinking_is_shown
from gateway.dialects.anthropic.rendering import PING, MessageRendering
from gateway.dialects.anthropic.schema import MessagesRequest, PromptRequest
from gateway.dialects.anthropic.shown_turns import with_shown_turns
from gateway.dialects.anthropic.tools import RequestTools
from gateway.dialects.anthropic.turns import hosted_passed_over
from gateway.dialects.dialect import ModelCard
from gateway.dialects.dialect_request import BYTES_PER_CHARACTER, DialectRequest, read_wire
from gateway.dialects.explaining import modules_of
from gateway.dialects.keep_alive import KeepAlive
from gateway.dialects.stop_strings import checked_stops
from gateway.http.request_head import request_id_of
from gateway.processes.fair_executor import in_one_step
from gateway.prompts.chats.offered_tools import PassedOver
from gateway.prompts.generation_request import ChatPrompt, GenerationRequest, TextRules
from gateway.prompts.pipeline.admission import Admission
from gateway.prompts.sampling_defaults import DIALECT_DEFAULTS, SamplingDefaults
from gateway.requests.permits import Permit

T = TypeVar("T")

_MESSAGES = msgspec.json.Decoder(MessagesRequest)
_PROMPT = msgspec.json.Decoder(PromptRequest)


@dataclass(frozen=True, slots=True)
class MessagesReader:
    """A reader of request bodies; it checks the model that a body names."""

    card: ModelCard
    bounds: Bounds
    admission: Admission

    async def messages(self, request: Request, permit: Permit) -> tuple[DialectRequest, bool]:
        """Read a Messages request; return the request, and whether its answer is a stream."""
        wire = await read_wire(request, permit, _MESSAGES, self.bounds, self.admission)
        model = self.card.named(wire.model, permit.caller)
        request_id = request_id_of(request.scope)

        def understand() -> tuple[GenerationRequest, tuple[PassedOver, ...]]:
            wanted = generation_request(wire, request_id, self.bounds, self.card.defaults)
            ignored = (*RequestTools.of(wire).passed_over, *hosted_passed_over(wire.messages))
            return replace(wanted, adapter=model.adapter), ignored

        wanted, passed_over = await self._off_the_loop(permit, understand)
        rendering = MessageRendering(
            request_id,
            model.name,
            wire.max_tokens,
            thinking_is_shown(wire),
            CacheQuestions.of(wire),
            passed_over,
        )
        pings = KeepAlive(PING, self.bounds.keep_alive_s)
        return DialectRequest(wanted, rendering, request, permit, pings), bool(wire.stream)

    async def prompt(self, request: Request, permit: Permit) -> ChatPrompt:
        """Read the prompt whose tokens are to be counted."""
        wire = await read_wire(request, permit, _PROMPT, self.bounds, self.admission)
        self.card.named(wire.model, permit.caller)
        prompt, _ = await self._off_the_loop(
            permit, lambda: chat_prompt(with_shown_turns(wire), self.bounds.max_messages)
        )
        return prompt

    async def _off_the_loop(self, permit: Permit, understand: Callable[[], T]) -> T:
        size = permit.body.size // BYTES_PER_CHARACTER
        return await self.admission.off_the_loop(permit.caller, in_one_step(understand), size)


def generation_request(
    wire: MessagesRequest,
    request_id: str,
    bounds: Bounds,
    defaults: SamplingDefaults = DIALECT_DEFAULTS,
) -> GenerationRequest:
    """Convert `wire` into a generation request; raise BadRequest that names the wrong field.

    A `max_tokens` beyond what the context leaves is cut to that, as Anthropic does.
    """
    wire = with_shown_turns(wire)
    prompt, form = chat_prompt(wire, bounds.max_messages)
    return GenerationRequest(
        request_id=request_id,
        prompts=(prompt,),
        choices=1,
        sampling=SamplingParams(
            max_tokens=wire.max_tokens,
            temperature=defaults.temperature if wire.temperature is None else wire.temperature,
            top_p=defaults.top_p if wire.top_p is None else wire.top_p,
            top_k=defaults.top_k if wire.top_k is None else wire.top_k,
            min_p=defaults.min_p,
            repetition_penalty=defaults.repetition_penalty,
        ),
        max_tokens_may_shrink=True,
        text=TextRules(stops=checked_stops(wire.stop_sequences or (), bounds, "stop_sequences")),
        form=form,
        explain=explain_of_messages(wire),
        marks=marks_of(wire, prompt),
        drafts=wire.drafts is not False,
        modules=modules_of(wire.ratoon),
    )
