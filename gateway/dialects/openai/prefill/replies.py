"""The answers of the routes that generate nothing, as Structs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

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
