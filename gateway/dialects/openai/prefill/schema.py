"""The requests of the routes that generate nothing, as Structs."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Raw, Struct, field

from gateway.dialects.openai.schema import PROMPT_SCHEMA, Count
from gateway.dialects.openai_cache import CacheKey

Salt = Annotated[str, Meta(min_length=1)]


class EmbeddingRequest(Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/embeddings`."""

    model: str
    input: Annotated[Raw, Meta(extra_json_schema=PROMPT_SCHEMA)]  # `prompts.py` parses it
    dimensions: Count | None = None
    encoding_format: Literal["float", "base64"] | None = None
    user: str | None = None
    prompt_cache_key: CacheKey | None = None
    cache_salt: Salt | None = None
    # Known fields that would affect the answer, but are not supported.
    truncate_prompt_tokens: Raw = field(default_factory=Raw)
    messages: Raw = field(default_factory=Raw)


class RerankDocument(Struct, frozen=True):
    """A document, of which only the text is read."""

    text: str


class RerankRequest(Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/rerank`, in the forms of Jina's and Cohere's clients."""

    model: str | None = None
    query: Annotated[str, Meta(min_length=1)]
    documents: Annotated[list[str | RerankDocument], Meta(min_length=1)]
    top_n: Count | None = None
    return_documents: bool | None = None
    instruction: str | None = None  # an extension: what makes a document relevant
    cache_salt: Salt | None = None
    # Known fields that would affect the answer, but are not supported.
    max_tokens_per_doc: Raw = field(default_factory=Raw)
    max_chunks_per_doc: Raw = field(default_factory=Raw)
    rank_fields: Raw = field(default_factory=Raw)
    truncate_prompt_tokens: Raw = field(default_factory=Raw)
