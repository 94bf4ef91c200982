"""Gemini's requests as Structs: field names, types and ranges.

One value may stand in place of a list. Unknown fields are ignored. `None` means the same as an
absent field. `Raw` fields are known but not supported: a value that would have an effect is
refused. Tools that Google's servers run are ignored, not refused.
"""

from typing import Annotated, Any, ClassVar

from msgspec import Meta, Raw, Struct, field

from gateway.dialects.explaining import RatoonOptions
from gateway.dialects.gemini.parts import GeminiContent

Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]

MAX_TOOLS = 512


class FunctionDeclaration(Struct, frozen=True, kw_only=True, rename="camel"):
    """A function that may be called, with Gemini's schema or JSON Schema."""

    name: Annotated[str, Meta(min_length=1, max_length=128)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    parameters_json_schema: dict[str, Any] | bool | None = None


class GeminiTool(Struct, frozen=True, kw_only=True, rename="camel"):
    """Declared functions, or a tool that Google's servers run."""

    function_declarations: list[FunctionDeclaration] | FunctionDeclaration | None = None
    google_search: Raw = field(default_factory=Raw)
    google_search_retrieval: Raw = field(default_factory=Raw)
    google_maps: Raw = field(default_factory=Raw)
    code_execution: Raw = field(default_factory=Raw)
    computer_use: Raw = field(default_factory=Raw)
    enterprise_web_search: Raw = field(default_factory=Raw)
    file_search: Raw = field(default_factory=Raw)
    mcp_servers: Raw = field(default_factory=Raw)
    retrieval: Raw = field(default_factory=Raw)
    url_context: Raw = field(default_factory=Raw)


class FunctionCalling(Struct, frozen=True, kw_only=True, rename="camel"):
    """The choice of which functions must or may be called."""

    mode: str | None = None
    allowed_function_names: list[str] | str | None = None


class GeminiToolConfig(Struct, frozen=True, kw_only=True, rename="camel"):
    """The choice of functions to call."""

    function_calling_config: FunctionCalling | None = None


class GeminiThinking(Struct, frozen=True, kw_only=True, rename="camel"):
    """The options of thinking, and of showing thoughts."""

    include_thoughts: bool | None = None
    thinking_budget: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    thinking_level: Annotated[str, Meta(max_length=64)] | None = None


class GeminiGenerationConfig(Struct, frozen=True, kw_only=True, rename="camel"):
    """The options for sampling, and for the answer's form."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Fraction | None = None
    top_k: Annotated[float, Meta(ge=0, le=2**31 - 1)] | None = None
    candidate_count: Count | None = None
    max_output_tokens: Count | None = None
    stop_sequences: list[str] | str | None = None
    seed: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    response_logprobs: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    response_mime_type: str | None = None
    response_schema: dict[str, Any] | None = None
    response_json_schema: dict[str, Any] | bool | None = None
    response_modalities: list[str] | str | None = None
    thinking_config: GeminiThinking | None = None
    speech_config: Raw = field(default_factory=Raw)


class GeminiPrefix(Struct, frozen=True, kw_only=True, rename="camel"):
    """The fields of a prompt that can be cached by name."""

    contents: list[GeminiContent] | GeminiContent | None = None
    system_instruction: GeminiContent | None = None
    tools: list[GeminiTool] | GeminiTool | None = None
    tool_config: GeminiToolConfig | None = None


class GeminiPrompt(GeminiPrefix, frozen=True, kw_only=True, rename="camel"):
    """The fields of a prompt. `cachedContent` names a cached content, whose fields come first."""

    contents: list[GeminiContent] | GeminiContent
    model: str | None = None  # must be the path's model, if given
    generation_config: GeminiGenerationConfig | None = None
    cached_content: str | None = None
    cache_salt: Annotated[str, Meta(min_length=1)] | None = None
    ratoon: RatoonOptions | None = None


class GenerateContentRequest(GeminiPrompt, frozen=True, kw_only=True, rename="camel"):
    """The body of `:generateContent` and `:streamGenerateContent`."""

    service_tier: str | None = None
    continuation_token: Raw = field(default_factory=Raw)
    drafts: bool | None = None


class CountTokensRequest(Struct, frozen=True, kw_only=True, rename="camel"):
    """The body of `:countTokens`: turns alone, or a whole request."""

    BEYOND_TYPES: ClassVar[dict[str, Any]] = {
        "anyOf": [{"required": ["contents"]}, {"required": ["generateContentRequest"]}]
    }
    contents: list[GeminiContent] | GeminiContent | None = None
    generate_content_request: GeminiPrompt | None = None
    ratoon: RatoonOptions | None = None  # options for a body that has only turns
