"""OpenAI's requests as Structs: field names, types and ranges.

`msgspec` checks types and ranges while it parses. `sampling.py` and `admission.py` check values
that depend on the model or on the deployment's limits. Some values are always refused, although
the types allow them. The JSON schemas describe these values in a field's `extra_json_schema` or in
a Struct's `BEYOND_TYPES`. Unknown fields are ignored. Plain `Raw` fields are known but not
supported. `None` means the same as an absent field, as in OpenAI's own clients.
"""

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta, Raw, Struct, field

from engine.link.messages import Loads
from gateway.dialects.explaining import RatoonOptions
from gateway.dialects.openai_cache import CacheKey, PromptCacheOptions, Retention
from gateway.dialects.openai_shape import Penalty, ServiceTier
from gateway.prompts.chats.chat_json import NONE, NULL, PlainText, SaidMessage
from gateway.prompts.chats.chat_tools import Tools
from gateway.prompts.chats.template_variables import Scalar

TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
# maximum number of tokens of an answer; at 0 only the prompt is computed
Length = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
MAX_VARIABLES = 32
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Variable = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$(?!\n)")]
Variables = Annotated[dict[Variable, Scalar], Meta(max_length=MAX_VARIABLES)]
# Fields kept as unparsed JSON. The engine parses a JSON schema, and `answer_form.py` a tool choice.
SchemaText = Annotated[
    Raw, Meta(extra_json_schema={"type": ["object", "boolean", "string", "null"]})
]
ObjectText = Annotated[Raw, Meta(extra_json_schema={"type": ["object", "null"]})]
ListText = Annotated[Raw, Meta(extra_json_schema={"type": ["array", "null"]})]
NamedText = SchemaText
FORMATS = ["text", "json_object", "json_schema", "json", "regex", "grammar", "structural_tag"]
_FUNCTION_CHOICE = {
    "type": "object",
    "properties": {
        "type": {"enum": ["function"]},
        "function": {
            "type": "object",
            "properties": {"name": {"type": "string"}},
            "required": ["name"],
        },
    },
    "required": ["function"],
}
_ALLOWED_TOOLS = {
    "type": "object",
    "properties": {
        "type": {"enum": ["allowed_tools"]},
        "allowed_tools": {
            "type": "object",
            "properties": {
                "mode": {"enum": ["auto", "required"]},
                "tools": {"type": "array", "items": _FUNCTION_CHOICE},
            },
            "required": ["mode", "tools"],
        },
    },
    "required": ["type", "allowed_tools"],
}
_WORDS = {"enum": ["none", "auto", "required", "any"]}
ToolChoiceText = Annotated[
    Raw,
    Meta(extra_json_schema={"anyOf": [_WORDS, _FUNCTION_CHOICE, _ALLOWED_TOOLS, {"type": "null"}]}),
]
TextOnly = Annotated[str, Meta(extra_json_schema={"enum": ["text"]})]


class PredictedContent(Struct, frozen=True):
    """A text that the answer is expected to repeat. Tokens are drafted from it."""

    type: Literal["content"]
    content: str | Annotated[list[PlainText], Meta(min_length=1)]

    @property
    def text(self) -> str:
        """The whole text."""
        content = self.content
        return content if isinstance(content, str) else "".join(part.text for part in content)


class StreamOptions(Struct, frozen=True):
    """Options of a streamed answer."""

    include_usage: bool | None = None


class NamedSchema(Struct, frozen=True, kw_only=True):
    """A JSON schema for the answer. The answer follows the schema even if `strict` is false."""

    name: str | None = None
    description: str | None = None
    schema: SchemaText = field(default_factory=Raw)
    strict: bool | None = None


class ResponseFormat(Struct, frozen=True):
    """The form that the answer must have. The type `text` allows any text.

    Other servers' clients send the schema in `schema` or `value`, and the types `json`, `regex` and
    `grammar`. The other fields belong to structural tags.
    """

    type: Annotated[str, Meta(extra_json_schema={"enum": FORMATS})]
    json_schema: NamedText = field(default_factory=Raw)  # a `NamedSchema`, or the schema itself
    schema: SchemaText = field(default_factory=Raw)
    value: SchemaText = field(default_factory=Raw)
    grammar: str | None = None  # GBNF or Lark
    pattern: str | None = None
    format: ObjectText = field(default_factory=Raw)
    structures: ListText = field(default_factory=Raw)
    triggers: ListText = field(default_factory=Raw)


class StructuredOutputs(Struct, frozen=True, kw_only=True):
    """The grammar that the answer must follow, in exactly one of vLLM's fields."""

    json: SchemaText = field(default_factory=Raw)
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None  # Lark, or GBNF (also called EBNF) with the rule `root`
    structural_tag: SchemaText = field(default_factory=Raw)
    # Known fields that would affect the answer, but are not supported.
    whitespace_pattern: Raw = field(default_factory=Raw)
    disable_any_whitespace: Raw = field(default_factory=Raw)
    disable_additional_properties: Raw = field(default_factory=Raw)


class CacheOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """An extension: how the request uses the prefix cache, if the operator lets requests choose."""

    # whether cached blocks in lower tiers (host memory, disk) may be loaded
    load: Loads | None = None


class Generating(Struct, frozen=True, kw_only=True):
    """The common fields of chat and text completions."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Count | None = None
    max_tokens: Length | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[int, Bias] | None = None
    seed: Seed | None = None
    random_seed: Seed | None = None  # Mistral's name of the seed
    stop: str | list[str] | None = None
    response_format: ResponseFormat | None = None
    user: str | None = None
    prompt_cache_key: CacheKey | None = None
    prompt_cache_retention: Retention | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    # a "flex" request may wait longer; other tiers change nothing
    service_tier: ServiceTier | None = None
    cache_salt: Annotated[str, Meta(min_length=1)] | None = None
    cache: CacheOptions | None = None
    ratoon: RatoonOptions | None = None
    # an extension: if false, no drafts are verified; the answer is the same
    drafts: bool | None = None
    # vLLM's extensions of OpenAI's fields.
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    # A smaller penalty would make the divided logits overflow.
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=10)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[TokenId] | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: SchemaText = field(default_factory=Raw)
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    grammar: str | None = None
    json_schema: SchemaText = field(default_factory=Raw)
    # vLLM's field for evaluations and training: the number of alternatives for each prompt token.
    prompt_logprobs: Annotated[int, Meta(ge=0)] | None = None
    # vLLM's field for training: whether the answer has the token ids of prompt and answer
    return_token_ids: bool | None = None
    # Known fields that would affect the answer, but are not supported.
    allowed_token_ids: Raw = field(default_factory=Raw)
    bad_words: Raw = field(default_factory=Raw)
    truncate_prompt_tokens: Raw = field(default_factory=Raw)
    use_beam_search: Raw = field(default_factory=Raw)
    guided_whitespace_pattern: Raw = field(default_factory=Raw)
    logits_processors: Raw = field(default_factory=Raw)


Messages = Annotated[list[SaidMessage], Meta(min_length=1)]


class ChatRequest(Generating, frozen=True, kw_only=True):
    """The body of `POST /v1/chat/completions`."""

    messages: Messages
    max_completion_tokens: Length | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0)] | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    prediction: PredictedContent | None = None
    modalities: list[TextOnly] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Variables | None = None
    tools: Tools = field(default_factory=Raw)
    tool_choice: ToolChoiceText = field(default_factory=Raw)
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    functions: Raw = field(default_factory=Raw)
    function_call: Raw = field(default_factory=Raw)
    audio: Raw = field(default_factory=Raw)
    web_search_options: Raw = field(default_factory=Raw)
    moderation: Raw = field(default_factory=Raw)
    best_of: Count | None = None
    echo: Raw = field(default_factory=Raw)
    chat_template: Raw = field(default_factory=Raw)
    documents: Raw = field(default_factory=Raw)


_Text = Annotated[str, Meta(min_length=1)]
_Ids = Annotated[list[TokenId], Meta(min_length=1)]
_PROMPTS: tuple[Any, ...] = (
    _Text,
    _Ids,
    Annotated[list[_Text], Meta(min_length=1)],
    Annotated[list[_Ids], Meta(min_length=1)],
)
PROMPT_SCHEMA = {"anyOf": [msgspec.json.schema(prompt) for prompt in _PROMPTS]}


class CompletionRequest(Generating, frozen=True, kw_only=True):
    """The body of `POST /v1/completions`."""

    prompt: Annotated[Raw, Meta(extra_json_schema=PROMPT_SCHEMA)]  # parsed by `prompts.py`
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0)] | None = None
    best_of: Count | None = None
    suffix: Raw = field(default_factory=Raw)


class TokenizeRequest(Struct, frozen=True, kw_only=True):
    """The body of `POST /tokenize`: a text, or a chat."""

    BEYOND_TYPES: ClassVar[dict[str, Any]] = {
        "oneOf": [
            {
                "required": ["prompt"],
                "properties": {"prompt": {"type": "string"}, "messages": NULL, "tools": NONE},
            },
            {"required": ["messages"], "properties": {"messages": {"not": NULL}, "prompt": NULL}},
        ]
    }

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Variables | None = None
    reasoning_effort: Effort | None = None
    tools: Tools = field(default_factory=Raw)
    cache_salt: Annotated[str, Meta(min_length=1)] | None = None
    ratoon: Raw = field(default_factory=Raw)  # not supported


_TOKENS_SCHEMA = msgspec.json.schema(list[TokenId])


class DetokenizeRequest(Struct, frozen=True, kw_only=True):
    """The body of `POST /detokenize`."""

    model: str | None = None
    tokens: Annotated[Raw, Meta(extra_json_schema=_TOKENS_SCHEMA)]  # ids are counted before parsing
