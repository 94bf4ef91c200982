"""OpenAI's answers as Structs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from gateway.dialects.explaining import RatoonReply
from gateway.dialects.openai_shape import CacheWrites
from gateway.generation.choice import EndReason
from gateway.views import TokensByTier

FinishReason = Literal[EndReason, "tool_calls"]
ServedTier = Literal["default", "flex"]


class PromptDetails(Struct, frozen=True):
    """The counts of the prompt's tokens that came from the cache, and that were retained there.

    `ratoon` is an extension, for those whom the operator lets see it.
    """

    cached_tokens: int
    cache_write_tokens: int
    cache_write_tokens_details: CacheWrites | UnsetType = UNSET
    ratoon: TokensByTier | UnsetType = UNSET


class CompletionDetails(Struct, frozen=True):
    """The number of the completion's tokens that were reasoning."""

    reasoning_tokens: int


class UsageReply(Struct, frozen=True, kw_only=True):
    """Tokens of one request. `prompt_tokens` includes the cached ones."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class TopLogprob(Struct, frozen=True):
    """One likely token; its `bytes` need not be whole characters."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(Struct, frozen=True):
    """The chosen token and the likeliest ones in its place."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct, frozen=True):
    """Log-probabilities of a message's tokens."""

    content: Sequence[TokenLogprob]
    refusal: None = None


class CalledFunction(Struct, frozen=True):
    """The called function, with JSON of an object."""

    name: str
    arguments: str


class FunctionCall(Struct, frozen=True, tag_field="type", tag="function"):
    """A call of a function."""

    id: str
    function: CalledFunction


class CalledCustom(Struct, frozen=True):
    """The called tool, with a text."""

    name: str
    input: str


class CustomCall(Struct, frozen=True, tag_field="type", tag="custom"):
    """A call of a tool that takes text."""

    id: str
    custom: CalledCustom


class AssistantMessage(Struct, frozen=True):
    """The answer: its text, None where there are only calls.

    `reasoning` is vLLM's newer name of `reasoning_content`: clients read one or the other.
    """

    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[FunctionCall | CustomCall] | UnsetType = UNSET


class ChatChoice(Struct, frozen=True):
    """One of `n` answers."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    token_ids: list[int] | UnsetType = UNSET


class PromptLogprob(Struct, frozen=True):
    """The likelihood of a token of the prompt after those before it; `rank` 1 is the likeliest."""

    logprob: float
    rank: int
    decoded_token: str


# For each token of the prompt some candidates by token id, itself among them; None for the first.
PromptLogprobs = Sequence[dict[int, PromptLogprob] | None]


class ChatCompletion(Struct, frozen=True, kw_only=True):
    """The answer to a chat."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: Sequence[ChatChoice]
    usage: UsageReply
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    service_tier: ServedTier | UnsetType = UNSET  # where the request names one
    ratoon: RatoonReply | UnsetType = UNSET


class FunctionDelta(Struct, frozen=True):
    """The name of what is called, or more of its arguments."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class CustomDelta(Struct, frozen=True):
    """The name of what is called, or more of its text."""

    name: str | UnsetType = UNSET
    input: str | UnsetType = UNSET


class ToolCallDelta(Struct, frozen=True):
    """A call begins, or has more arguments or more text."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function", "custom"] | UnsetType = UNSET
    function: FunctionDelta | UnsetType = UNSET
    custom: CustomDelta | UnsetType = UNSET


class MessageDelta(Struct, frozen=True):
    """The addition of a chunk to the message, with both names of reasoning."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChunkChoice(Struct, frozen=True):
    """A piece of one of `n` answers."""

    index: int
    delta: MessageDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(Struct, frozen=True, kw_only=True):
    """A piece of the answer to a chat."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: Sequence[ChatChunkChoice]
    usage: UsageReply | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET  # with the first piece
    service_tier: ServedTier | UnsetType = UNSET
    ratoon: RatoonReply | UnsetType = UNSET  # in a stream with the first piece


class CompletionLogprobs(Struct, frozen=True):
    """Log-probabilities of a completion's tokens; `text_offset` counts characters."""

    tokens: Sequence[str]
    token_logprobs: Sequence[float | None]
    top_logprobs: Sequence[dict[str, float] | None] | None
    text_offset: Sequence[int]


class CompletionChoice(Struct, frozen=True):
    """One completion, or a piece of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: EndReason | None = None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET  # in a stream with the first piece
    token_ids: list[int] | UnsetType = UNSET


class Completion(Struct, frozen=True, kw_only=True):
    """The answer to a text completion, or a piece of it."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: Sequence[CompletionChoice]
    usage: UsageReply | UnsetType | None = UNSET
    ratoon: RatoonReply | UnsetType = UNSET  # in a stream with the first piece


class Model(Struct, frozen=True, kw_only=True):
    """A model that requests can name. `max_model_len` is None while no engine is connected.

    The last fields are for Anthropic's clients, whose models are at the same path.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    max_model_len: int | None
    type: Literal["model"] = "model"
    display_name: str
    created_at: str
    max_input_tokens: int | None
    lifecycle: Literal["active"] = "active"


class ModelList(Struct, frozen=True, kw_only=True):
    """All models. The last three fields are for Anthropic's clients."""

    object: Literal["list"] = "list"
    data: list[Model]
    has_more: bool = False
    first_id: str
    last_id: str


class Tokenized(Struct, frozen=True, kw_only=True):
    """A prompt's token ids."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(Struct, frozen=True):
    """A text from token ids."""

    prompt: str
