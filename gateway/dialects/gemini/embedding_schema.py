"""Requests and answers of Gemini's embeddings as Structs.

Unknown fields are ignored. `taskType` and `title` are also ignored, because prompts do not contain
them.
"""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Raw, Struct, field

from gateway.dialects.gemini.parts import GeminiContent
from gateway.dialects.gemini.schema import Count


class EmbedContentRequest(Struct, frozen=True, kw_only=True, rename="camel"):
    """The body of `:embedContent`, and an item of `:batchEmbedContents`."""

    content: GeminiContent
    model: str | None = None  # must be the path's model, if given
    output_dimensionality: Count | None = None
    cache_salt: Annotated[str, Meta(min_length=1)] | None = None
    ratoon: Raw = field(default_factory=Raw)  # not supported


class BatchEmbedContentsRequest(Struct, frozen=True, kw_only=True):
    """The body of `:batchEmbedContents`."""

    requests: Annotated[list[EmbedContentRequest], Meta(min_length=1)]


class ContentEmbedding(Struct, frozen=True):
    """The embedding of a content."""

    values: list[float]


class EmbedContentResponse(Struct, frozen=True):
    """The embedding of the request's content."""

    embedding: ContentEmbedding


class BatchEmbedContentsResponse(Struct, frozen=True):
    """The embeddings of all requests, in their order."""

    embeddings: Sequence[ContentEmbedding]
