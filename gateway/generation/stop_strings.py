"""The search for stop strings in a text that arrives in pieces.

Text is held back only if it could be the beginning of a stop string.
"""


class StopScanner:
    """A finder of the first stop string in a text that is fed in pieces.

    The first stop string is the string that is complete after the fewest characters. Of several
    strings that end at the same character, the longest counts. The result therefore does not depend
    on how the text was cut.
    """

    def __init__(self, stops: tuple[str, ...], *, include_stop: bool = False) -> None:
        self._stops = tuple(sorted(stops, key=len, reverse=True))
        self._longest = max(map(len, stops), default=0)
        self._include_stop = include_stop
        self._held = ""
        self.stopped_by: str | None = None

    def feed(self, piece: str) -> str:
        """Return the text that is safe to show after `piece`.

        Once `stopped_by` is set, no more text follows.
        """
        if not self._stops:
            return piece
        text = self._held + piece
        found = self._first_in(text, len(self._held))
        if found is not None:
            end, stop = found
            self.stopped_by = stop
            self._held = ""
            return text[:end] if self._include_stop else text[: end - len(stop)]
        keep = self._held_length(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """Return the text that was held back, after the whole text has been fed."""
        held, self._held = self._held, ""
        return held

    def _first_in(self, text: str, searched: int) -> tuple[int, str] | None:
        """Find (end, stop) of the first match that ends after character `searched`."""
        ends = []
        for stop in self._stops:
            start = text.find(stop, max(0, searched - len(stop) + 1))
            if start >= 0:
                ends.append((start + len(stop), -len(stop), stop))
        if not ends:
            return None
        end, _, stop = min(ends)
        return end, stop

    def _held_length(self, text: str) -> int:
        for length in range(min(len(text), self._longest - 1), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
