"""Gemini's answers as Structs, both whole answers and a stream's chunks."""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from gateway.dialects.explaining import DraftUsage, RatoonReply
from gateway.dialects.gemini.answers.logprobs import LogprobsResult

FinishReason = Literal["STOP", "MAX_TOKENS"]


class SaidFunctionCall(Struct, frozen=True, kw_only=True):
    """A call of a function."""

    id: str
    name: str
    args: dict[str, Any]


class AnswerPart(Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of the answer: a text, which may be a thought, or a call."""

    text: str | UnsetType = UNSET
    thought: bool | UnsetType = UNSET
    function_call: SaidFunctionCall | UnsetType = UNSET


class AnswerContent(Struct, frozen=True, kw_only=True):
    """The content of a candidate, whole or in a chunk."""

    parts: list[AnswerPart]
    role: Literal["model"] = "model"


class AnswerCandidate(Struct, frozen=True, kw_only=True, rename="camel"):
    """One answer. `finish_reason` is set once the answer has ended."""

    content: AnswerContent
    finish_reason: FinishReason | UnsetType = UNSET
    index: int
    avg_logprobs: float | UnsetType = UNSET
    logprobs_result: LogprobsResult | UnsetType = UNSET


class ModalityTokenCount(Struct, frozen=True, kw_only=True, rename="camel"):
    """The number of tokens of one modality. All tokens here are text."""

    modality: Literal["TEXT"] = "TEXT"
    token_count: int


class GeminiUsage(Struct, frozen=True, kw_only=True, rename="camel"):
    """Token counts. Prompt tokens include cached tokens. Candidates' tokens exclude thoughts.

    The chunks before the last have only the prompt's counts.
    """

    prompt_token_count: int
    cached_content_token_count: int
    candidates_token_count: int | UnsetType = UNSET
    thoughts_token_count: int | UnsetType = UNSET
    total_token_count: int
    prompt_tokens_details: list[ModalityTokenCount]
    ratoon: DraftUsage | UnsetType = UNSET


class GenerateContentResponse(Struct, frozen=True, kw_only=True, rename="camel"):
    """A whole answer, or a chunk of a stream. The last chunk has the whole usage."""

    candidates: list[AnswerCandidate]
    usage_metadata: GeminiUsage | UnsetType = UNSET
    model_version: str
    response_id: str
    ratoon: RatoonReply | UnsetType = UNSET


class CountTokensResponse(Struct, frozen=True, kw_only=True, rename="camel"):
    """The number of tokens of a prompt."""

    total_tokens: int
    prompt_tokens_details: list[ModalityTokenCount]
