"""Anthropic's requests as Structs: field names, types and ranges.

Unknown fields are ignored. `None` means the same as an absent field. `Raw` fields are known but not
supported: a value that would have an effect is refused. `docs/reference/http-api.md` lists the
ignored fields, with reasons.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Raw, Struct, field

from gateway.dialects.anthropic.content.blocks import Effort, TextBlock, Turn
from gateway.dialects.anthropic.content.tool_params import ToolParam
from gateway.dialects.explaining import AnswerId, RatoonOptions
from gateway.prompts.chats.chat_json import CacheControl

Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
# maximum number of tokens of an answer; at 0 only the prompt is computed
Length = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Fraction = Annotated[float, Meta(ge=0, le=1)]

MAX_TOOLS = 512  # agents with many MCP servers have hundreds of tools


class ToolChoice(Struct, frozen=True, kw_only=True):
    """The choice of which tools must or may be called. The type `tool` needs a `name`."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Struct, frozen=True, kw_only=True):
    """The options to think, and to show the thinking."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Count | None = None
    display: Literal["summarized", "omitted", "updates"] | None = None


class OutputFormat(Struct, frozen=True, kw_only=True):
    """A JSON schema that the answer's text follows."""

    type: Literal["json_schema"]
    schema: dict[str, Any] | bool


class OutputConfig(Struct, frozen=True, kw_only=True):
    """The form of the answer. Chat templates get `effort` as their variable `reasoning_effort`."""

    effort: Effort | None = None
    format: OutputFormat | None = None


class Metadata(Struct, frozen=True, kw_only=True):
    """The end user's id, as the caller names it."""

    user_id: str | None = None


class DiagnosticsOptions(Struct, frozen=True, kw_only=True):
    """The option to report why the prompt does not continue an earlier message's prompt."""

    previous_message_id: AnswerId | None = None


class CreatedThread(Struct, frozen=True, tag_field="type", tag="create"):
    """The option to store this conversation under its answer's id."""


class ContinuedThread(Struct, frozen=True, kw_only=True, tag_field="type", tag="continue"):
    """The option to continue the conversation that is stored under an answer's id."""

    previous_message_id: AnswerId


Thread = CreatedThread | ContinuedThread


class PromptRequest(Struct, frozen=True, kw_only=True):
    """The fields of the prompt: the body of `POST /v1/messages/count_tokens`."""

    model: str
    messages: list[Turn]  # may be empty if the request continues a thread
    system: str | list[TextBlock] | None = None
    tools: Annotated[list[ToolParam], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    cache_control: CacheControl | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None  # the older name of `output_config.format`
    mcp_servers: list[dict[str, Any]] | None = None
    container: Raw = field(default_factory=Raw)
    inference_geo: Raw = field(default_factory=Raw)
    thread: Thread | None = None
    cache_salt: Annotated[str, Meta(min_length=1)] | None = None  # see `ChatRequest.cache_salt`
    ratoon: RatoonOptions | None = None


class MessagesRequest(PromptRequest, frozen=True, kw_only=True):
    """The body of `POST /v1/messages`."""

    max_tokens: Length
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: Fraction | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    metadata: Metadata | None = None
    diagnostics: DiagnosticsOptions | None = None
    drafts: bool | None = None
