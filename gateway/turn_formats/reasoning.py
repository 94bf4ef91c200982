"""The tags that families of models write around their reasoning before an answer.

If the prompt already opens the reasoning, the turn begins within the reasoning. Another parser
reads the text after the reasoning. It is the parser of the tool format or of plain text.
`families/named/harmony.py` reads Harmony's reasoning together with its calls.
"""

import re
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from gateway.turn_formats.grammar import GrammarText
from gateway.turn_formats.json_scanner import JsonScanner
from gateway.turn_formats.pieces import (
    CallArguments,
    CallStarted,
    Piece,
    ReasoningPiece,
    TextPiece,
)
from gateway.turn_formats.reading import SPACE, Markers, Read, TurnReader
from gateway.turn_formats.turn_format import TurnParser

_TOKEN = re.compile(r"<[^>]*>|\[[^\]]*\]")
_MARK = r"(<[^<>\s]{1,40}>|\[[^\[\]\s]{1,40}\])"
_LAST_MARK, _FIRST_MARK = re.compile(rf"{_MARK}\s*\Z"), re.compile(rf"\s*{_MARK}")
_START = re.compile(r"^start:", re.MULTILINE)
_LINES = r"/\n{0,2}/"  # matches the newlines between the reasoning and the answer


class ReasoningFormat(Struct, frozen=True):
    """The tags around reasoning.

    A turn has one block of reasoning at its beginning. If `repeats`, a turn may have further
    blocks, and stray tags are dropped. Gemma 4 writes further blocks and stray tags in and after
    its answers.
    """

    name: str
    opens: str
    closes: str
    repeats: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        """The special tokens that the parser must see in the text."""
        return (*_TOKEN.findall(self.opens), *_TOKEN.findall(self.closes))

    def is_in(self, template: str) -> bool:
        """Return whether a chat template's source has these tags."""
        return self.closes in template

    def is_around(self, thought: str, turn: str) -> bool:
        """Return whether these tags are around `thought` in `turn`."""
        return f"{self.opens}{thought}{self.closes}" in turn

    def is_open(self, prompt: str, prefill: str = "") -> bool:
        """Return whether a rendered prompt, with the answer's `prefill`, ends within reasoning."""
        opened, closed = prefill.rfind(self.opens), prefill.rfind(self.closes)
        if opened != closed:
            return opened > closed
        return prompt.rstrip(SPACE).endswith(self.opens)

    def is_closed(self, prompt: str, prefill: str = "") -> bool:
        """Return whether a rendered prompt, with the answer's `prefill`, has ended the reasoning.

        Templates end a prompt with an empty block, or with its closing tag, to turn thinking off.
        """
        if self.is_open(prompt, prefill):
            return False
        if self.closes in prefill:
            return True
        end = prompt.rstrip(SPACE)
        before = end.removesuffix(self.closes)
        is_tag = _TOKEN.fullmatch(self.closes) is not None  # other texts may end any turn
        return end != before and (is_tag or before.rstrip(SPACE).endswith(self.opens))

    def begins(self, text: str) -> bool:
        """Return whether `text` begins with reasoning."""
        return text.lstrip(SPACE).startswith(self.opens.lstrip(SPACE))

    def opened(self, prompt: str) -> str:
        """Return `prompt` with the reasoning opened at its end, if it is not open yet."""
        return prompt if self.is_open(prompt) else f"{self.unopened(prompt)}{self.opens}\n"

    def unopened(self, prompt: str) -> str:
        """Return `prompt` without reasoning tags at its end."""
        opens, closes = (f"(?:{re.escape(mark)}[{SPACE}]*)?" for mark in (self.opens, self.closes))
        return re.sub(f"{opens}{closes}$", "", prompt)

    def parser(
        self, make: Callable[[], TurnParser], *, is_open: bool, calls: Sequence[str] = ()
    ) -> TurnParser:
        """Make a parser that reads the reasoning, and the rest with a parser from `make`.

        `calls` are the markers that begin calls. A model may forget to close the reasoning before
        its last calls. If the turn ends within the reasoning, calls at the reasoning's end are read
        as calls.
        """
        return _ReasoningReader(self, make, calls, is_open=is_open)

    def before(self, grammar: str, special_tokens: Mapping[str, int], *, is_open: bool) -> str:
        """Write the grammar of reasoning, followed by a turn of `grammar`.

        The reasoning is optional, unless the prompt opened the reasoning (`is_open`).
        """
        head = GrammarText(special_tokens, prefix="reasoning")
        thought = f"{head.up_to(self.closes)} {_LINES}"
        if not is_open:
            thought = f"({head.spelled(self.opens)} {thought})?"
        answer = _START.sub("answer:", grammar, count=1)
        return f"{head.source(f'{thought} answer')}{answer}"


class _ReasoningReader(TurnReader):
    def __init__(
        self,
        marks: ReasoningFormat,
        make: Callable[[], TurnParser],
        calls: Sequence[str],
        *,
        is_open: bool,
    ) -> None:
        super().__init__()
        opens = [marks.opens.lstrip(SPACE)]
        opens += _TOKEN.findall(marks.opens) if marks.repeats else []
        again = opens if marks.repeats else []
        self._opens, self._closes = Markers(*opens), Markers(marks.closes)
        self._ends = Markers(marks.closes, *calls, *again)
        self._again, self._tags = frozenset(again), Markers(marks.closes, *again)
        self._close = marks.closes
        self._make = make
        self._is_open = is_open

    def turn(self) -> Read[None]:
        yield from self.spaces()
        if (yield from self.literal(self._opens)) or self._is_open:
            yield from self._reasoning()
        # the model closes reasoning that was never opened
        elif (yield from self.literal(self._closes)):
            yield from self.spaces()
            self.drop()
        answer = self._make()
        if self._again:
            yield from self._blocks(answer)
        while True:
            self.pieces += answer.feed(self.take_all())
            if not (yield from self.more()):
                self.pieces += answer.end(is_cut=self.is_cut)
                return

    def _blocks(self, answer: TurnParser) -> Read[None]:
        """Read the answer up to the last tag of reasoning, with blocks of reasoning in it.

        A tag within a call's arguments belongs to the arguments.
        """
        call = _Call()

        def said(text: str) -> None:
            self.pieces += call.seen(answer.feed(text))

        while found := (yield from self.until(self._tags, said, strips=False)):
            if call.is_open:
                self.send(said)
                continue
            self.drop()
            if found in self._again:
                yield from self._thought()

    def _thought(self) -> Read[None]:
        yield from self.spaces()
        self.drop()
        while (yield from self.until(self._tags, ReasoningPiece)) in self._again:
            yield from self.spaces()
            self.drop()
        self.drop()

    def _reasoning(self) -> Read[None]:
        yield from self.spaces()
        self.drop()
        doubt = _Doubt(self._make)
        while found := (yield from self.until(self._ends, doubt.add)):
            if found in self._again:
                yield from self.spaces()
                self.drop()
                continue
            if found != self._close:
                doubt.begin()
                self.send(doubt.add)
                continue
            yield from self.spaces()
            follows = yield from self.peek()
            self.drop()
            self.pieces += doubt.thought() if follows else doubt.at_end(is_cut=self.is_cut)
            return
        self.send(doubt.add)
        self.pieces += doubt.at_end(is_cut=self.is_cut)


class _Call:
    """The last call among the pieces of an answer."""

    def __init__(self) -> None:
        self._arguments: JsonScanner | None = None

    @property
    def is_open(self) -> bool:
        """True if the call's arguments are not whole yet."""
        read = self._arguments
        return read is not None and not (read.is_whole or read.is_broken)

    def seen(self, pieces: list[Piece]) -> list[Piece]:
        for piece in pieces:
            if isinstance(piece, CallStarted):
                self._arguments = JsonScanner()
            elif isinstance(piece, CallArguments) and self._arguments is not None:
                self._arguments.feed(piece.text)
        return pieces


class _Doubt:
    """A buffer of reasoning. It holds back the last text while that text may be calls."""

    def __init__(self, make: Callable[[], TurnParser]) -> None:
        self._make = make
        self._answer: TurnParser | None = None
        self._pieces: list[Piece] = []
        self._held: list[str] = []
        self._has_text = False

    def begin(self) -> None:
        """Start to hold text, since calls may begin here. Do nothing if text is held already."""
        self._answer = self._answer or self._make()

    def add(self, text: str) -> Piece | None:
        """Add text; return the reasoning that is certain now, or None."""
        if self._answer is None:
            return ReasoningPiece(text)
        self._held.append(text)
        self._take(self._answer.feed(text))
        if not self._has_text:
            return None
        [thought] = self.thought()
        return thought

    def thought(self) -> list[Piece]:
        held, self._held = "".join(self._held), []
        self._answer, self._pieces, self._has_text = None, [], False
        return [ReasoningPiece(held)] if held else []

    def at_end(self, *, is_cut: bool) -> list[Piece]:
        """Return the held text at the turn's end: as calls if it is only calls, else reasoning."""
        if self._answer is None or is_cut:
            return self.thought()
        self._take(self._answer.end())
        return self.thought() if self._has_text else self._pieces

    def _take(self, pieces: Sequence[Piece]) -> None:
        self._pieces += pieces
        self._has_text = self._has_text or any(isinstance(one, TextPiece) for one in pieces)


def marks_around(thought: str, turn: str) -> ReasoningFormat | None:
    """Find the tags around `thought` in `turn`, a pair like `<x>` and `</x>`, or return None."""
    before, _, after = turn.partition(thought)
    opens, closes = _LAST_MARK.search(before), _FIRST_MARK.match(after)
    if opens is None or closes is None or not _are_pair(opens[1], closes[1]):
        return None
    return ReasoningFormat("shown", opens[1], closes[1])


def _are_pair(opens: str, closes: str) -> bool:
    return opens != closes and opens in (
        closes.replace("/", "", 1),
        closes.replace("END", "START", 1),
        closes.replace("end", "begin", 1),
    )


THINK = ReasoningFormat("think", "<think>", "</think>")
MAGISTRAL = ReasoningFormat("magistral", "[THINK]", "[/THINK]")
GEMMA = ReasoningFormat("gemma", "<|channel>thought", "<channel|>", repeats=True)
COHERE = ReasoningFormat("cohere", "<|START_THINKING|>", "<|END_THINKING|>")
APRIEL = ReasoningFormat("apriel", "Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]")
KIMI_K3 = ReasoningFormat("kimi_k3", "<|open|>think<|sep|>", "<|close|>think<|sep|>")
MUSE = ReasoningFormat("muse", " to=self<|message|>", "<|eom|><|start|>assistant")
SOLAR = ReasoningFormat("solar", "<|think|>", "<|end|><|begin|>assistant")
