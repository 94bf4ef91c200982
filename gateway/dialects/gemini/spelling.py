"""The spelling of names: Google's API takes both `systemInstruction` and `system_instruction`.

Most clients send camel case, which is parsed directly. In a body with snake case, the known names
are first changed to camel case. Names within arguments, results and schemas are the caller's own
and stay as they are. An empty body is an empty message, as Google's client sends it.

A name that a body has in both spellings is refused as a repeated name (`http/bodies/names.py`).
Otherwise a client's `cache_salt` could override the `cacheSalt` that a proxy has set. Repeated
names are also refused in objects within a body that have a salt, a model or limits (`_Bearing`).
"""

import re
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Raw, Struct, field

from gateway.dialects.gemini import cached_schema, embedding_schema, parts, schema
from gateway.http.bodies.body import Body, check_names
from gateway.http.bodies.names import given_twice

T = TypeVar("T")

_STRUCTS: tuple[type[Struct], ...] = (
    parts.GeminiCall,
    parts.GeminiResult,
    parts.GeminiPart,
    parts.GeminiContent,
    schema.FunctionDeclaration,
    schema.GeminiTool,
    schema.FunctionCalling,
    schema.GeminiToolConfig,
    schema.GeminiThinking,
    schema.GeminiGenerationConfig,
    schema.GenerateContentRequest,
    schema.CountTokensRequest,
    cached_schema.CachedContentRequest,
    embedding_schema.EmbedContentRequest,
)
_FIELDS = [one for struct in _STRUCTS for one in msgspec.structs.fields(struct)]
_CAMEL = {one.name: one.encode_name for one in _FIELDS if one.name != one.encode_name}
_OWN = {
    "args",
    "response",
    "parameters",
    "parametersJsonSchema",
    "responseSchema",
    "responseJsonSchema",
    "ratoon",
}
_CONTENT = {one.encode_name for one in msgspec.structs.fields(schema.GeminiPrefix)}
_EMPTY = b"{}"
_OBJECT = re.compile(rb"\s*\{")
# matches a name in snake case, or an escaped ASCII character that could be part of such a name
_SNAKE = re.compile(rb'"(?:%b)"\s*:|\\u00[4-7]' % "|".join(_CAMEL).encode())


class _Limits(Struct):
    """The limits of an answer, in either spelling."""

    config: Raw = field(default_factory=Raw, name="generationConfig")
    snake_config: Raw = field(default_factory=Raw, name="generation_config")


class _Bearing(_Limits):
    """The objects within a body that hold a salt, a model or limits, in either spelling."""

    whole: Raw = field(default_factory=Raw, name="generateContentRequest")
    snake_whole: Raw = field(default_factory=Raw, name="generate_content_request")
    requests: Raw = field(default_factory=Raw)


_LIMITS = msgspec.json.Decoder(_Limits)
_BEARING = msgspec.json.Decoder(_Bearing)
_LIST = msgspec.json.Decoder(list[Raw])


class EitherDecoder(Generic[T]):
    """A decoder of bodies in either spelling."""

    def __init__(self, kind: type[T]) -> None:
        self._decoder = msgspec.json.Decoder(kind)

    def decode(self, spelled: Body, /) -> T:
        """Decode a body; raise msgspec's DecodeError or ValidationError, or BadRequest."""
        value = self._decoder.decode(_in_camel_case(spelled))
        _check_within(spelled)
        return value


class CreationDecoder:
    """A decoder of bodies that create a cached content. It also returns the content as JSON."""

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(cached_schema.CachedContentRequest)
        self._members = msgspec.json.Decoder(dict[str, Raw])

    def decode(self, spelled: Body, /) -> cached_schema.Creation:
        """Decode a body; raise msgspec's DecodeError or ValidationError, or BadRequest."""
        spelled = _in_camel_case(spelled)
        wire, members = self._decoder.decode(spelled), self._members.decode(spelled)
        content = {name: one for name, one in members.items() if name in _CONTENT}
        return cached_schema.Creation(wire, Raw(msgspec.json.encode(content)))


def _check_within(spelled: Body) -> None:
    """Raise BadRequest if an object of `_Bearing` within a valid body has a name twice.

    A request within a request has limits, but no further request: each level would be read again.
    """
    if not _OBJECT.match(spelled):
        return
    found = _BEARING.decode(spelled)
    requests = memoryview(found.requests)
    batch = _LIST.decode(requests) if bytes(requests[:1]) == b"[" else []
    _check_limits(found)
    for one in batch:
        check_names(bytes(one))
    for whole in (found.whole, found.snake_whole):
        if bytes(memoryview(whole)[:1]) == b"{":
            check_names(bytes(whole))
            _check_limits(_LIMITS.decode(whole))


def _check_limits(found: _Limits) -> None:
    for one in (found.config, found.snake_config):
        check_names(bytes(one))


def _in_camel_case(spelled: Body) -> Body:
    if not spelled:
        return _EMPTY
    if _SNAKE.search(spelled) is None:
        return spelled
    return msgspec.json.encode(_renamed(msgspec.json.decode(spelled)))


def _renamed(value: Any) -> Any:
    if isinstance(value, list):
        return [_renamed(one) for one in value]
    if not isinstance(value, dict):
        return value
    made = dict(_fields(value.items()))
    if len(made) < len(value):
        raise given_twice(next(_CAMEL[name] for name in value if _CAMEL.get(name) in value))
    return made


def _fields(given: Iterable[tuple[str, Any]]) -> Iterable[tuple[str, Any]]:
    for name, value in given:
        name = _CAMEL.get(name, name)
        yield name, value if name in _OWN else _renamed(value)
