"""The creation of a cached content: its prompt is computed into the cache.

The computed prompt ends with a user's turn after the content. The prompts of later requests also
have a user's turn there. The template therefore renders the content to the same text in all
prompts.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass

import msgspec
from fastapi import Request

from engine.link.messages import Generate, SamplingParams
from engine.link.query_messages import ForgetMarked
from gateway.caller import Caller
from gateway.dialects.dialect import RouteParts
from gateway.dialects.dialect_request import read_wire
from gateway.dialects.finished_choice import gather
from gateway.dialects.gemini.cached import CachedContents, NamedContent, Stored
from gateway.dialects.gemini.cached_schema import Creation, Expiry
from gateway.dialects.gemini.chats.prompts import chat_prompt
from gateway.dialects.gemini.chats.tools import DeclaredTools
from gateway.dialects.gemini.joining import joined, marked_prefix
from gateway.dialects.gemini.parts import GeminiContent, GeminiPart, listed
from gateway.dialects.gemini.reading import GeminiReader
from gateway.dialects.gemini.schema import GeminiPrefix, GeminiPrompt
from gateway.dialects.gemini.spelling import CreationDecoder, EitherDecoder
from gateway.errors import BadRequest, Forbidden, NotFound, Unavailable
from gateway.http.request_head import request_id_of, running_request
from gateway.processes.tenant_turns import seen_out
from gateway.prompts.generation_request import GenerationRequest, TextRules
from gateway.requests.answering import Answer
from gateway.requests.permits import Permit
from gateway.tenant_limits import Limits

_CREATION = CreationDecoder()
_EXPIRY = EitherDecoder(Expiry)
_PROMPT_ALONE = SamplingParams(max_tokens=0)
_NEXT = GeminiContent(role="user", parts=[GeminiPart(text=".")])
_KEY_BYTES = 16


@dataclass(frozen=True, slots=True)
class CachedContentWriter:
    """The creation, renewal and deletion of cached contents."""

    parts: RouteParts
    reader: GeminiReader
    contents: CachedContents

    async def create(self, request: Request, permit: Permit) -> NamedContent:
        """Compute and store the content that a body describes."""
        admission = self.parts.answering.admission
        read = await read_wire(request, permit, _CREATION, self.parts.bounds, admission)
        wire, seconds = read.wire, self.contents.seconds(read.wire)
        name = wire.model.removeprefix("models/")
        model = self.parts.card.named(name, permit.caller)
        self._check(read)
        asked = await self._asked(request, permit, model.name, wire, wire.cache_salt, seconds)
        marked = await self._marked(asked, permit.caller)
        stored = Stored(
            model=model.name,
            display_name=wire.display_name,
            updated_at=self.contents.records.clock(),
            tokens=marked.marks[0].num_tokens,
            salt=wire.cache_salt,
            prefix=read.prefix,
        )
        key = await self._key(marked)
        # stored once the limits admit it: room for it may take the place of other records
        async with (
            self._answer(request, permit, asked) as answer,
            self._stored(permit.caller.tenant_id, stored, seconds, key) as content,
        ):
            await gather(answer.events)
        return content

    @asynccontextmanager
    async def _stored(
        self, tenant_id: str, stored: Stored, seconds: float, key: bytes
    ) -> AsyncIterator[NamedContent]:
        """Store a content before it is computed. Delete the content again if that fails.

        A deletion of an equal content meanwhile finds the stored content, and leaves its KV.
        """
        content = await self.contents.keep(tenant_id, stored, seconds, key)
        is_computed = False
        try:
            yield content
            is_computed = True
        finally:
            if not is_computed:
                with suppress(Forbidden, Unavailable):
                    await seen_out(self.contents.delete(content))

    async def renew(self, request: Request, permit: Permit, name: str) -> NamedContent:
        """Set the time at which a content expires. Compute its KV again if the KV was evicted."""
        admission = self.parts.answering.admission
        wire = await read_wire(request, permit, _EXPIRY, self.parts.bounds, admission)
        if wire.ttl is None and wire.expire_time is None:
            raise BadRequest("an update has `ttl` or `expireTime`", param="ttl")
        seconds = self.contents.seconds(wire)
        found = await self.contents.find(permit.caller.tenant_id, name, permit.body)
        stored = found.stored
        asked = await self._asked(
            request, permit, stored.model, found.prefix(), stored.salt, seconds
        )
        async with self._answer(request, permit, asked) as answer:
            await gather(answer.events)
        return await self.contents.renew(found, seconds)

    async def delete(self, request: Request, permit: Permit, name: str) -> None:
        """Delete a content, and its KV unless another content or a longer prefix needs it."""
        found = await self.contents.find(permit.caller.tenant_id, name, permit.body)
        stored, marked = found.stored, None
        # if the model is no longer served, nobody reads its KV, and the cache evicts it in time
        with suppress(NotFound, BadRequest):
            asked = await self._asked(
                request, permit, stored.model, found.prefix(), stored.salt, 1.0
            )
            # without limits: nothing is computed, and a limit may have been lowered since the
            # creation
            caller = msgspec.structs.replace(permit.caller, limits=Limits())
            marked = await self._marked(asked, caller)
        # The content is deleted before its KV. If equal contents are deleted at the same time, the
        # last deletion then finds no other content that needs the KV.
        await self.contents.delete(found)
        if marked is not None:
            await self._forget(marked, permit.caller.tenant_id)

    async def _asked(
        self,
        request: Request,
        permit: Permit,
        model: str,
        prefix: GeminiPrefix,
        salt: str | None,
        seconds: float,
    ) -> GenerationRequest:
        adapter = self.parts.card.named(model, permit.caller).adapter
        request_id, bounds = request_id_of(request.scope), self.parts.bounds

        def understand() -> GenerationRequest:
            tools = DeclaredTools.of(prefix.tools)
            wire = joined(GeminiPrompt(contents=[_NEXT]), prefix)
            cached = len(listed(prefix.contents))
            prompt, _ = chat_prompt(wire, tools, bounds.max_messages, cached)
            return GenerationRequest(
                request_id=request_id,
                prompts=(prompt,),
                choices=1,
                sampling=_PROMPT_ALONE,
                max_tokens_may_shrink=True,
                text=TextRules(),
                salt=salt,
                adapter=adapter,
                marks=(marked_prefix(prefix, tools, prompt, seconds),),
            )

        return await self.reader.off_the_loop(permit, understand)

    async def _marked(self, asked: GenerationRequest, caller: Caller) -> Generate:
        admitted = await self.parts.answering.admission.admit(asked, caller)
        return admitted.generates[0]

    def _answer(
        self, request: Request, permit: Permit, asked: GenerationRequest
    ) -> AbstractAsyncContextManager[Answer]:
        """Begin an empty answer. Its prompt is computed when its events are read."""
        scope = request.scope
        return self.parts.answering.answer(
            asked, scope["route"].path, running_request(scope), permit, is_whole=True
        )

    async def _key(self, marked: Generate) -> bytes:
        """Return the key of the last whole block of a content's KV, or zeros without a block."""
        size = (await self.parts.answering.admission.engine()).block_size
        end = marked.marks[0].num_tokens // size * _KEY_BYTES
        return marked.block_keys[end - _KEY_BYTES : end] if end else bytes(_KEY_BYTES)

    async def _forget(self, marked: Generate, tenant_id: str) -> None:
        key = await self._key(marked)
        if any(key) and not await self.contents.has_any(tenant_id, key):
            await self.parts.card.engine.ask(ForgetMarked(flow=tenant_id, prefix_id=key))

    def _check(self, read: Creation) -> None:
        wire, most = read.wire, self.parts.bounds.max_response_bytes
        if not listed(wire.contents) and wire.system_instruction is None and not wire.tools:
            raise BadRequest("there is nothing to cache", param="contents")
        if len(memoryview(read.prefix)) > most:
            raise BadRequest(f"a cached content has at most {most} bytes", param="contents")
