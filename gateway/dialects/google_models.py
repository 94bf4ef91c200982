"""The served model and a caller's adapters, as Gemini's API lists models.

Google's and OpenAI's clients both ask for `/v1/models`. The header with the key tells the clients
apart.
"""

from fastapi import Request
from msgspec import UNSET, Struct, UnsetType

from gateway.caller import Caller
from gateway.dialects.dialect import ModelCard

_METHODS = ("generateContent", "countTokens", "createCachedContent")


class GeminiModel(Struct, frozen=True, kw_only=True, rename="camel"):
    """The served model, or an adapter of it."""

    name: str
    version: str
    display_name: str
    description: str
    input_token_limit: int | UnsetType = UNSET
    output_token_limit: int | UnsetType = UNSET
    supported_generation_methods: tuple[str, ...]


class GeminiModelList(Struct, frozen=True, kw_only=True):
    """All models that the key may use, on one page."""

    models: list[GeminiModel]


def is_googles(request: Request) -> bool:
    """Return whether a request comes from a client of Google's API."""
    return "x-goog-api-key" in request.headers


def models_of(card: ModelCard, caller: Caller) -> list[GeminiModel]:
    """List the models that a caller may use, with the served model first."""
    return [_model(card, name) for name in (card.name, *(one.name for one in caller.adapters))]


def model_named(card: ModelCard, name: str, caller: Caller) -> GeminiModel:
    """Find a model by its name; raise NotFound."""
    return _model(card, card.named(name, caller).name)


def _model(card: ModelCard, name: str) -> GeminiModel:
    longest = UNSET if card.max_model_len is None else card.max_model_len
    return GeminiModel(
        name=f"models/{name}",
        version=name,
        display_name=name,
        description="a model served by Ratoon",
        input_token_limit=longest,
        output_token_limit=longest,
        supported_generation_methods=_METHODS,
    )
