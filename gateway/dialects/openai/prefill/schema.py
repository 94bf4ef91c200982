"""The requests of the routes that generate nothing, as Structs."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Raw, Struct, field

from gateway.dialects.openai.requests.schema import PROMPT_SCHEMA, Count
from gateway.dialects.openai_cache import CacheKey, PromptCacheOptions

Salt = Annotated[str, Meta(min_length=1)]


class EmbeddingRequest(Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/embeddings`."""

    model: str
    input: Annotated[Raw, Meta(extra_json_schema=PROMPT_SCHEMA)]  # parsed by `prompts.py`
    dimensions: Count | None = None
    encoding_format: Literal["float", "base64"] | None = None
    user: str | None = None
    prompt_cache_key: CacheKey | None = None
    cache_salt: Salt | None = None
    # Known fields that would affect the answer, but are not supported.
    ratoon: Raw = field(default_factory=Raw)
    truncate_prompt_tokens: Raw = field(default_factory=Raw)
    messages: Raw = field(default_factory=Raw)


class RerankDocument(Struct, frozen=True):
    """A document. Only its text is read."""

    text: str


class RerankRequest(Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/rerank`, in the forms of Jina's, Cohere's and Voyage's clients."""

    model: str | None = None
    query: Annotated[str, Meta(min_length=1)]
    documents: Annotated[list[str | RerankDocument], Meta(min_length=1)]
    top_n: Count | None = None
    top_k: Count | None = None  # Voyage's name of `top_n`
    # Voyage's flag; it changes nothing, since only `max_tokens_per_doc` cuts texts
    truncation: bool | None = None
    max_tokens_per_doc: Count | None = None  # the maximum number of tokens to read of a document
    return_documents: bool | None = None
    # an extension: the text that says what makes a document relevant
    instruction: str | None = None
    cache_salt: Salt | None = None
    # Known fields that would affect the answer, but are not supported.
    ratoon: Raw = field(default_factory=Raw)
    max_chunks_per_doc: Raw = field(default_factory=Raw)
    rank_fields: Raw = field(default_factory=Raw)
    truncate_prompt_tokens: Raw = field(default_factory=Raw)


class DecisionPart(Struct, frozen=True, kw_only=True):
    """A part of the input or of a question: a text, or JSON that is shown as it is."""

    type: Literal["input_text", "output_text", "refusal", "input_json"]
    text: str | None = None
    refusal: str | None = None
    data: Annotated[Raw, Meta(extra_json_schema={"type": ["object", "array"]})] = field(
        default_factory=Raw
    )


DecisionText = str | list[DecisionPart]


class DecisionItem(Struct, frozen=True, kw_only=True):
    """A message of the input, a tool call, or the result of a tool call."""

    type: Literal[
        "message",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
    ] = "message"
    role: Literal["user", "developer", "system", "assistant"] | None = None
    content: DecisionText | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: DecisionText | None = None


class Predicate(Struct, frozen=True, kw_only=True, tag_field="type", tag="predicate"):
    """A statement about the input, to be judged true or false."""

    instructions: DecisionText
    name: str | None = None


class DecisionChoice(Struct, frozen=True):
    """A choice: a text, or true or false."""

    value: str | bool
    description: str | None = None


class Choose(Struct, frozen=True, kw_only=True, tag_field="type", tag="choice"):
    """A question with given choices."""

    instructions: DecisionText
    choices: Annotated[list[DecisionChoice], Meta(min_length=2, max_length=255)]
    name: str | None = None


class Level(Struct, frozen=True):
    """A level of a rating."""

    label: str
    description: str | None = None


class Rating(Struct, frozen=True, kw_only=True, tag_field="type", tag="score"):
    """A rating by levels, the lowest first."""

    instructions: DecisionText
    levels: Annotated[list[Level], Meta(min_length=2, max_length=255)]
    name: str | None = None


Question = Predicate | Choose | Rating


class DecisionRequest(Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/decisions`."""

    model: str
    input: str | Annotated[list[DecisionItem], Meta(min_length=1)]
    questions: Annotated[list[Question], Meta(min_length=1, max_length=400)]
    prompt_cache_key: CacheKey | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    safety_identifier: str | None = None
    cache_salt: Salt | None = None
    ratoon: Raw = field(default_factory=Raw)  # not supported
