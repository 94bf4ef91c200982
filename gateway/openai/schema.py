"""OpenAI's requests as Structs: field names, types and ranges.

`msgspec` checks types and ranges while it parses; what depends on the model or on the
deployment's bounds is checked in `sampling.py` and `admission.py`. Fields that are not here are
ignored. Plain `Raw` fields are known but not supported (`refusals.py`). `None` means the same as
leaving the field out, as in OpenAI's own clients.

Knows: names, types, ranges. Does not know: models, bounds, or what a request leads to.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Raw, Struct, field

from engine.messages import Loads
from gateway.chat_template import Scalar
from gateway.openai.tools import Tools

TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Bias = Annotated[float, Meta(ge=-100, le=100)]


class StreamOptions(Struct, frozen=True):
    """Options of a streamed answer."""

    include_usage: bool | None = None


class ResponseFormat(Struct, frozen=True):
    """The form the answer must have; `text` is any."""

    type: str


class CacheOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """An extension: how to use the prefix cache for this request, if the server allows it."""

    load: Loads | None = None  # of what lies in host memory or on disk


class Generating(Struct, frozen=True, kw_only=True):
    """What chat and text completions have in common."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Count | None = None
    max_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[int, Bias] | None = None
    seed: Seed | None = None
    stop: str | list[str] | None = None
    user: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None  # "flex" may wait longer; the others change nothing
    cache_salt: Annotated[str, Meta(min_length=1)] | None = None
    cache: CacheOptions | None = None
    # What vLLM's clients send beyond OpenAI's names.
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    # With values near 0 the logits would overflow.
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=10)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[TokenId] | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    # Known, with an effect on the answer, but not supported.
    structured_outputs: Raw = field(default_factory=Raw)
    guided_json: Raw = field(default_factory=Raw)
    guided_regex: Raw = field(default_factory=Raw)
    guided_choice: Raw = field(default_factory=Raw)
    guided_grammar: Raw = field(default_factory=Raw)
    prompt_logprobs: Raw = field(default_factory=Raw)
    allowed_token_ids: Raw = field(default_factory=Raw)
    bad_words: Raw = field(default_factory=Raw)
    truncate_prompt_tokens: Raw = field(default_factory=Raw)
    use_beam_search: Raw = field(default_factory=Raw)


class TextPart(Struct, frozen=True, tag_field="type", tag="text"):
    """A piece of a message's text."""

    text: str


class ChatMessage(Struct, frozen=True, kw_only=True):
    """One turn of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: Raw = field(default_factory=Raw)
    function_call: Raw = field(default_factory=Raw)
    audio: Raw = field(default_factory=Raw)


class ChatRequest(Generating, frozen=True, kw_only=True):
    """The body of `POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0)] | None = None
    response_format: ResponseFormat | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    modalities: list[str] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Scalar] | None = None
    tools: Tools = field(default_factory=Raw)  # with a `tool_choice` of "none"
    tool_choice: Raw = field(default_factory=Raw)
    functions: Raw = field(default_factory=Raw)
    function_call: Raw = field(default_factory=Raw)
    audio: Raw = field(default_factory=Raw)
    web_search_options: Raw = field(default_factory=Raw)
    chat_template: Raw = field(default_factory=Raw)
    documents: Raw = field(default_factory=Raw)


class PromptPart(Struct, frozen=True):
    """The prompt of a text completion, for strict parsing."""

    prompt: str | list[str | TokenId | list[TokenId]]


_PROMPT_SCHEMA = msgspec.json.schema(str | list[str | TokenId | list[TokenId]])


class PromptAlone(Struct, frozen=True):
    """The prompt of a body and nothing else of it, as it is spelled."""

    prompt: Raw = field(default_factory=Raw)


class CompletionRequest(Generating, frozen=True, kw_only=True):
    """The body of `POST /v1/completions`."""

    prompt: Annotated[Raw, Meta(extra_json_schema=_PROMPT_SCHEMA)]  # `prompts.py` looks into it
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0)] | None = None
    best_of: Count | None = None
    response_format: ResponseFormat | None = None
    suffix: Raw = field(default_factory=Raw)


class TokenizeRequest(Struct, frozen=True, kw_only=True):
    """The body of `POST /tokenize`: a text, or a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Meta(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Scalar] | None = None
    tools: Tools = field(default_factory=Raw)


class TokensPart(Struct, frozen=True):
    """The ids of `/detokenize`, for strict parsing."""

    tokens: list[TokenId]


_TOKENS_SCHEMA = msgspec.json.schema(list[TokenId])


class TokensAlone(Struct, frozen=True):
    """The tokens of a body and nothing else of it, as they are spelled."""

    tokens: Raw = field(default_factory=Raw)


class DetokenizeRequest(Struct, frozen=True, kw_only=True):
    """The body of `POST /detokenize`."""

    model: str | None = None
    tokens: Annotated[Raw, Meta(extra_json_schema=_TOKENS_SCHEMA)]  # counted before it is parsed
