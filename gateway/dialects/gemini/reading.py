"""The parsing of request bodies in Gemini's dialect into generation requests.

`chats` converts the conversation, and `routes.py` answers the requests.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from fastapi import Request

from engine.link.messages import SamplingParams
from gateway.config import Bounds
from gateway.dialects.dialect import ModelCard
from gateway.dialects.dialect_request import BYTES_PER_CHARACTER, DialectRequest, read_wire
from gateway.dialects.explaining import explain_of, modules_of
from gateway.dialects.gemini.answers.rendering import PAUSE, GeminiRendering
from gateway.dialects.gemini.cached import CachedContents, NamedContent, missing
from gateway.dialects.gemini.chats.prompts import chat_prompt
from gateway.dialects.gemini.chats.tools import DeclaredTools
from gateway.dialects.gemini.joining import joined, marked_prefix
from gateway.dialects.gemini.parts import listed
from gateway.dialects.gemini.schema import (
    CountTokensRequest,
    GeminiGenerationConfig,
    GeminiPrompt,
    GenerateContentRequest,
)
from gateway.dialects.gemini.spelling import EitherDecoder
from gateway.dialects.keep_alive import KeepAlive
from gateway.dialects.stop_strings import checked_stops
from gateway.errors import BadRequest
from gateway.http.request_head import request_id_of
from gateway.processes.fair_executor import in_one_step
from gateway.prompts.chats.chat_json import refuse_unsupported, unsupported
from gateway.prompts.generation_request import ChatPrompt, GenerationRequest, TextRules
from gateway.prompts.modules.selection import ModulesOption
from gateway.prompts.pipeline.admission import Admission
from gateway.prompts.sampling_defaults import SamplingDefaults
from gateway.requests.permits import Permit

T = TypeVar("T")

_CONFIG = "generationConfig"
# minimum seconds for which a named content is retained, even if the content expires earlier
_LEAST_S = 1.0
_LEAST = 1e-6  # smallest `top_p`: Google accepts 0, but the engine needs a value above 0
_GENERATE = EitherDecoder(GenerateContentRequest)
_COUNT = EitherDecoder(CountTokensRequest)


@dataclass(frozen=True, slots=True)
class GeminiReader:
    """A reader of request bodies. It checks the model that a path names."""

    card: ModelCard
    bounds: Bounds
    admission: Admission
    contents: CachedContents

    async def generation(self, request: Request, permit: Permit, name: str) -> DialectRequest:
        """Read a request for the model `name`."""
        model = self.card.named(name, permit.caller)
        wire = await read_wire(request, permit, _GENERATE, self.bounds, self.admission)
        check_model(wire.model, name, "model")
        request_id = request_id_of(request.scope)
        found = await self._named(wire, model.name, permit)

        def understand() -> tuple[GenerationRequest, DeclaredTools]:
            prefix = None if found is None else found.prefix()
            whole = wire if prefix is None else joined(wire, prefix)
            tools = DeclaredTools.of(whole.tools)
            cached = 0 if prefix is None else len(listed(prefix.contents))
            bounds, defaults = self.bounds, self.card.defaults
            wanted = generation_request(whole, tools, request_id, bounds, defaults, cached)
            if found is not None and prefix is not None:
                [prompt] = wanted.prompts
                assert isinstance(prompt, ChatPrompt)
                left = found.record.expires_at - self.contents.records.clock()
                mark = marked_prefix(prefix, tools, prompt, max(left, _LEAST_S))
                wanted = replace(wanted, marks=(mark,))
            return replace(wanted, adapter=model.adapter), tools

        wanted, tools = await self.off_the_loop(permit, understand)
        rendering = GeminiRendering(
            request_id,
            model.name,
            self.admission.tokenizer,
            shows_thoughts(wire.generation_config),
            tools.passed_over,
            wanted.explain is not None or wanted.modules is not None,
        )
        pauses = KeepAlive(PAUSE, self.bounds.keep_alive_s)
        return DialectRequest(wanted, rendering, request, permit, pauses)

    async def prompt(
        self, request: Request, permit: Permit, name: str
    ) -> tuple[ChatPrompt, ModulesOption | None, str | None]:
        """Read a request that counts tokens: its prompt, its modules and its salt."""
        model = self.card.named(name, permit.caller)
        wire = await read_wire(request, permit, _COUNT, self.bounds, self.admission)
        alone = GeminiPrompt(contents=wire.contents or [], ratoon=wire.ratoon)
        asked = wire.generate_content_request or alone
        check_model(asked.model, name, "generateContentRequest.model")
        found = await self._named(asked, model.name, permit)

        def understand() -> ChatPrompt:
            whole = asked if found is None else joined(asked, found.prefix())
            tools = DeclaredTools.of(whole.tools)
            return chat_prompt(whole, tools, self.bounds.max_messages)[0]

        prompt = await self.off_the_loop(permit, understand)
        return prompt, modules_of(asked.ratoon), asked.cache_salt

    async def _named(self, wire: GeminiPrompt, model: str, permit: Permit) -> NamedContent | None:
        """Find the cached content that a request names, if any.

        Raises Forbidden if the content is missing or has another salt, and BadRequest if it is of
        another model.
        """
        if wire.cached_content is None:
            return None
        tenant_id = permit.caller.tenant_id
        found = await self.contents.find(tenant_id, wire.cached_content, permit.body)
        check_use(found, model, wire.cache_salt)
        return found

    async def off_the_loop(self, permit: Permit, understand: Callable[[], T]) -> T:
        """Run `understand`, off the event loop if the body is large."""

        size = permit.body.size // BYTES_PER_CHARACTER
        return await self.admission.off_the_loop(permit.caller, in_one_step(understand), size)


def generation_request(
    wire: GenerateContentRequest,
    tools: DeclaredTools,
    request_id: str,
    bounds: Bounds,
    defaults: SamplingDefaults,
    cached: int = 0,
) -> GenerationRequest:
    """Convert `wire` into a generation request; raise BadRequest for a wrong field.

    Admission lowers `maxOutputTokens` to the room that the context leaves. The first `cached`
    contents of `wire` come from a cached content.
    """
    refuse_unsupported(wire)
    config = wire.generation_config or GeminiGenerationConfig()
    _refuse(config)
    choices = config.candidate_count or 1
    if choices > bounds.max_choices:
        raise BadRequest(
            f"at most {bounds.max_choices} candidates are allowed",
            param=f"{_CONFIG}.candidateCount",
        )
    prompt, form = chat_prompt(wire, tools, bounds.max_messages, cached)
    stops = checked_stops(listed(config.stop_sequences), bounds, f"{_CONFIG}.stopSequences")
    return GenerationRequest(
        request_id=request_id,
        prompts=(prompt,),
        choices=choices,
        sampling=_sampling(config, bounds, defaults),
        max_tokens_may_shrink=True,
        text=TextRules(stops=stops),
        salt=wire.cache_salt,
        priority="batch" if (wire.service_tier or "").lower() == "flex" else "interactive",
        form=form,
        explain=explain_of(wire.ratoon, None),
        modules=modules_of(wire.ratoon),
        drafts=wire.drafts is not False,
    )


def check_model(given: str | None, name: str, param: str) -> None:
    """Raise BadRequest if a body names another model than the path's model `name`."""
    if given is not None and given.removeprefix("models/") != name:
        raise BadRequest("the model is not the one of the path", param=param)


def check_use(found: NamedContent, model: str, salt: str | None) -> None:
    """Check that a cached content belongs to `model` and `salt`.

    Raises BadRequest for another model, and Forbidden for another salt.
    """
    if found.stored.salt != salt:
        raise missing()
    if found.stored.model != model:
        raise BadRequest(
            "Model used by GenerateContent request and CachedContent has to be the same.",
            param="cachedContent",
        )


def shows_thoughts(config: GeminiGenerationConfig | None) -> bool:
    """Return whether the answer has the model's thoughts."""
    thinking = None if config is None else config.thinking_config
    return thinking is not None and thinking.include_thoughts is True


def _refuse(config: GeminiGenerationConfig) -> None:
    refuse_unsupported(config, f"{_CONFIG}.")
    if {one.upper() for one in listed(config.response_modalities)} - {"TEXT"}:
        raise unsupported(f"{_CONFIG}.responseModalities", "it is TEXT alone")
    if config.logprobs is not None and not config.response_logprobs:
        raise BadRequest("`logprobs` needs `responseLogprobs`", param=f"{_CONFIG}.logprobs")


def _sampling(
    config: GeminiGenerationConfig, bounds: Bounds, defaults: SamplingDefaults
) -> SamplingParams:
    longest = config.max_output_tokens or defaults.max_tokens or bounds.default_max_tokens
    top_k = defaults.top_k if config.top_k is None else int(config.top_k)
    return SamplingParams(
        max_tokens=longest,
        temperature=_or(config.temperature, defaults.temperature),
        top_p=max(_or(config.top_p, defaults.top_p), _LEAST),
        top_k=top_k,
        min_p=defaults.min_p,
        presence_penalty=_or(config.presence_penalty, 0.0),
        frequency_penalty=_or(config.frequency_penalty, 0.0),
        repetition_penalty=defaults.repetition_penalty,
        seed=config.seed,
        num_logprobs=_num_logprobs(config, bounds),
    )


def _num_logprobs(config: GeminiGenerationConfig, bounds: Bounds) -> int | None:
    """Return how many likeliest tokens to list at each step, or None without log-probabilities."""
    if not config.response_logprobs:
        return None
    wanted = config.logprobs or 0
    if wanted > bounds.max_logprobs:
        raise BadRequest(
            f"`logprobs` is {wanted}, at most {bounds.max_logprobs} are allowed",
            param=f"{_CONFIG}.logprobs",
        )
    return wanted


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
