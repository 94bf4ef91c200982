"""The conversion of a request's body into a generation request and an empty response."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec
from msgspec import Raw, UnsetType

from engine.link.messages import SamplingParams
from gateway.config import Bounds
from gateway.diagnosis.parts import PromptPart
from gateway.dialects.explaining import RatoonReply, modules_of, ratoon_reply
from gateway.dialects.responses.chats.answer_form import answer_form
from gateway.dialects.responses.chats.marks import marks_of_response
from gateway.dialects.responses.chats.toolset import Toolset
from gateway.dialects.responses.chats.turns import messages_of
from gateway.dialects.responses.diagnostics import MissQuestions
from gateway.dialects.responses.input_items.hosted_items import passed_over
from gateway.dialects.responses.input_items.items import STORED, Placed, checked
from gateway.dialects.responses.input_items.tool_entries import Called
from gateway.dialects.responses.replies import AppliedCacheOptions, ResponseReply
from gateway.dialects.responses.schema import (
    Item,
    ReasoningOptions,
    ResponsesRequest,
    TextFormat,
    TextOptions,
)
from gateway.errors import BadRequest
from gateway.prompts.chats.chat_json import refuse_unsupported, unsupported
from gateway.prompts.chats.template_variables import Scalar
from gateway.prompts.generation_request import (
    AnswerForm,
    ChatPrompt,
    GenerationRequest,
    TextRules,
)
from gateway.prompts.pipeline.explaining import tool_parts
from gateway.prompts.sampling_defaults import DIALECT_DEFAULTS, SamplingDefaults

# Accepted values of `include`. None of them adds anything to an answer here.
_INCLUDABLE = {
    "reasoning.encrypted_content",  # reasoning is shown as text, never encrypted
    "code_interpreter_call.outputs",  # results of hosted tools, which nothing here runs
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
}


@dataclass(frozen=True, slots=True)
class Understood:
    """A converted request, with the response that its answer will complete."""

    generation_request: GenerationRequest
    begun: ResponseReply
    # the form of each tool's calls, by the name that the model knows
    calls: Mapping[str, Called]
    items: bytes
    count: int


def check_fields(wire: ResponsesRequest) -> None:
    """Raise BadRequest for unsupported fields, or fields that exclude each other."""
    refuse_unsupported(msgspec.structs.replace(wire, tools=Raw(), tool_choice=Raw()))
    if wire.truncation == "auto":
        raise unsupported("truncation", unless='it is "disabled"')
    for one in wire.include or ():
        if one not in _INCLUDABLE:
            raise unsupported("include")
    if wire.input is None and wire.previous_response_id is None:
        raise BadRequest("`input` is missing", code="missing_required_parameter", param="input")


def understood(
    wire: ResponsesRequest,
    before: Sequence[Item],
    items: Sequence[Item],
    request_id: str,
    model: str,
    bounds: Bounds,
    defaults: SamplingDefaults = DIALECT_DEFAULTS,
) -> Understood:
    """Convert `wire`, which continues the items `before`; raise BadRequest for a wrong field."""
    placed = [Placed(item, STORED) for item in before]
    placed += [Placed(item, f"input[{place}]") for place, item in enumerate(items)]
    if not placed:
        raise BadRequest("`input` is empty", param="input")
    if len(placed) > bounds.max_messages:
        raise BadRequest(f"there are more than {bounds.max_messages} items", param="input")
    kept = checked(placed, request_id)
    tools = Toolset.of(wire.tools, kept)
    ignored = (*tools.passed_over, *passed_over((one.item, one.param) for one in kept))
    form, shown = answer_form(wire, tools), [tools.as_shown(one) for one in kept]
    prompt = ChatPrompt(
        messages=messages_of(wire.instructions, shown, tools.in_place),
        variables=_variables(wire),
        tools=tools.forms() or None,
        tools_size=len(bytes(wire.tools)),
        later_tools=tools.later_specs(),
    )
    return Understood(
        replace(
            _generation_request(wire, prompt, form, request_id, bounds, defaults),
            marks=marks_of_response(wire, shown, prompt, tools),
            modules=modules_of(wire.ratoon),
            explain=MissQuestions.of(wire).explain(partial(_parts, wire, prompt, kept)),
        ),
        _begun(wire, request_id, model, defaults, ratoon_reply(None, ignored)),
        tools.calls(),
        msgspec.json.encode([one.item for one in kept]),
        len(kept),
    )


def _generation_request(
    wire: ResponsesRequest,
    prompt: ChatPrompt,
    form: AnswerForm,
    request_id: str,
    bounds: Bounds,
    defaults: SamplingDefaults,
) -> GenerationRequest:
    longest = defaults.max_tokens or bounds.default_max_tokens
    return GenerationRequest(
        request_id=request_id,
        prompts=(prompt,),
        choices=1,
        sampling=SamplingParams(
            max_tokens=0 if wire.prewarms else wire.max_output_tokens or longest,
            temperature=defaults.temperature if wire.temperature is None else wire.temperature,
            top_p=defaults.top_p if wire.top_p is None else wire.top_p,
            top_k=defaults.top_k,
            min_p=defaults.min_p,
            presence_penalty=wire.presence_penalty or 0.0,
            frequency_penalty=wire.frequency_penalty or 0.0,
            repetition_penalty=defaults.repetition_penalty,
        ),
        max_tokens_may_shrink=wire.max_output_tokens is None,
        text=TextRules(),
        salt=wire.cache_salt,
        # A request may have a lower priority than its tenant, but no higher priority.
        priority="batch" if wire.service_tier == "flex" else "interactive",
        form=form,
        drafts=wire.drafts is not False,
    )


def _parts(
    wire: ResponsesRequest, prompt: ChatPrompt, kept: Sequence[Placed]
) -> Iterator[PromptPart]:
    yield from tool_parts(prompt.tools)
    yield PromptPart("instructions", "system", wire.instructions or "")
    for one in kept:
        item, where = one.item, one.param
        is_system = item.role in ("system", "developer")
        for text in _texts(item):
            yield PromptPart(where, "system" if is_system else "messages", text)


def _texts(item: Item) -> Iterator[str]:
    for said in (item.content, item.output, item.input or ""):
        if isinstance(said, str):
            yield said
        else:
            yield from (part.text or "" for part in said or ())
    yield item.name or ""
    asked = item.action or item.operation
    yield "" if asked is None else msgspec.json.encode(asked).decode()


def _variables(wire: ResponsesRequest) -> dict[str, Scalar]:
    effort = None if wire.reasoning is None else wire.reasoning.effort
    if effort is None:
        return {}
    return {"reasoning_effort": effort, "enable_thinking": effort != "none"}


def _begun(
    wire: ResponsesRequest,
    request_id: str,
    model: str,
    defaults: SamplingDefaults,
    ratoon: RatoonReply | UnsetType,
) -> ResponseReply:
    asked = wire.text or TextOptions()
    return ResponseReply(
        id=f"resp_{request_id}",
        created_at=int(time.time()),
        frequency_penalty=wire.frequency_penalty or 0.0,
        instructions=wire.instructions,
        max_output_tokens=wire.max_output_tokens,
        metadata=wire.metadata or {},
        model=model,
        output=[],
        parallel_tool_calls=wire.parallel_tool_calls is not False,
        presence_penalty=wire.presence_penalty or 0.0,
        previous_response_id=wire.previous_response_id,
        prompt_cache_key=wire.prompt_cache_key,
        prompt_cache_options=AppliedCacheOptions.of(wire.prompt_cache_options),
        prompt_cache_retention=wire.prompt_cache_retention,
        reasoning=wire.reasoning or ReasoningOptions(),
        safety_identifier=wire.safety_identifier,
        service_tier="flex" if wire.service_tier == "flex" else "default",
        store=wire.store is not False,
        temperature=defaults.temperature if wire.temperature is None else wire.temperature,
        text=TextOptions(format=asked.format or TextFormat(type="text"), verbosity=asked.verbosity),
        tool_choice=_given(wire.tool_choice, b'"auto"'),
        tools=_given(wire.tools, b"[]"),
        top_p=defaults.top_p if wire.top_p is None else wire.top_p,
        user=wire.user,
        ratoon=ratoon,
    )


def _given(raw: Raw, default: bytes) -> Raw:
    """Copy the field's JSON, since a reference would keep the whole body in memory."""
    sent = bytes(raw)
    return Raw(default if sent in (b"", b"null") else sent)
