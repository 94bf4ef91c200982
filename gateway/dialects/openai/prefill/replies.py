"""The answers of the routes that generate nothing, as Structs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from gateway.dialects.openai.answers.replies import PromptDetails


class Embedding(Struct, frozen=True, kw_only=True):
    """The embedding of one input: numbers, or base64 of float32 in little endian."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class PromptUsage(Struct, frozen=True, kw_only=True):
    """Token counts of a request that generates nothing. `prompt_tokens` includes cached tokens."""

    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class Embeddings(Struct, frozen=True, kw_only=True):
    """The embeddings of all inputs, in their order."""

    id: str
    object: Literal["list"] = "list"
    data: Sequence[Embedding]
    model: str
    usage: PromptUsage


class RankedDocument(Struct, frozen=True):
    """The text of a document, sent only if the request asks for texts."""

    text: str


class Ranked(Struct, frozen=True, kw_only=True):
    """A document's index in the request, and its relevance from 0 to 1."""

    index: int
    relevance_score: float
    document: RankedDocument | UnsetType = UNSET


class RerankMeta(Struct, frozen=True):
    """The counts under Cohere's names: `input_tokens`, `output_tokens`."""

    tokens: dict[str, int]


class Reranked(Struct, frozen=True, kw_only=True):
    """The documents, the most relevant first. Voyage's clients read them in `data`."""

    id: str
    object: Literal["list"] = "list"
    model: str
    results: list[Ranked]
    # sent only if the request has Voyage's `top_k` or `truncation`
    data: list[Ranked] | UnsetType = UNSET
    usage: PromptUsage
    meta: RerankMeta


class PredicateAnswer(Struct, frozen=True, kw_only=True, tag_field="type", tag="predicate"):
    """The probability that a statement is true."""

    name: str | None
    probability: float


class ChoiceProbability(Struct, frozen=True):
    """The probability of one choice. The probabilities of all choices add up to 1."""

    value: str | bool
    probability: float


class ChoiceAnswer(Struct, frozen=True, kw_only=True, tag_field="type", tag="choice"):
    """The likeliest choice. `confidence` is its probability."""

    name: str | None
    choice: str | bool
    confidence: float
    probabilities: list[ChoiceProbability]


class LevelProbability(Struct, frozen=True):
    """The probability of a level. `value` is the level's index, from 0."""

    value: int
    label: str
    probability: float


class ScoreAnswer(Struct, frozen=True, kw_only=True, tag_field="type", tag="score"):
    """The mean of the levels' indices. `confidence` is the likeliest level's probability."""

    name: str | None
    score: float
    confidence: float
    probabilities: list[LevelProbability]


class DecisionInputDetails(Struct, frozen=True):
    """The numbers of tokens read from the cache, and of tokens written to it for breakpoints."""

    cached_tokens: int
    cache_write_tokens: int


class DecisionOutputDetails(Struct, frozen=True):
    """The number of reasoning tokens, which is always 0."""

    reasoning_tokens: int = 0


class DecisionUsage(Struct, frozen=True, kw_only=True):
    """Token counts. `input_tokens` counts the input, with cached tokens, once for each question."""

    input_tokens: int
    input_tokens_details: DecisionInputDetails
    output_tokens: int = 0
    output_tokens_details: DecisionOutputDetails = DecisionOutputDetails()
    total_tokens: int


class Decision(Struct, frozen=True, kw_only=True):
    """The answers, in the order of their questions."""

    answers: list[PredicateAnswer | ChoiceAnswer | ScoreAnswer]
    model: str
    usage: DecisionUsage
