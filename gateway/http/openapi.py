"""The description of the routes in `/openapi.json`: the Structs that are really parsed and sent.

FastAPI describes pydantic models; here the bodies are msgspec Structs. A route declares what it
takes and returns with `openapi_extra=described(...)`; `complete` adds the schemas of all of them,
and the shape that errors have in the dialect of each path.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import UnionType
from typing import Any, get_args

import msgspec

from gateway.http.error_dialect import Dialects

JSON = "application/json"

_REF = "#/components/schemas/{name}"
_METHODS = {"get", "post", "put", "patch", "delete"}
_FRAMEWORKS_OWN = ("HTTPValidationError", "ValidationError")  # errors have another shape here


class Described(dict[str, Any]):
    """What to add to the description of a route, and the Structs that it refers to."""

    def __init__(self, said: dict[str, Any], structs: Iterable[type]) -> None:
        super().__init__(said)
        self.structs = tuple(structs)


def described(
    reply: type | None,
    request: type | None = None,
    *,
    statuses: Sequence[int] = (200,),
    event: type | UnionType | None = None,
    texts: Sequence[str] = (),
) -> Described:
    """A route that answers a body like `request` with a `reply`, both JSON, under `statuses`.

    It may also answer with server-sent events, each an `event`, which may be a union, or with text
    of the types `texts`.
    What a Struct names as its BEYOND_TYPES is added to its schema.
    """
    kinds = {JSON: reply, "text/event-stream": event}
    content = {media: _schema(kind) for media, kind in kinds.items() if kind is not None}
    answer = {"description": "The answer", "content": {**content, **{text: {} for text in texts}}}
    said: dict[str, Any] = {"responses": {str(status): answer for status in statuses}}
    if request is not None:
        # A request that leaves everything to its defaults may leave out the body as well.
        fields = msgspec.structs.fields(request)
        said["requestBody"] = {
            "required": any(field.required for field in fields) or bool(_beyond_types(request)),
            "content": {JSON: _schema(request)},
        }
    structs = [one for kind in (reply, request, event) if kind is not None for one in _kinds(kind)]
    return Described(said, structs)


def complete(description: dict[str, Any], routes: Iterable[Any], dialects: Dialects) -> None:
    """Add the schemas of `routes`, and of the errors of their dialects, to their description."""
    errors = {path: dialects.of(path).error_schema for path in description["paths"]}
    structs = {*errors.values(), *_structs_of(routes)}
    ordered = sorted(structs, key=lambda struct: struct.__name__)
    _, schemas = msgspec.json.schema_components(ordered, ref_template=_REF)
    for schema in schemas.values():
        _name_token_ids(schema)
    for struct in ordered:
        schemas[struct.__name__].update(_beyond_types(struct))
    components = description.setdefault("components", {}).setdefault("schemas", {})
    for name in _FRAMEWORKS_OWN:
        components.pop(name, None)
    components.update(schemas)
    for path, operation in _operations(description):
        operation["responses"].pop("422", None)
        operation["responses"]["default"] = {
            "description": "An error",
            "content": {JSON: _schema(errors[path])},
        }


def _schema(kind: type | UnionType) -> dict[str, Any]:
    references = [{"$ref": _REF.format(name=struct.__name__)} for struct in _kinds(kind)]
    return {"schema": references[0] if len(references) == 1 else {"anyOf": references}}


def _kinds(kind: type | UnionType) -> tuple[type, ...]:
    return get_args(kind) or (kind,)


def flattened(routes: Iterable[Any]) -> Iterator[Any]:
    """These routes, and in the place of each router that was included its own."""
    for route in routes:
        included = getattr(route, "original_router", None)
        if included is None:
            yield route
        else:
            yield from flattened(included.routes)


def _structs_of(routes: Iterable[Any]) -> Iterator[type]:
    for route in flattened(routes):
        extra = getattr(route, "openapi_extra", None)
        if isinstance(extra, Described):
            yield from extra.structs


def _operations(description: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in description["paths"].items():
        yield from ((path, methods[method]) for method in methods if method in _METHODS)


def _beyond_types(struct: type) -> dict[str, Any]:
    return getattr(struct, "BEYOND_TYPES", {})


def _name_token_ids(schema: dict[str, Any]) -> None:
    """Names in JSON are strings: add that those of `logit_bias` are numbers."""
    bias = schema.get("properties", {}).get("logit_bias")
    for kind in (bias or {}).get("anyOf", []):
        if kind.get("type") == "object":
            kind["propertyNames"] = {"pattern": "^(0|[1-9][0-9]{0,9})$"}
