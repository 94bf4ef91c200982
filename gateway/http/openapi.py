"""The description of the routes in `/openapi.json`, made of the types that are parsed and sent.

FastAPI describes only the pydantic models that are parameters of a route. Here no body is a
parameter, since each body is read within a limit. Tenants' bodies and all answers are msgspec
Structs. The operator's bodies are pydantic models. A route declares the types of its body and its
answer with `openapi_extra=described(...)`. `complete` adds the schemas of these types. `complete`
also adds the shape of errors in the dialect of each path, and the key that a path takes.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from types import UnionType
from typing import Any, get_args

import msgspec
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from gateway.http.error_dialect import Dialects
from gateway.http.struct_field import StructField

JSON = "application/json"

_REF = "#/components/schemas/{name}"
_METHODS = {"get", "post", "put", "patch", "delete"}
# FastAPI's schemas of errors, to be removed, since errors here have another shape
_FRAMEWORKS_OWN = ("HTTPValidationError", "ValidationError")


class Described(dict[str, Any]):
    """The OpenAPI additions of a route, and the models that they refer to."""

    def __init__(self, said: dict[str, Any], kinds: Iterable[type]) -> None:
        super().__init__(said)
        self.kinds = tuple(kinds)


def described(
    reply: type | None,
    request: type[msgspec.Struct] | type[BaseModel] | None = None,
    *,
    statuses: Sequence[int] = (200,),
    event: type | UnionType | None = None,
    texts: Sequence[str] = (),
) -> Described:
    """Describe a route that takes a body of type `request` and answers with a `reply`, both JSON.

    `request` is a Struct or a pydantic model, and `reply` is a Struct. The route may also answer
    with server-sent events of the type `event`, or with text of the media types `texts`. `event`
    may be a union. The BEYOND_TYPES of a Struct or a model are added to its schema.
    """
    kinds = {JSON: reply, "text/event-stream": event}
    content = {media: _schema(kind) for media, kind in kinds.items() if kind is not None}
    answer = {"description": "The answer", "content": {**content, **{text: {} for text in texts}}}
    said: dict[str, Any] = {"responses": {str(status): answer for status in statuses}}
    if request is not None:
        # The body may be left out if every field of the request has a default.
        said["requestBody"] = {
            "required": _has_required(request) or bool(_beyond_types(request)),
            "content": {JSON: _schema(request)},
        }
    kinds_of = (_kinds(kind) for kind in (reply, request, event) if kind is not None)
    return Described(said, chain.from_iterable(kinds_of))


def complete(description: dict[str, Any], routes: Iterable[Any], dialects: Dialects) -> None:
    """Add the schemas of `routes`, and of the errors of the routes' dialects, to `description`."""
    errors = {path: dialects.of(path).error_schema for path in description["paths"]}
    kinds = sorted({*errors.values(), *_kinds_of(routes)}, key=lambda kind: kind.__name__)
    schemas = _schemas_of(kinds)
    for schema in schemas.values():
        _name_token_ids(schema)
    for kind in kinds:
        schemas[kind.__name__].update(_beyond_types(kind))
    components = description.setdefault("components", {}).setdefault("schemas", {})
    for name in _FRAMEWORKS_OWN:
        components.pop(name, None)
    components.update(schemas)
    for path, operation in _operations(description):
        operation["tags"] = [_taker(operation)]
        operation["responses"].pop("422", None)
        operation["responses"]["default"] = {
            "description": "An error",
            "content": {JSON: _schema(errors[path])},
        }


def _schemas_of(kinds: Iterable[type]) -> dict[str, Any]:
    models = [kind for kind in kinds if issubclass(kind, BaseModel)]
    structs = [kind for kind in kinds if kind not in models]
    within = [one for model in models for one in _structs_in(model)]
    told, schemas = msgspec.json.schema_components(
        [*structs, *(mark.kind for _, _, mark in within)], ref_template=_REF
    )
    _, described_models = models_json_schema(
        [(model, "validation") for model in models], ref_template=_REF.format(name="{model}")
    )
    schemas = {**schemas, **described_models.get("$defs", {})}
    for (model, field, _), schema in zip(within, told[len(structs) :], strict=True):
        schemas[model.__name__]["properties"][field].update(schema)
    return schemas


def _structs_in(model: type[BaseModel]) -> Iterator[tuple[type[BaseModel], str, StructField]]:
    for name, field in model.model_fields.items():
        yield from ((model, name, one) for one in field.metadata if isinstance(one, StructField))


def _has_required(request: type[msgspec.Struct] | type[BaseModel]) -> bool:
    if issubclass(request, BaseModel):
        return any(field.is_required() for field in request.model_fields.values())
    return any(field.required for field in msgspec.structs.fields(request))


def _schema(kind: type | UnionType) -> dict[str, Any]:
    references = [{"$ref": _REF.format(name=one.__name__)} for one in _kinds(kind)]
    return {"schema": references[0] if len(references) == 1 else {"anyOf": references}}


def _kinds(kind: type | UnionType) -> tuple[type, ...]:
    return get_args(kind) or (kind,)


def flattened(routes: Iterable[Any]) -> Iterator[Any]:
    """Yield these routes, with each included router replaced by its routes."""
    for route in routes:
        included = getattr(route, "original_router", None)
        if included is None:
            yield route
        else:
            yield from flattened(included.routes)


def _kinds_of(routes: Iterable[Any]) -> Iterator[type]:
    for route in flattened(routes):
        extra = getattr(route, "openapi_extra", None)
        if isinstance(extra, Described):
            yield from extra.kinds


def _operations(description: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in description["paths"].items():
        yield from ((path, methods[method]) for method in methods if method in _METHODS)


def _taker(operation: dict[str, Any]) -> str:
    """Return the heading in `/docs` for a path, by the kind of key that the path takes."""
    return next((name for one in operation.get("security", ()) for name in one), "everyone")


def _beyond_types(kind: type) -> dict[str, Any]:
    return getattr(kind, "BEYOND_TYPES", {})


def _name_token_ids(schema: dict[str, Any]) -> None:
    bias = schema.get("properties", {}).get("logit_bias")
    for kind in (bias or {}).get("anyOf", []):
        if kind.get("type") == "object":
            kind["propertyNames"] = {"pattern": "^(0|[1-9][0-9]{0,9})$"}
