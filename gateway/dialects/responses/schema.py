"""The Responses API's requests as Structs: field names, types and ranges.

One Struct has the fields of all kinds of items. msgspec could not choose a Struct by `type`, which
an item may lack. `items.py` finds an item's kind. `Raw` fields are known but not supported. Unknown
fields are ignored. `None` means the same as an absent field.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Raw, Struct, field

from gateway.dialects.explaining import AnswerId, RatoonOptions
from gateway.dialects.openai_cache import CacheKey, PromptCacheOptions, Retention
from gateway.dialects.openai_shape import Penalty, ServiceTier
from gateway.prompts.chats.chat_json import CacheBreakpoint, CacheControl

Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Role = Literal["user", "assistant", "system", "developer"]
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
    Meta(max_length=16),
]
_ANY_TOOLS = {"type": ["array", "null"], "items": {"type": "object"}}
_ANY_CHOICE = {"type": ["object", "string", "null"]}


class ItemPart(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of an item's text: `input_text`, `output_text`, `refusal`, `reasoning_text`, ...

    A part of a shell's output has no `type`.
    """

    type: str | None = None
    text: str | None = None
    refusal: str | None = None
    annotations: list[dict[str, Any]] | None = None
    prompt_cache_breakpoint: CacheBreakpoint | None = None
    cache_control: CacheControl | None = None
    stdout: str | None = None
    stderr: str | None = None
    outcome: dict[str, Any] | None = None


class Item(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One input item: a message, a call, its output, reasoning, or a reference to an item.

    An item may also bring tools, or be another server's call with its result.
    """

    type: str | None = None
    id: str | None = None
    status: str | None = None
    role: Role | None = None
    content: str | list[ItemPart] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | dict[str, Any] | None = None
    input: str | None = None
    execution: str | None = None
    tools: list[dict[str, Any]] | None = None
    output: str | list[ItemPart] | None = None
    summary: list[ItemPart] | None = None
    encrypted_content: str | None = None
    cache_control: CacheControl | None = None
    action: dict[str, Any] | None = None
    operation: dict[str, Any] | None = None
    max_output_length: int | None = None
    code: str | None = None
    container_id: str | None = None
    outputs: list[dict[str, Any]] | None = None
    queries: list[str] | None = None
    results: list[dict[str, Any]] | None = None
    result: str | None = None
    server_label: str | None = None
    error: dict[str, Any] | str | None = None


class TextFormat(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The format of the answer's text. The answer follows a schema even if `strict` is false."""

    type: Annotated[str, Meta(extra_json_schema={"enum": ["text", "json_object", "json_schema"]})]
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None


class TextOptions(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The options for the answer's text. `verbosity` has no effect."""

    format: TextFormat | None = None
    verbosity: str | None = None


class ReasoningOptions(Struct, frozen=True, kw_only=True):
    """The effort of reasoning. There are no summaries, since reasoning is shown as it is."""

    effort: Effort | None = None
    summary: str | None = None


class ResponseCacheOptions(PromptCacheOptions, frozen=True, kw_only=True):
    """The prompt cache options. `prewarm` computes the prompt, and generates nothing.

    `comparison_response_id` asks why the prompt does not continue that response's prompt.
    """

    prewarm: bool | None = None
    comparison_response_id: AnswerId | None = None


class ResponsesRequest(Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/responses`, and of `POST /v1/responses/input_tokens`."""

    model: str
    input: str | list[Item] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    generate: bool | None = None  # false means `prewarm`
    stream: bool | None = None
    metadata: Metadata | None = None
    max_output_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    tools: Annotated[Raw, Meta(extra_json_schema=_ANY_TOOLS)] = field(default_factory=Raw)
    tool_choice: Annotated[Raw, Meta(extra_json_schema=_ANY_CHOICE)] = field(default_factory=Raw)
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    include: list[str] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    # a "flex" request may wait longer; other tiers change nothing
    service_tier: ServiceTier | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: CacheKey | None = None
    prompt_cache_retention: Retention | None = None
    prompt_cache_options: ResponseCacheOptions | None = None
    cache_salt: Annotated[str, Meta(min_length=1)] | None = None
    ratoon: RatoonOptions | None = None
    drafts: bool | None = None

    @property
    def prewarms(self) -> bool:
        """True if the request only computes its prompt into the cache."""
        options = self.prompt_cache_options
        return self.generate is False or (options is not None and options.prewarm is True)

    # Known fields that would affect the answer, but are not supported.
    background: Raw = field(default_factory=Raw)
    conversation: Raw = field(default_factory=Raw)
    moderation: Raw = field(default_factory=Raw)
    prompt: Raw = field(default_factory=Raw)
    top_logprobs: Raw = field(default_factory=Raw)
