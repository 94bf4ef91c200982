"""The reading of a model's turn from front to back, as its text arrives in pieces.

A format's parser reads as if the whole text were present. `turn` is a generator that calls the
methods here. The generator waits when it needs more text. The resulting pieces do not depend on
where the text was split.

Text that was read is *held* until it is sent as a piece or dropped. Text that turns out to be no
call is sent as text. Text stays unread only while it may be the beginning of a marker.
"""

import re
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from gateway.turn_formats.json_scanner import JsonScanner
from gateway.turn_formats.pieces import Piece, TextPiece
from gateway.turn_formats.turn_format import ToolSpec

T = TypeVar("T")
Read = Generator[None, None, T]  # a parser that yields when it has to wait for more text
Kind = Callable[[str], Piece | None]  # makes a piece of text; None: nothing to send yet

SPACE = " \t\r\n"


class Markers:
    """A search for several strings at once, which finds the longest string at a place."""

    def __init__(self, *markers: str) -> None:
        self._markers = tuple(sorted(markers, key=len, reverse=True))
        self._firsts = frozenset(marker[0] for marker in markers)
        self._longest = len(self._markers[0])
        self._any = re.compile("|".join(map(re.escape, self._markers)))

    def find(self, text: str, at: int) -> tuple[int, int]:
        """Find (begin, end) of the first marker.

        If no marker is certain, return (b, b). A marker may begin at b, or b is the text's end.
        """
        found = self._any.search(text, at)
        if found is not None and not self._may_grow(text, found.start()):
            return found.span()
        begin = self._begun(text, at) if found is None else found.start()
        return begin, begin

    def _begun(self, text: str, at: int) -> int:
        for begin in range(max(at, len(text) - self._longest + 1), len(text)):
            if text[begin] in self._firsts and self._may_grow(text, begin):
                return begin
        return len(text)

    def _may_grow(self, text: str, begin: int) -> bool:
        rest = text[begin : begin + self._longest]
        return any(len(rest) < len(one) and one.startswith(rest) for one in self._markers)

    def at(self, text: str, at: int) -> str:
        """Return the longest marker at index `at` of `text`, or ""."""
        return next((one for one in self._markers if text.startswith(one, at)), "")

    def may_grow(self, text: str, at: int) -> bool:
        """Return whether more text could complete a marker, or a longer marker, at index `at`."""
        return self._may_grow(text, at)


class TurnReader:
    """The base of all turn parsers. A format overrides `turn`."""

    is_over = False

    def __init__(self, tools: Sequence[ToolSpec] = ()) -> None:
        self.tools = {tool.name: tool for tool in tools}
        self.pieces: list[Piece] = []
        self._text = ""
        self._at = 0
        self._held: list[str] = []
        self._is_over = False
        self.is_cut = False
        self._steps = self.turn()

    def turn(self) -> Read[None]:
        """Read a whole turn. By default all of it is text."""
        while True:
            self._take(len(self._text))
            self.send(TextPiece)
            if not (yield from self.more()):
                return

    def feed(self, text: str) -> list[Piece]:
        self._text, self._at = self._text[self._at :] + text, 0
        return self._go_on()

    def end(self, *, is_cut: bool = False) -> list[Piece]:
        """End the turn; return the last pieces.

        If the turn was cut off, unsent text is dropped, unless it is whitespace.
        """
        self._is_over, self.is_cut = True, is_cut
        if is_cut and self.held().strip(SPACE) + self._text[self._at :].strip(SPACE):
            self._held, self._text, self._at = [], "", 0
        return self._go_on()

    def _go_on(self) -> list[Piece]:
        next(self._steps, None)
        pieces, self.pieces = self.pieces, []
        return pieces

    def send(self, kind: Kind) -> None:
        text = "".join(self._held)
        self._held = []
        piece = kind(text) if text else None
        if piece is not None:
            self.pieces.append(piece)

    def send_unless_space(self) -> None:
        """Send the held text as a text piece, if it is more than whitespace."""
        if "".join(self._held).strip(SPACE):
            self.send(TextPiece)

    def drop(self) -> None:
        """Drop the held text, which was a marker or whitespace around a marker."""
        self._held = []

    def hold(self, text: str) -> None:
        """Put `text` before the held text."""
        self._held.insert(0, text)

    def held(self) -> str:
        """Return the held text, which was read, but neither sent nor dropped."""
        return "".join(self._held)

    def unread(self, marker: str) -> None:
        """Put back `marker`, the last text read, to be read again."""
        self._held.pop()
        self._at -= len(marker)

    def put_back(self, text: str) -> None:
        """Put back `text`, which was read and is no longer held, to be read again."""
        self._text, self._at = text + self._text[self._at :], 0

    def take_all(self) -> str:
        """Take and return the held text and all unread text."""
        self._take(len(self._text))
        text, self._held = "".join(self._held), []
        return text

    def _take(self, end: int) -> None:
        if end > self._at:
            self._held.append(self._text[self._at : end])
            self._at = end

    def more(self) -> Read[bool]:
        """Wait for more text; return False at the turn's end."""
        unread = len(self._text) - self._at
        while len(self._text) - self._at == unread:
            if self._is_over:
                return False
            yield
        return True

    def peek(self) -> Read[str]:
        """Return the next character without reading it, or "" at the turn's end."""
        if self._at == len(self._text) and not (yield from self.more()):
            return ""
        return self._text[self._at]

    def character(self) -> Read[None]:
        """Read one character, if there is one."""
        if (yield from self.peek()):
            self._take(self._at + 1)

    def literal(self, markers: Markers) -> Read[str]:
        """Read the marker at the reading position. Without a marker, return "" and read nothing."""
        while markers.may_grow(self._text, self._at):
            if not (yield from self.more()):
                break
        found = markers.at(self._text, self._at)
        self._take(self._at + len(found))
        return found

    def closing(self, markers: Markers) -> Read[str]:
        """Read a marker as `literal` does.

        At the turn's end, also read the beginning of a marker.
        """
        found = yield from self.literal(markers)
        if not found and self._is_over and markers.may_grow(self._text, self._at):
            self._take(len(self._text))
        return found

    def run(self, chars: re.Pattern[str], limit: int | None = None) -> Read[str]:
        """Read at most `limit` characters that match the pattern `chars`, perhaps none."""
        parts: list[str] = []
        size = 0
        while limit is None or size < limit:
            found = chars.match(self._text, self._at)
            end = self._at if found is None else found.end()
            end = end if limit is None else min(end, self._at + limit - size)
            parts.append(self._text[self._at : end])
            size += end - self._at
            self._take(end)
            if end < len(self._text) or not (yield from self.more()):
                break
        return "".join(parts)

    def spaces(self) -> Read[str]:
        """Read whitespace."""
        return (yield from self.run(_SPACES))

    def until(self, markers: Markers, kind: Kind, *, strips: bool = True) -> Read[str]:
        """Send all text before the first marker. Hold and return the marker, or "" at the end.

        With `strips` the whitespace before the marker or the turn's end is also held. This
        whitespace is dropped or sent later.
        """
        while True:
            begin, end = markers.find(self._text, self._at)
            self._pass_on(begin, kind, strips=strips)
            if end > begin:
                self._take(end)
                return self._held[-1]
            if not (yield from self.more()):
                return (yield from self._last_of(markers, kind, strips=strips))

    def _last_of(self, markers: Markers, kind: Kind, *, strips: bool) -> Read[str]:
        """Continue `until` at the turn's end, where the mere beginning of a marker is text."""
        found = markers.at(self._text, self._at)
        if found:
            self._take(self._at + len(found))
            return found
        if self._at == len(self._text):
            return ""
        self._pass_on(self._at + 1, kind, strips=strips)
        return (yield from self.until(markers, kind, strips=strips))

    def _pass_on(self, end: int, kind: Kind, *, strips: bool) -> None:
        text = self._text[self._at : end]
        solid = len(text.rstrip(SPACE)) if strips else len(text)
        if solid:
            self._take(self._at + solid)
            self.send(kind)
        self._take(end)

    def json_value(self, limit: int) -> Read[str]:
        """Read a JSON value; return "" if it is invalid or longer than `limit` characters.

        Numbers and words are not checked. Only the text after a number shows whether the number is
        whole.
        """
        if (yield from self.peek()) not in _BEGIN_JSON:
            return (yield from self.run(_ATOM, limit))
        scanner, parts, size = JsonScanner(), [], 0
        while size <= limit:
            shown, end = scanner.feed(self._text, self._at)
            parts.append(shown)
            size += end - self._at
            self._take(end)
            if scanner.is_whole:
                return "".join(parts)
            if scanner.is_broken or not (yield from self.more()):
                break
        return ""

    def as_text(self, scanner: JsonScanner) -> Read[None]:
        """Read a value with `scanner`, and send the text of the value as it was written."""
        while True:
            _, end = scanner.feed(self._text, self._at)
            self._take(end)
            self.send(TextPiece)
            if scanner.is_whole or scanner.is_broken or not (yield from self.more()):
                return

    def scan(self, scanner: JsonScanner, kind: Kind | None) -> Read[bool]:
        """Read a value with `scanner`; return True if the value is whole.

        The value is sent in pieces of `kind` while it arrives. Without a kind it is held.
        """
        while True:
            shown, end = scanner.feed(self._text, self._at)
            self._take(end)
            if kind is not None:
                self._held = [shown]
                self.send(kind)
            if scanner.is_whole or scanner.is_broken or not (yield from self.more()):
                return scanner.is_whole


_SPACES = re.compile(f"[{SPACE}]*")
_BEGIN_JSON = ("{", "[", '"', "'")
_ATOM = re.compile(r"[-+.0-9a-zA-Z]*")
