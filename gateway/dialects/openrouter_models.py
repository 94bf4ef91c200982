"""The served model and a caller's adapters, as OpenRouter lists models.

OpenRouter's clients ask for the list below `/api/v1`. OpenAI's route answers these requests.
"""

from fastapi import Request
from msgspec import Struct

from gateway.caller import Caller
from gateway.dialects.dialect import ModelCard
from gateway.http.error_dialect import dialect_of

PREFIX = "/api/v1"
PROVIDER = "ratoon"  # the server that answers, which OpenRouter's answers name
_PARAMETERS = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "stop", "max_tokens"),
    *("max_completion_tokens", "frequency_penalty", "presence_penalty", "repetition_penalty"),
    *("logit_bias", "logprobs", "top_logprobs", "prediction", "response_format"),
    *("structured_outputs", "tools", "tool_choice", "parallel_tool_calls", "reasoning_effort"),
)


class RoutedArchitecture(Struct, frozen=True):
    """The kinds of content that a model reads and writes."""

    modality: str = "text->text"
    input_modalities: tuple[str, ...] = ("text",)
    output_modalities: tuple[str, ...] = ("text",)


class RoutedPrices(Struct, frozen=True):
    """The prices of a token, which this server does not know."""

    prompt: str = "0"
    completion: str = "0"


class RoutedProvider(Struct, frozen=True):
    """The limits of the only provider, which is this server."""

    context_length: int | None
    is_moderated: bool = False


class RoutedLinks(Struct, frozen=True):
    """The address of the list's entry for one model."""

    details: str


class RoutedModel(Struct, frozen=True, kw_only=True):
    """A model that requests can name. Lengths are None while no engine is connected."""

    id: str
    canonical_slug: str
    name: str
    created: int
    context_length: int | None
    architecture: RoutedArchitecture = RoutedArchitecture()
    pricing: RoutedPrices = RoutedPrices()
    top_provider: RoutedProvider
    links: RoutedLinks
    supported_parameters: tuple[str, ...] = _PARAMETERS
    supported_voices: None = None
    per_request_limits: None = None
    default_parameters: None = None


class RoutedPages(Struct, frozen=True):
    """The address of the next page: none, since one page has all models."""

    next: None = None


class RoutedModelList(Struct, frozen=True, kw_only=True):
    """All models that the key may use, on one page."""

    data: list[RoutedModel]
    total_count: int
    links: RoutedPages = RoutedPages()


def is_openrouters(request: Request) -> bool:
    """Return whether a request comes from a client of OpenRouter's API."""
    return PREFIX in dialect_of(request.scope).prefixes


def routed_models(card: ModelCard, caller: Caller) -> RoutedModelList:
    """List the models that a caller may use, with the served model first."""
    adapters = ((one.name, int(one.created_at)) for one in caller.adapters)
    models = [_model(card, *named) for named in ((card.name, card.created), *adapters)]
    return RoutedModelList(data=models, total_count=len(models))


def _model(card: ModelCard, name: str, created: int) -> RoutedModel:
    longest = card.max_model_len
    return RoutedModel(
        id=name,
        canonical_slug=name,
        name=name,
        created=created,
        context_length=longest,
        top_provider=RoutedProvider(longest),
        links=RoutedLinks(f"/v1/models/{name}"),
    )
