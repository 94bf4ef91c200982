"""The description of the routes in `/openapi.json`: the Structs that are really parsed and sent.

FastAPI describes pydantic models; here the bodies are msgspec Structs. A route declares what it
takes and returns with `openapi_extra=described(...)`; `complete` adds the schemas of all of them,
and the one shape that every error has.

Knows: schemas. Does not know: paths.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from gateway.openai.errors import ErrorReply

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
    reply: type, request: type | None = None, *, statuses: Sequence[int] = (200,)
) -> Described:
    """A route that answers a body like `request` with a `reply`, both JSON, under `statuses`."""
    said = _answering({JSON: _schema(reply)}, statuses)
    if request is None:
        return Described(said, [reply])
    # A request that leaves everything to its defaults may leave out the body as well.
    fields = msgspec.structs.fields(request)
    said["requestBody"] = {
        "required": any(field.required for field in fields),
        "content": {JSON: _schema(request)},
    }
    return Described(said, [reply, request])


def described_report(reply: type, *media_types: str) -> Described:
    """A route that answers with a JSON `reply`, or with text of these types if asked to."""
    content = {JSON: _schema(reply), **{media: {} for media in media_types}}
    return Described(_answering(content, (200,)), [reply])


def described_text(*media_types: str) -> Described:
    """A route that answers with text of these types."""
    return Described(_answering({media: {} for media in media_types}, (200,)), [])


def streaming(route: Described, event: type) -> Described:
    """The same route, which may also answer with server-sent events, each an `event`."""
    (answer,) = route["responses"].values()
    answer["content"]["text/event-stream"] = _schema(event)
    return Described(route, [*route.structs, event])


def complete(description: dict[str, Any], routes: Iterable[Any]) -> None:
    """Add the schemas of `routes` to their description; errors are the same everywhere."""
    structs = {ErrorReply, *_structs_of(routes)}
    ordered = sorted(structs, key=lambda struct: struct.__name__)
    _, schemas = msgspec.json.schema_components(ordered, ref_template=_REF)
    for schema in schemas.values():
        _name_token_ids(schema)
    components = description.setdefault("components", {}).setdefault("schemas", {})
    for name in _FRAMEWORKS_OWN:
        components.pop(name, None)
    components.update(schemas)
    for operation in _operations(description):
        operation["responses"].pop("422", None)
        operation["responses"]["default"] = {
            "description": "An error",
            "content": {JSON: _schema(ErrorReply)},
        }


def _answering(content: dict[str, Any], statuses: Sequence[int]) -> dict[str, Any]:
    answer = {"description": "The answer", "content": content}
    return {"responses": {str(status): answer for status in statuses}}


def _schema(struct: type) -> dict[str, Any]:
    return {"schema": {"$ref": _REF.format(name=struct.__name__)}}


def _structs_of(routes: Iterable[Any]) -> Iterator[type]:
    for route in routes:
        included = getattr(route, "original_router", None)
        if included is not None:
            yield from _structs_of(included.routes)
        extra = getattr(route, "openapi_extra", None)
        if isinstance(extra, Described):
            yield from extra.structs


def _operations(description: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for path in description["paths"].values():
        yield from (operation for method, operation in path.items() if method in _METHODS)


def _name_token_ids(schema: dict[str, Any]) -> None:
    """Names in JSON are strings: add that those of `logit_bias` are numbers."""
    bias = schema.get("properties", {}).get("logit_bias")
    for kind in (bias or {}).get("anyOf", []):
        if kind.get("type") == "object":
            kind["propertyNames"] = {"pattern": "^-?[0-9]{1,18}$"}
