"""The contents of a conversation as Structs: turns and their parts.

Unknown fields are ignored, and so are signatures of thoughts. `Raw` fields are known but not
supported: a value that would have an effect is refused.
"""

from typing import Annotated, Any, TypeVar

from msgspec import Meta, Raw, Struct, field

T = TypeVar("T")


def listed(given: list[T] | T | None) -> list[T]:
    """Return the values of a field. The API also takes one value in place of a list."""
    if given is None:
        return []
    return given if isinstance(given, list) else [given]


class GeminiCall(Struct, frozen=True, kw_only=True, rename="camel"):
    """A call of a function. Its id may be absent."""

    name: Annotated[str, Meta(min_length=1)]
    args: dict[str, Any] | None = None
    id: str | None = None


class GeminiResult(Struct, frozen=True, kw_only=True, rename="camel"):
    """The result of the call `id`.

    Without `id` it is the result of the first call of this name that has no result yet.
    """

    name: str
    response: dict[str, Any] | None = None
    id: str | None = None
    parts: Raw = field(default_factory=Raw)


class GeminiPart(Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of a turn: a text, a thought, a call or a result."""

    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: GeminiCall | None = None
    function_response: GeminiResult | None = None
    inline_data: Raw = field(default_factory=Raw)
    file_data: Raw = field(default_factory=Raw)
    executable_code: Raw = field(default_factory=Raw)
    code_execution_result: Raw = field(default_factory=Raw)
    tool_call: Raw = field(default_factory=Raw)
    tool_response: Raw = field(default_factory=Raw)


Parts = list[GeminiPart] | GeminiPart


class GeminiContent(Struct, frozen=True, kw_only=True, rename="camel"):
    """A turn. The role is `model` for the assistant, and `user` or absent for the user.

    Results of calls may be in a turn of the older role `function`.
    """

    parts: Parts | None = None
    role: str | None = None
