"""The protocol of a dialect: its paths, routes, errors, and error events of streams."""

# `from __future__ import annotations` would break FastAPI: it evaluates the annotations of
# `permit`, which name the local variable `authenticate`.

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, NamedTuple, Protocol

from fastapi import APIRouter, Depends, Request

from engine.link.interface import Engine
from gateway.caller import Caller
from gateway.config import Bounds
from gateway.dialects.stored_records import StoredRecords
from gateway.errors import NotFound
from gateway.http.direct import Guard
from gateway.http.error_dialect import ErrorDialect
from gateway.prompts.sampling_defaults import DIALECT_DEFAULTS, SamplingDefaults
from gateway.requests.answering import Answering
from gateway.requests.permits import Permit, Permits
from gateway.sharing.adapters import TenantAdapters
from gateway.tenant_adapters import TenantAdapter

Authenticate = Callable[[Request], Awaitable[Caller]]
Permitted = Callable[[Caller], AsyncIterator[Permit]]


class NamedModel(NamedTuple):
    """The name of a model or adapter in the answer, and the adapter, if any."""

    name: str
    adapter: TenantAdapter | None


@dataclass(frozen=True, slots=True)
class ModelCard:
    """The served model, and the callers' adapters for it."""

    name: str
    engine: Engine
    created: int  # seconds since the epoch
    defaults: SamplingDefaults = DIALECT_DEFAULTS
    tokenizer_info: bytes = b"{}"  # JSON

    @property
    def max_model_len(self) -> int | None:
        """The context length of the model's engine in tokens, or None without an engine."""
        welcome = self.engine.welcome
        return None if welcome is None else welcome.max_model_len

    @property
    def fingerprint(self) -> str:
        """An id of the served weights, their format and their shape."""
        welcome = self.engine.welcome
        return "" if welcome is None else f"fp_{welcome.fingerprint.hex()[:12]}"

    def named(self, name: str | None, caller: Caller) -> NamedModel:
        """Find the model or the caller's adapter by name (None: the model); raise NotFound."""
        if name is None or name == self.name:
            return NamedModel(self.name, None)
        for adapter in caller.adapters:
            if adapter.name == name:
                return NamedModel(name, adapter)
        raise NotFound(
            "there is no model of that name; see /v1/models", code="model_not_found", param="model"
        )


@dataclass(frozen=True, slots=True)
class RouteParts:
    """The gateway's parts that the routes of a dialect use.

    Each route calls `authenticate` before it reads a body. A route that needs the engine or much
    processor time also takes a permit.
    """

    answering: Answering
    card: ModelCard
    bounds: Bounds
    authenticate: Authenticate
    permits: Permits
    records: StoredRecords
    adapters: TenantAdapters

    def guard(self) -> Guard[Caller, Permit]:
        """Make a guard that authenticates and takes permits, for routes that bypass FastAPI."""
        return Guard(self.authenticate, lambda caller: self.permits.taken(caller))

    def permitted(self) -> Permitted:
        """Make a FastAPI dependency that holds a permit until the answer has been sent."""
        authenticate, permits = self.authenticate, self.permits

        async def permit(caller: Annotated[Caller, Depends(authenticate)]) -> AsyncIterator[Permit]:
            async with permits.taken(caller) as taken:
                yield taken

        return permit


class Dialect(ErrorDialect, Protocol):
    """The interface between a dialect and `gateway/startup/composition.py`."""

    def router(self, parts: RouteParts) -> APIRouter:
        """Return a router of the dialect's routes.

        The routes are below `prefixes`, except for the default dialect.
        """
        ...
