"""The answers of the routes that generate nothing, as Structs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from gateway.dialects.openai.replies import PromptDetails


class Embedding(Struct, frozen=True, kw_only=True):
    """The embedding of one input: numbers, or base64 of float32 in little endian."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class PromptUsage(Struct, frozen=True, kw_only=True):
    """Token counts of a request that generates nothing; `prompt_tokens` includes cached tokens."""

    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class Embeddings(Struct, frozen=True, kw_only=True):
    """The embeddings of all inputs, in their order."""

    object: Literal["list"] = "list"
    data: Sequence[Embedding]
    model: str
    usage: PromptUsage


class RankedDocument(Struct, frozen=True):
    """The text of a document, if it was asked for."""

    text: str


class Ranked(Struct, frozen=True, kw_only=True):
    """A document's place in the request, and how relevant it is, from 0 to 1."""

    index: int
    relevance_score: float
    document: RankedDocument | UnsetType = UNSET


class RerankMeta(Struct, frozen=True):
    """The counts under Cohere's names: `input_tokens`, `output_tokens`."""

    tokens: dict[str, int]


class Reranked(Struct, frozen=True, kw_only=True):
    """The documents, the most relevant first."""

    id: str
    object: Literal["list"] = "list"
    model: str
    results: list[Ranked]
    usage: PromptUsage
    meta: RerankMeta
