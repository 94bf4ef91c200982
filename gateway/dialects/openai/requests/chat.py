"""The chat route `/v1/chat/completions`: its requests become `GenerationRequest`s.

A field that would change the answer in an unsupported way is refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from gateway.config import Bounds
from gateway.diagnosis.parts import PromptPart
from gateway.dialects.explaining import explain_of
from gateway.dialects.openai.requests.answer_form import form_of_chat
from gateway.dialects.openai.requests.marks import marks_of_chat
from gateway.dialects.openai.requests.sampling import generation_request
from gateway.dialects.openai.requests.schema import ChatRequest, TokenizeRequest
from gateway.errors import BadRequest
from gateway.prompts.chats.chat_json import (
    ChatMessage,
    check_arguments,
    message_of,
    refuse_unsupported,
    unsupported,
)
from gateway.prompts.chats.chat_tools import SentTools
from gateway.prompts.chats.template_variables import MAX_CHARACTERS, Scalar, size_of_variables
from gateway.prompts.generation_request import ChatPrompt, GenerationRequest
from gateway.prompts.pipeline.explaining import message_parts, tool_parts
from gateway.prompts.sampling_defaults import DIALECT_DEFAULTS, SamplingDefaults


def request_of_chat(
    wire: ChatRequest,
    request_id: str,
    bounds: Bounds,
    defaults: SamplingDefaults = DIALECT_DEFAULTS,
    sent: SentTools | None = None,
) -> GenerationRequest:
    """Convert `wire` into a generation request; raise BadRequest for a wrong field.

    `sent` has the tools of `wire` if they have been read already.
    """
    _refuse(wire)
    newer = wire.max_completion_tokens
    tools = SentTools.of(wire.tools) if sent is None else sent
    prompt = chat_of(wire.messages, wire, tools, bounds)
    return generation_request(
        wire,
        request_id,
        (prompt,),
        bounds,
        defaults,
        max_tokens=wire.max_tokens if newer is None else newer,
        default_max_tokens=defaults.max_tokens or bounds.default_max_tokens,
        num_logprobs=_num_logprobs(wire),
        form=form_of_chat(wire, tools.specs),
        explain=explain_of(wire.ratoon, partial(_parts, prompt)),
        prediction="" if wire.prediction is None else wire.prediction.text,
        marks=marks_of_chat(wire, prompt, tools),
    )


def _parts(prompt: ChatPrompt) -> Iterator[PromptPart]:
    yield from tool_parts(prompt.tools)
    yield from message_parts(prompt.messages)


def _refuse(wire: ChatRequest) -> None:
    refuse_unsupported(wire)
    if wire.best_of is not None and wire.best_of != (wire.n or 1):
        raise unsupported("best_of")
    if set(wire.modalities or ()) - {"text"}:
        raise unsupported("modalities")


def chat_of(
    messages: Sequence[ChatMessage],
    options: ChatRequest | TokenizeRequest,
    tools: SentTools,
    bounds: Bounds,
) -> ChatPrompt:
    """Make a chat prompt of the messages and tools."""
    if len(messages) > bounds.max_messages:
        raise BadRequest(f"there are more than {bounds.max_messages} messages", param="messages")
    for place, message in enumerate(messages):
        refuse_unsupported(message, f"messages[{place}].")
    continue_final = _continues_last(messages, options)
    check_arguments(messages)
    return ChatPrompt(
        messages=tuple(message_of(message, place) for place, message in enumerate(messages)),
        add_generation_prompt=not continue_final and options.add_generation_prompt is not False,
        continue_final_message=continue_final,
        variables=_variables(options),
        tools=[*tools.forms] or None,
        tools_size=len(bytes(options.tools)),
    )


def _continues_last(
    messages: Sequence[ChatMessage], options: ChatRequest | TokenizeRequest
) -> bool:
    """Return whether the answer continues the last message. Clients use three fields for this."""
    last, where = messages[-1], f"messages[{len(messages) - 1}]"
    names = {
        "continue_final_message": options.continue_final_message,
        f"{where}.prefix": last.prefix,
        f"{where}.partial": last.partial,
    }
    name = next((name for name, is_set in names.items() if is_set), None)
    if name is None:
        return False
    if options.add_generation_prompt:
        raise BadRequest(f"`add_generation_prompt` and `{name}` exclude each other", param=name)
    if last.role != "assistant":
        raise BadRequest(f"`{name}` needs a last message of the assistant", param=name)
    return True


def _variables(options: ChatRequest | TokenizeRequest) -> Mapping[str, Scalar]:
    """Write the template's variables. The caller's values override the gateway's values."""
    given = options.chat_template_kwargs or {}
    if size_of_variables(given) > MAX_CHARACTERS:
        raise BadRequest(
            f"`chat_template_kwargs` has more than {MAX_CHARACTERS} characters",
            param="chat_template_kwargs",
        )
    effort = options.reasoning_effort
    if effort is None:
        return given
    # Some templates use the effort. Others use only whether the model thinks.
    ours: dict[str, Scalar] = {"reasoning_effort": effort, "enable_thinking": effort != "none"}
    return ours | dict(given)


def _num_logprobs(wire: ChatRequest) -> tuple[str, int] | None:
    if wire.top_logprobs and not wire.logprobs:
        raise BadRequest("`top_logprobs` needs `logprobs`", param="top_logprobs")
    return ("top_logprobs", wire.top_logprobs or 0) if wire.logprobs else None
