"""The spellings of names: Google's API takes `system_instruction` for `systemInstruction`.

A body without snake case, which is what clients write, is parsed at once. Any other is parsed into
plain values, its known names are changed, and it is parsed again. What stands in arguments, results
and schemas is the caller's own.

Knows: names. Does not know: what a field means.
"""

import re
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from gateway.dialects.gemini import parts, schema
from gateway.http.body import Body

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
_SNAKE = re.compile(rb'"(?:%b)"\s*:' % "|".join(_CAMEL).encode())


class EitherDecoder(Generic[T]):
    """A decoder of bodies in either spelling."""

    def __init__(self, kind: type[T]) -> None:
        self._decoder = msgspec.json.Decoder(kind)

    def decode(self, spelled: Body, /) -> T:
        """Decode a body; raise msgspec's DecodeError, or its ValidationError."""
        if _SNAKE.search(spelled) is None:
            return self._decoder.decode(spelled)
        return self._decoder.decode(msgspec.json.encode(_renamed(msgspec.json.decode(spelled))))


def _renamed(value: Any) -> Any:
    if isinstance(value, list):
        return [_renamed(one) for one in value]
    if not isinstance(value, dict):
        return value
    return dict(_fields(value.items()))


def _fields(given: Iterable[tuple[str, Any]]) -> Iterable[tuple[str, Any]]:
    for name, value in given:
        name = _CAMEL.get(name, name)
        yield name, value if name in _OWN else _renamed(value)
