"""Answers that describe the model and its tokenizer, as Structs."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType


class Model(Struct, frozen=True, kw_only=True):
    """A model that requests can name. `max_model_len` is None while no engine is connected.

    The last fields are for Anthropic's clients, which list models at the same path.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    max_model_len: int | None
    type: Literal["model"] = "model"
    display_name: str
    created_at: str
    max_input_tokens: int | None
    lifecycle: Literal["active"] = "active"
    parent: str | UnsetType = UNSET  # the model that a LoRA adapter changes


class ModelList(Struct, frozen=True, kw_only=True):
    """The list of served models. Its last three fields are for Anthropic's clients."""

    object: Literal["list"] = "list"
    data: list[Model]
    has_more: bool = False
    first_id: str
    last_id: str


class TokenizerInfo(Struct, frozen=True, kw_only=True):
    """The tokenizer's tokenizer_config.json, with the chat template that is in use.

    The answer has all fields of the file except paths.
    """

    tokenizer_class: str
    bos_token: str | UnsetType | None = UNSET
    eos_token: str | UnsetType | None = UNSET
    pad_token: str | UnsetType | None = UNSET
    chat_template: str | UnsetType = UNSET
    model_max_length: int | UnsetType = UNSET


class Tokenized(Struct, frozen=True, kw_only=True):
    """The token ids of a prompt, and their number."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(Struct, frozen=True):
    """The text that token ids decode to."""

    prompt: str
