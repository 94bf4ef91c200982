"""The break characters that tell a request's strings apart from a chat template's own text.

A template renders messages and tools into one text. A control token that a user wrote would look
like the template's own. Before rendering, a *break character* is therefore put into every control
token in the request's strings. No string of the request contains this character. The whole control
tokens in the rendered text are then the template's own. The break characters are removed
afterwards. Templates may trim, split and join the strings, so a break character is no space and
stands within the token.

A template may also write the rest of a token around a string. An example is `<` and `>` around a
parameter's name. A string that lacks only the brackets is a *near-token*. Near-tokens are broken up
too if the template allows it.
"""

import json
import re
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from msgspec.structs import asdict

from gateway.errors import BadRequest
from gateway.prompts.chats.messages import Message, Text
from gateway.prompts.tokens.control_tokens import ControlTokens, pattern_of

# maximum number of control tokens in a request's strings, since each is rewritten several times
MOST = 1 << 17
_MOST_NESTED = 8  # maximum number of removed words within each other that are followed
_PRIVATE_USE = range(0x100000, 0x10FFFE)  # code points of Unicode's last private plane
_PLAIN = re.compile("[\U00100000-\U0010fffd]{1,4096}")
# matches private-use characters in ASCII JSON
_ESCAPED = re.compile(r"\\udb[c-f][0-9a-f]\\ud[c-f][0-9a-f]{2}")

# Names that get no break character, because templates look them up. If a model has the control
# token `</function>`, the name `function` is a near-token.
_FIELDS = frozenset({"type", "function", "name", "description", "parameters"})

Given = dict[str, Any]  # a template's inputs from a request: `messages`, `tools`, variables


class ContentMarks:
    """Puts break characters into control tokens and near-tokens. Immutable and thread-safe."""

    def __init__(self, control: ControlTokens, removed: Collection[str] = ()) -> None:
        """Break up `control` tokens for a template that removes the words `removed`."""
        self._any = control.pattern
        self._removed = pattern_of(removed)
        self._no_markup = pattern_of(control.tokens - control.markup)
        self._near = _near(control)

    def mark_for(self, given: Given) -> str:
        """Choose a break character; return "" without control tokens and near-tokens in `given`.

        Raises BadRequest if no character is left, or for more than MOST control tokens.
        """
        strings = [*_said(given["messages"]), *_strings(_rest(given))]
        if not any(map(self._needs_mark, strings)):
            return ""
        found = chain.from_iterable(map(self._any.finditer, strings))
        if next(islice(found, MOST, None), None) is not None:
            raise BadRequest(f"the request contains more than {MOST} control tokens")
        return _free(strings)

    def _needs_mark(self, text: str) -> bool:
        return self._has_token(text) or self._joins(text)

    def _has_token(self, text: str) -> bool:
        return self._any.search(text) is not None or self._near.is_near(text)

    def _joins(self, text: str) -> bool:
        """Return whether removing words from `text` may leave a control token or near-token."""
        whole = text
        for _ in range(_MOST_NESTED):
            shorter = self._removed.sub("", whole)
            if shorter == whole:
                return whole != text and self._has_token(whole)
            whole = shorter
        return True

    def free(self, given: Given) -> str:
        """Choose a character that no string in `given` has; raise BadRequest if none is left."""
        return _free([*_said(given["messages"]), *_strings(_rest(given))])

    def marked(self, given: Given, mark: str, *, near: bool) -> Given:
        """Put `mark` into the control tokens of `given` and, if `near`, into the near-tokens."""
        messages = [self._message(message, mark, near=near) for message in given["messages"]]
        rest = _rest(given).items()
        marked = {name: self._everywhere(value, mark, near=near) for name, value in rest}
        if given.get("tools"):
            marked["tools"] = [self._tool(tool, mark, near=near) for tool in given["tools"]]
        return {"messages": messages, **marked}

    def _tool(self, tool: Given, mark: str, *, near: bool) -> Given:
        """Put break characters into a tool, except for the names and types that every tool has."""

        def fields(of: Given) -> Given:
            return {
                name if name in _FIELDS else again(name): again(value) for name, value in of.items()
            }

        def again(inner: Any) -> Any:
            return self._everywhere(inner, mark, near=near)

        marked = fields(tool)
        if tool.get("type") == "function":
            marked |= {"type": "function", "function": fields(tool["function"])}
        return marked

    def _message(self, message: Message, mark: str, *, near: bool) -> Message:
        """Put break characters into each part of a message, but not into the message's role."""
        parts = []
        for part in message.parts:
            markup = message.role == "assistant" and isinstance(part, Text)
            values = asdict(part).values()
            marked = (self._everywhere(one, mark, near=near, markup=markup) for one in values)
            parts.append(type(part)(*marked))
        name = self._everywhere(message.name, mark, near=near)
        return Message(message.role, tuple(parts), name)

    def _everywhere(self, value: Any, mark: str, *, near: bool, markup: bool = False) -> Any:
        def again(inner: Any) -> Any:
            return self._everywhere(inner, mark, near=near)

        if isinstance(value, str):
            return self._string(value, mark, near=near, markup=markup)
        if isinstance(value, Mapping):
            return {again(name): again(inner) for name, inner in value.items()}
        return [again(inner) for inner in value] if isinstance(value, list | tuple) else value

    def _string(self, text: str, mark: str, *, near: bool, markup: bool) -> str:
        pattern = self._no_markup if markup else self._any
        while pattern.search(text):  # repeat, since tokens may overlap
            text = pattern.sub(lambda found: found[0][0] + mark + found[0][1:], text)
        if self._joins(text):
            text = self._apart(text, mark)
        return self._near.marked(text, mark) if near else text

    def _apart(self, text: str, mark: str) -> str:
        """Put `mark` between the words to be removed and the text around them.

        Spaces stay beside the words, so that a template trims them as it does without marks.
        """
        pieces, words = self._removed.split(text), self._removed.findall(text)
        last = len(words)
        for number, piece in enumerate(pieces):
            begin, end = len(piece) - len(piece.lstrip()), len(piece.rstrip())
            if begin < end:
                left, right = mark if number else "", mark if number < last else ""
                pieces[number] = piece[:begin] + left + piece[begin:end] + right + piece[end:]
        return "".join(chain.from_iterable(zip(pieces, [*words, ""], strict=True)))


@dataclass(frozen=True, slots=True)
class _Near:
    """The control tokens without the bracket at their beginning, at their end, or at both ends."""

    heads: tuple[str, ...]
    tails: tuple[str, ...]
    wholes: frozenset[str]

    def is_near(self, text: str) -> bool:
        return bool(
            text.lstrip().startswith(self.heads)
            or text.rstrip().endswith(self.tails)
            or text.strip() in self.wholes
        )

    def marked(self, text: str, mark: str) -> str:
        """Break up `text` so that neither end of the text can become part of a control token."""
        begin, end = len(text) - len(text.lstrip()), len(text.rstrip())
        at = set()
        if text.strip() in self.wholes or text.startswith(self.heads, begin):
            at.add(begin + 1)
        for tail in self.tails:
            if text.endswith(tail, begin, end):
                at.add(end - len(tail) + 1)
        for place in sorted(at, reverse=True):
            text = text[:place] + mark + text[place:]
        return text


def _near(control: ControlTokens) -> _Near:
    heads, tails, wholes = set(), set(), set()
    for token in control.tokens:
        letters = [place for place, char in enumerate(token) if char.isalnum()]
        if not letters:
            continue
        starts, ends = range(1, letters[0] + 1), range(letters[-1] + 1, len(token))
        heads |= {token[start:] for start in starts}
        tails |= {token[:end] for end in ends}
        wholes |= {token[start:end] for start in starts for end in ends}
    return _Near(tuple(heads), tuple(tails), frozenset(wholes))


def _free(strings: Iterable[str]) -> str:
    taken = _private_use(strings)
    free = [one for one in _PRIVATE_USE if chr(one) not in taken] if taken else _PRIVATE_USE
    if not free:
        raise BadRequest("the request contains all of Unicode's private characters")
    return chr(secrets.choice(free))


def escaped(mark: str) -> str:
    """Escape a break character as in plain ASCII JSON."""
    return json.dumps(mark)[1:-1]


def _private_use(strings: Iterable[str]) -> set[str]:
    plain, spelled = set[str](), set[str]()
    for text in strings:
        for found in _PLAIN.finditer(text):
            plain.update(found[0])
        spelled.update(found[0] for found in _ESCAPED.finditer(text))
    return plain | {json.loads(f'"{one}"') for one in spelled}


def _rest(given: Given) -> Given:
    return {name: value for name, value in given.items() if name != "messages"}


def _said(messages: Iterable[Message]) -> Iterator[str]:
    """Yield all strings of messages except the roles, which get no break character."""
    for message in messages:
        if message.name is not None:
            yield message.name
        for part in message.parts:
            if isinstance(part, Text):
                yield part.text
            else:
                yield from _strings(asdict(part))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield name
            yield from _strings(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _strings(inner)
