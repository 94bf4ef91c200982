"""The parsing of request bodies in Anthropic's dialect into generation requests.

`chats` converts the conversation, and `routes.py` answers the requests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import msgspec
from fastapi import Request

from engine.link.messages import SamplingParams
from gateway.config import Bounds
from gateway.dialects.anthropic.chats.marks import marks_of
from gateway.dialects.anthropic.chats.prompts import chat_prompt, thinking_is_shown
from gateway.dialects.anthropic.chats.shown_turns import with_shown_turns
from gateway.dialects.anthropic.chats.tools import RequestTools
from gateway.dialects.anthropic.chats.turns import hosted_passed_over
from gateway.dialects.anthropic.diagnostics import CacheQuestions, explain_of_messages
from gateway.dialects.anthropic.rendering import PING, MessageRendering
from gateway.dialects.anthropic.schema import MessagesRequest, PromptRequest
from gateway.dialects.anthropic.thread_turns import HeldTurn, continued, conversation_of
from gateway.dialects.anthropic.threads import Threads, ThreadTurn
from gateway.dialects.dialect import RouteParts
from gateway.dialects.dialect_request import BYTES_PER_CHARACTER, DialectRequest, read_wire
from gateway.dialects.explaining import modules_of
from gateway.dialects.finished_choice import JoinedPieces
from gateway.dialects.keep_alive import KeepAlive
from gateway.dialects.stop_strings import checked_stops
from gateway.http.body_memory import BodyMemory
from gateway.http.request_head import request_id_of, running_request
from gateway.processes.fair_executor import in_one_step
from gateway.prompts.chats.offered_tools import PassedOver
from gateway.prompts.generation_request import ChatPrompt, GenerationRequest, TextRules
from gateway.prompts.modules.selection import ModulesOption
from gateway.prompts.sampling_defaults import DIALECT_DEFAULTS, SamplingDefaults
from gateway.requests.permits import Permit

T = TypeVar("T")

_MESSAGES = msgspec.json.Decoder(MessagesRequest)
_PROMPT = msgspec.json.Decoder(PromptRequest)


class _Understood(NamedTuple):
    wanted: GenerationRequest
    passed_over: tuple[PassedOver, ...]
    # the conversation to store, as JSON of a `HeldConversation`; None if the request has no thread
    asked: bytes | None


@dataclass(frozen=True, slots=True)
class MessagesReader:
    """A reader of request bodies. It checks the model that a body names.

    `held` counts the memory of each thread's conversation until the request's answer ends.
    """

    parts: RouteParts
    threads: Threads
    held: BodyMemory

    @classmethod
    def of(cls, parts: RouteParts) -> MessagesReader:
        """Make a reader that stores message threads in the store of `parts`."""
        return cls(parts, Threads(parts.records), BodyMemory(parts.bounds))

    async def messages(self, request: Request, permit: Permit) -> tuple[DialectRequest, bool]:
        """Read a Messages request; return the request, and whether its answer is a stream."""
        bounds, admission = self.parts.bounds, self.parts.answering.admission
        wire = await read_wire(request, permit, _MESSAGES, bounds, admission)
        request_id = request_id_of(request.scope)
        understood = await self._understood(wire, permit, request_id)
        rendering = MessageRendering(
            request_id,
            self.parts.card.named(wire.model, permit.caller).name,
            wire.max_tokens,
            thinking_is_shown(wire),
            CacheQuestions.of(wire),
            understood.passed_over,
        )
        pings = KeepAlive(PING, bounds.keep_alive_s)
        asked = DialectRequest(understood.wanted, rendering, request, permit, pings)
        if wire.thread is not None and understood.asked is not None:
            rendering.heard = JoinedPieces() if wire.stream else None
            await self._hold(request, permit, understood.asked)
            turn = ThreadTurn(
                self.threads, wire.thread, permit.caller, admission, rendering, understood.asked
            )
            asked.around, asked.ending = turn.claimed(), turn.keep
        return asked, bool(wire.stream)

    async def generation_request(
        self, wire: MessagesRequest, permit: Permit, request_id: str
    ) -> GenerationRequest:
        """Convert a parsed request, with the earlier turns of its thread."""
        return (await self._understood(wire, permit, request_id)).wanted

    async def prompt(
        self, request: Request, permit: Permit
    ) -> tuple[ChatPrompt, ModulesOption | None, str | None]:
        """Read a request that counts tokens: its prompt, its modules and its salt."""
        bounds, admission = self.parts.bounds, self.parts.answering.admission
        wire = await read_wire(request, permit, _PROMPT, bounds, admission)
        model = self.parts.card.named(wire.model, permit.caller)
        before = await self._before(wire, permit)

        def understand() -> ChatPrompt:
            whole = wire if before is None else continued(wire, before, model.name)
            return chat_prompt(with_shown_turns(whole), bounds.max_messages)[0]

        prompt = await self._off_the_loop(permit, understand)
        return prompt, modules_of(wire.ratoon), wire.cache_salt

    async def _understood(
        self, wire: MessagesRequest, permit: Permit, request_id: str
    ) -> _Understood:
        model, bounds = self.parts.card.named(wire.model, permit.caller), self.parts.bounds
        before = await self._before(wire, permit)

        def understand() -> _Understood:
            whole = wire if before is None else continued(wire, before, model.name)
            wanted = generation_request(whole, request_id, bounds, self.parts.card.defaults)
            ignored = (*RequestTools.of(whole).passed_over, *hosted_passed_over(whole.messages))
            asked = None
            if wire.thread is not None:
                asked = msgspec.json.encode(conversation_of(whole, model.name))
                self.threads.check_size(asked)
            return _Understood(replace(wanted, adapter=model.adapter), ignored, asked)

        return await self._off_the_loop(permit, understand)

    async def _before(self, wire: PromptRequest, permit: Permit) -> HeldTurn | None:
        return await self.threads.before(wire.thread, permit.caller.tenant_id, permit.body)

    async def _hold(self, request: Request, permit: Permit, asked: bytes) -> None:
        at_end = running_request(request.scope).at_end
        await at_end.enter_context(self.held.lease(permit.caller.tenant_id)).grow(len(asked))

    async def _off_the_loop(self, permit: Permit, understand: Callable[[], T]) -> T:
        size = permit.body.size // BYTES_PER_CHARACTER
        admission = self.parts.answering.admission
        return await admission.off_the_loop(permit.caller, in_one_step(understand), size)


def generation_request(
    wire: MessagesRequest,
    request_id: str,
    bounds: Bounds,
    defaults: SamplingDefaults = DIALECT_DEFAULTS,
) -> GenerationRequest:
    """Convert `wire` into a generation request; raise BadRequest for a wrong field.

    Admission lowers `max_tokens` to the room that the context leaves, as Anthropic does.
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
        salt=wire.cache_salt,
        modules=modules_of(wire.ratoon),
    )
