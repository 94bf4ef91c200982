"""The Responses API's answers as Structs."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Raw, Struct, UnsetType

from gateway.dialects.explaining import DraftUsage, RatoonReply
from gateway.dialects.openai_cache import Retention
from gateway.dialects.openai_shape import CacheWrites
from gateway.dialects.responses.diagnostics import CacheDiagnostics
from gateway.dialects.responses.schema import ReasoningOptions, ResponseCacheOptions, TextOptions
from gateway.prompts.chats.chat_json import Lifetime
from gateway.views import TokensByTier


class AppliedCacheOptions(Struct, frozen=True, kw_only=True):
    """The prompt cache options with which a response was made."""

    mode: Literal["implicit", "explicit"]
    ttl: Lifetime
    comparison_response_id: str | None = None

    @classmethod
    def of(cls, asked: ResponseCacheOptions | None) -> AppliedCacheOptions | None:
        """Read the options of a request, with defaults; return None without options."""
        if asked is None:
            return None
        return cls(
            mode=asked.mode or "implicit",
            ttl=asked.ttl or "30m",
            comparison_response_id=asked.comparison_response_id,
        )


ItemStatus = Literal["in_progress", "completed", "incomplete"]
ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed"]


class OutputText(Struct, frozen=True, kw_only=True, tag_field="type", tag="output_text"):
    """A text part of a message."""

    text: str
    annotations: tuple[()] = ()
    logprobs: tuple[()] = ()


class ReasoningText(Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning_text"):
    """The model's reasoning, in full."""

    text: str


class OutputMessage(Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """The item with the model's text."""

    id: str
    status: ItemStatus
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class OutputReasoning(Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    """The item with the model's reasoning before its text."""

    id: str
    status: ItemStatus
    summary: tuple[()] = ()
    content: list[ReasoningText]
    encrypted_content: None = None


class OutputCall(Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call"):
    """A call of a function. `arguments` are JSON, unless the answer ended within them."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    namespace: str | UnsetType = UNSET
    arguments: str


class OutputCustomCall(Struct, frozen=True, kw_only=True, tag_field="type", tag="custom_tool_call"):
    """A call of a custom tool, which takes text."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    namespace: str | UnsetType = UNSET
    input: str


class OutputSearchCall(Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_search_call"):
    """A search for tools, run by the client. `arguments` are empty if the answer was cut off."""

    id: str
    status: ItemStatus
    call_id: str
    execution: Literal["client"] = "client"
    arguments: dict[str, Any]


class OutputLocalShell(Struct, frozen=True, kw_only=True, tag_field="type", tag="local_shell_call"):
    """A command that the client runs. `action` has no command if the answer was cut off."""

    id: str
    status: ItemStatus
    call_id: str
    action: dict[str, Any]


class OutputShell(Struct, frozen=True, kw_only=True, tag_field="type", tag="shell_call"):
    """A call of shell commands that the client runs."""

    id: str
    status: ItemStatus
    call_id: str
    action: dict[str, Any]


class OutputPatch(Struct, frozen=True, kw_only=True, tag_field="type", tag="apply_patch_call"):
    """A call that makes the client create, update or delete a file."""

    id: str
    status: ItemStatus
    call_id: str
    operation: dict[str, Any]


OutputClientCall = OutputLocalShell | OutputShell | OutputPatch
OutputItem = (
    OutputMessage
    | OutputReasoning
    | OutputCall
    | OutputCustomCall
    | OutputSearchCall
    | OutputClientCall
)
OutputPart = OutputText | ReasoningText


class InputDetails(Struct, frozen=True, kw_only=True):
    """The input tokens read from and written to the cache."""

    cached_tokens: int
    cache_write_tokens: int
    cache_write_tokens_details: CacheWrites | UnsetType = UNSET
    ratoon: TokensByTier | UnsetType = UNSET


class OutputDetails(Struct, frozen=True):
    """The output's reasoning tokens."""

    reasoning_tokens: int
    ratoon: DraftUsage | UnsetType = UNSET


class ResponseUsage(Struct, frozen=True, kw_only=True):
    """Token counts of one response. `input_tokens` includes the cached tokens."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseFailure(Struct, frozen=True):
    """The reason why a response failed."""

    code: str
    message: str


class IncompleteDetails(Struct, frozen=True):
    """The reason why a response ended early."""

    reason: Literal["max_output_tokens"] = "max_output_tokens"


class ResponseReply(Struct, frozen=True, kw_only=True):
    """A response. `store` tells whether the response is really stored."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: ResponseStatus = "in_progress"
    background: Literal[False] = False
    error: ResponseFailure | None = None
    frequency_penalty: float
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: None = None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    presence_penalty: float
    previous_response_id: str | None
    prompt_cache_diagnostics: CacheDiagnostics | None = None
    prompt_cache_key: str | None
    prompt_cache_options: AppliedCacheOptions | None
    prompt_cache_retention: Retention | None
    reasoning: ReasoningOptions
    safety_identifier: str | None
    service_tier: str = "default"
    store: bool
    temperature: float
    text: TextOptions
    tool_choice: Raw
    tools: Raw
    top_logprobs: Literal[0] = 0
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None
    user: str | None
    ratoon: RatoonReply | UnsetType = UNSET


class InputTokens(Struct, frozen=True):
    """The number of a prompt's tokens, equal to `usage.input_tokens` of its response."""

    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


class DeletedResponse(Struct, frozen=True):
    """The answer to the deletion of a stored response."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class InputItemList(Struct, frozen=True, kw_only=True):
    """A page of a response's input items."""

    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool
