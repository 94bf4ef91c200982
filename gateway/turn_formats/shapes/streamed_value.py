"""The value of an argument that is written as plain text, and sent as JSON."""

from collections.abc import Set

from gateway.turn_formats.pieces import CallArguments, Piece
from gateway.turn_formats.shapes.strings import inner
from gateway.turn_formats.shapes.values import is_text, typed

_PLAIN = frozenset(("boolean", "integer", "null", "number"))


class StreamedValue:
    """A value of one of `types`. A text is sent as it arrives, any other value when it is whole."""

    def __init__(self, types: Set[str]) -> None:
        self._types = types
        self._is_text = is_text(types)
        self._parts: list[str] = []  # unsent text; for a string, only a newline that may end it

    @property
    def may_hold_tags(self) -> bool:
        """True if the value may be, or contain, a text."""
        return not self._types or not self._types <= _PLAIN

    def begin(self) -> list[Piece]:
        """Return the pieces before the value's text."""
        return [CallArguments('"')] if self._is_text else []

    def add(self, text: str) -> Piece | None:
        """Add text of the value; return the piece that can be sent, if any."""
        self._parts.append(text)
        if not self._is_text:
            return None
        written = "".join(self._parts)
        solid = written.removesuffix("\n")
        self._parts = [written[len(solid) :]]
        return CallArguments(inner(solid)) if solid else None

    def end(self, *, strips: bool = False) -> list[Piece]:
        """End the value and return its last piece. `strips` drops a newline at the value's end."""
        rest = "".join(self._parts)
        rest = rest.removesuffix("\n") if strips else rest
        if self._is_text:
            return [CallArguments(f'{inner(rest)}"')]
        return [CallArguments(typed(rest, self._types))]
