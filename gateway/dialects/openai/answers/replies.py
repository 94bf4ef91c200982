"""OpenAI's answers as Structs."""

from collections.abc import Sequence
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from gateway.dialects.explaining import DraftUsage, RatoonReply
from gateway.dialects.openai_shape import CacheWrites
from gateway.generation.choice import EndReason
from gateway.views import TokensByTier

FinishReason = Literal[EndReason, "tool_calls"]
ServedTier = Literal["default", "flex"]


class PromptDetails(Struct, frozen=True):
    """The numbers of prompt tokens read from the cache, and written to the cache.

    `ratoon` is an extension for callers allowed to see it.
    """

    cached_tokens: int
    cache_write_tokens: int
    cache_write_tokens_details: CacheWrites | UnsetType = UNSET
    ratoon: TokensByTier | UnsetType = UNSET


class CompletionDetails(Struct, frozen=True, kw_only=True):
    """The numbers of reasoning tokens, and of tokens drafted from the request's `prediction`.

    `completion_tokens` includes both numbers, even rejected drafts. `ratoon` is an extension.
    """

    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int
    ratoon: DraftUsage | UnsetType = UNSET


class UsageReply(Struct, frozen=True, kw_only=True):
    """Token counts of one request. `prompt_tokens` includes the cached tokens.

    `prompt_cache_hit_tokens` is the number of cached tokens under DeepSeek's name.
    """

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_cache_hit_tokens: int
    prompt_cache_miss_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class TopLogprob(Struct, frozen=True):
    """One likely token. Its `bytes` need not be whole characters."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(Struct, frozen=True):
    """The chosen token and the likeliest alternatives."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct, frozen=True):
    """The log-probabilities of a message's tokens."""

    content: Sequence[TokenLogprob]
    refusal: None = None


class CalledFunction(Struct, frozen=True):
    """The called function's name, and its arguments as a JSON object."""

    name: str
    arguments: str


class FunctionCall(Struct, frozen=True, tag_field="type", tag="function"):
    """A call of a function."""

    id: str
    function: CalledFunction


class CalledCustom(Struct, frozen=True):
    """The name of the called custom tool, and its input as text."""

    name: str
    input: str


class CustomCall(Struct, frozen=True, tag_field="type", tag="custom"):
    """A call of a custom tool, which takes text."""

    id: str
    custom: CalledCustom


class AssistantMessage(Struct, frozen=True):
    """The answer's message. The text is None if the message has only calls.

    `reasoning` is vLLM's newer name for `reasoning_content`. Clients read one or the other.
    """

    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[FunctionCall | CustomCall] | UnsetType = UNSET


class ChatChoice(Struct, frozen=True):
    """One of the `n` choices of the answer."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    token_ids: list[int] | UnsetType = UNSET


class PromptLogprob(Struct, frozen=True):
    """The log-probability of a prompt token after its predecessors. `rank` 1 is the likeliest."""

    logprob: float
    rank: int
    decoded_token: str


# For each prompt token: its likeliest candidates and the token itself, by token id. The prompt's
# first token has None.
PromptLogprobs = Sequence[dict[int, PromptLogprob] | None]


class ChatCompletion(Struct, frozen=True, kw_only=True):
    """The whole answer to a chat."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: Sequence[ChatChoice]
    usage: UsageReply
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    service_tier: ServedTier | UnsetType = UNSET  # sent only if the request names a tier
    provider: str | UnsetType = UNSET  # sent only below `/api/v1`
    ratoon: RatoonReply | UnsetType = UNSET


class FunctionDelta(Struct, frozen=True):
    """The name of the called function, or a delta of its arguments."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class CustomDelta(Struct, frozen=True):
    """The name of the called custom tool, or a delta of its text."""

    name: str | UnsetType = UNSET
    input: str | UnsetType = UNSET


class ToolCallDelta(Struct, frozen=True):
    """The beginning of a call, or a delta of its arguments or text."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function", "custom"] | UnsetType = UNSET
    function: FunctionDelta | UnsetType = UNSET
    custom: CustomDelta | UnsetType = UNSET


class MessageDelta(Struct, frozen=True):
    """A chunk's delta of the message, with reasoning under both field names."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChunkChoice(Struct, frozen=True):
    """A delta of one of the `n` choices."""

    index: int
    delta: MessageDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None
    token_ids: list[int] | UnsetType = UNSET


class GroqFields(Struct, frozen=True):
    """The fields of a stream's last chunk that only Groq's API has."""

    id: str
    usage: UsageReply


class ChatChunk(Struct, frozen=True, kw_only=True):
    """A chunk of the answer to a chat."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: Sequence[ChatChunkChoice]
    usage: UsageReply | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET  # sent in the first chunk
    service_tier: ServedTier | UnsetType = UNSET
    x_groq: GroqFields | UnsetType = UNSET  # sent in the last chunk, below `/openai/v1`
    provider: str | UnsetType = UNSET  # sent only below `/api/v1`
    ratoon: RatoonReply | UnsetType = UNSET  # sent in the first chunk of a stream


class CompletionLogprobs(Struct, frozen=True):
    """The log-probabilities of a completion's tokens. `text_offset` counts characters."""

    tokens: Sequence[str]
    token_logprobs: Sequence[float | None]
    top_logprobs: Sequence[dict[str, float] | None] | None
    text_offset: Sequence[int]


class CompletionChoice(Struct, frozen=True):
    """One choice of a text completion, or a delta of the choice."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: EndReason | None = None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET  # sent in the first chunk of a stream
    token_ids: list[int] | UnsetType = UNSET


class Completion(Struct, frozen=True, kw_only=True):
    """The answer to a text completion, or a chunk of the answer."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: Sequence[CompletionChoice]
    usage: UsageReply | UnsetType | None = UNSET
    provider: str | UnsetType = UNSET  # sent only below `/api/v1`
    ratoon: RatoonReply | UnsetType = UNSET  # sent in the first chunk of a stream
