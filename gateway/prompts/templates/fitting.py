"""The fitting of a chat to a template's traits, so that no text is lost or moved.

A message that the template would refuse, drop or move becomes a user's turn in its place. Turns
that must alternate are joined. The fitted form of a message depends only on the messages before it.
A longer chat therefore begins like the shorter chat, and its beginning is found in the cache. Calls
are fitted together with their results.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from operator import itemgetter

from msgspec.structs import replace

from gateway.prompts.chats.messages import (
    Message,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    with_numbered_ids,
    with_short_ids,
)
from gateway.prompts.chats.traits import TemplateTraits

_BETWEEN = "\n\n"


def fitted(messages: Sequence[Message], traits: TemplateTraits) -> list[Message]:
    """Fit the chat to a template with these traits."""
    if traits.short_ids:
        messages = [with_short_ids(message) for message in messages]
    if traits.numbered_ids != "no":
        messages = [*with_numbered_ids(messages, in_turns=traits.numbered_ids == "turn")]
    for fit in (_systems, _calls, _rows):
        messages = list(fit(messages, traits))
    return list(messages)


def with_system(messages: Sequence[Message], text: str, traits: TemplateTraits) -> list[Message]:
    """Add a system text to a fitted chat, after the system texts at its beginning."""
    leading = list(takewhile(lambda one: one.role == "system", messages))
    system = Message("system", (Text(text),))
    return list(_systems([*leading, system, *messages[len(leading) :]], traits))


def _systems(messages: Sequence[Message], traits: TemplateTraits) -> Iterator[Message]:
    leading = list(takewhile(lambda one: one.role == "system", messages))
    rest = messages[len(leading) :]
    if traits.leading_system == "several":
        yield from leading
    elif leading:
        system = _joined(leading) if len(leading) > 1 else leading[0]
        yield from _led(system, rest[:1], traits)
        if traits.leading_system == "none" and rest and rest[0].role == "user":
            rest = rest[1:]
    if leading and not rest and not traits.system_alone:
        yield Message("user", (Text(""),))
    for message in rest:
        is_late = message.role == "system" and not traits.later_system
        yield replace(message, role="user") if is_late else message


def _led(
    system: Message, following: Sequence[Message], traits: TemplateTraits
) -> Iterator[Message]:
    if traits.leading_system == "one":
        yield system
    elif following and following[0].role == "user":
        yield _joined([replace(system, role="user", name=following[0].name), *following])
    else:
        yield replace(system, role="user")


def _calls(messages: Sequence[Message], traits: TemplateTraits) -> Iterator[Message]:
    over, behind = _last_turn(messages), 0
    for place, message in enumerate(messages):
        if place < behind:
            continue
        calls = [part for part in message.parts if isinstance(part, ToolCall)]
        if not calls:
            yield message
            continue
        results = list(takewhile(lambda one: one.role == "tool", messages[place + 1 :]))
        behind = place + 1 + len(results)
        *before, message = _beside_calls(message, traits, is_over=place < over)
        yield from before
        yield from _answered(message, calls, results, traits)


def _last_turn(messages: Sequence[Message]) -> int:
    """Return the index of the last message that is neither a call nor a result, or -1."""
    for place in reversed(range(len(messages))):
        message = messages[place]
        if message.role == "user" or (message.role == "assistant" and not _has_calls(message)):
            return place
    return -1


def _answered(
    message: Message, calls: Sequence[ToolCall], results: Sequence[Message], traits: TemplateTraits
) -> Iterator[Message]:
    numbers = {call.id: number for number, call in reversed([*enumerate(calls)])}
    placed = [(_place(one, at, numbers, len(calls)), one) for at, one in enumerate(results)]
    placed = [(place, _named(one, calls[place : place + 1])) for place, one in placed]
    if not traits.shows_call_ids:
        placed.sort(key=itemgetter(0))
    if traits.calls != "one":
        yield message
        yield from (one for _, one in placed)
        return
    others = tuple(part for part in message.parts if not isinstance(part, ToolCall))
    returned: dict[int, list[Message]] = {}
    for place, one in placed:
        returned.setdefault(place, []).append(one)
    for number, call in enumerate(calls):
        yield replace(message, parts=(*(() if number else others), call))
        yield from returned.get(number, ())
    yield from returned.get(len(calls), ())


def _place(result: Message, at: int, numbers: Mapping[str | None, int], count: int) -> int:
    """Return the number of the call that `result`, at place `at`, answers.

    `numbers` are the numbers of the `count` calls, by the calls' ids. The result is `count` if
    there is no such call.
    """
    call_id = next((part.call_id for part in result.parts if isinstance(part, ToolResult)), None)
    if call_id is None:
        return min(at, count)
    return numbers.get(call_id, count)


def _named(result: Message, called: Sequence[ToolCall]) -> Message:
    return replace(result, name=called[0].name) if called and result.name is None else result


def _beside_calls(
    message: Message, traits: TemplateTraits, *, is_over: bool
) -> tuple[Message, ...]:
    """Split a message into calls and text if the template does not take both in one message."""
    said = [part for part in message.parts if isinstance(part, Text) and part.text.strip()]
    thoughts = [part for part in message.parts if isinstance(part, Reasoning)]
    calls = tuple(part for part in message.parts if isinstance(part, ToolCall))
    if not said or traits.text_beside_calls == "together":
        return (message,)
    if traits.text_beside_calls == "thought" and not is_over:
        return (replace(message, parts=(*_thought([*thoughts, *said]), *calls)),)
    return (replace(message, parts=(*thoughts, *said)), replace(message, parts=calls))


def _thought(parts: Sequence[Part]) -> tuple[Reasoning]:
    return (Reasoning(_text(parts)),)


def _rows(messages: Sequence[Message], traits: TemplateTraits) -> Iterator[Message]:
    """Join turns that must alternate, and add empty user's turns where the template needs them."""
    has_user = False
    run: list[Message] = []  # messages that become one message; only the last may have calls
    for message in messages:
        if _says_nothing(message) and not traits.empty_answers:
            continue
        if message.role == "tool" and not traits.results:
            message = _as_user(message)
        if run and _are_one(run, message, traits):
            run.append(message)
            continue
        if run:
            yield _as_one(run)
        last = run[-1] if run else None
        has_user = has_user or (last is not None and last.role == "user")
        if message.role == "assistant" and _needs_user(last, message, traits, has_user=has_user):
            has_user = True
            yield Message("user", (Text(""),))
        run = [message]
    if run:
        yield _as_one(run)


def _as_one(run: Sequence[Message]) -> Message:
    return run[0] if len(run) == 1 else _joined(run)


def _are_one(run: Sequence[Message], other: Message, traits: TemplateTraits) -> bool:
    match run[0].role, other.role:
        case "user", "user":
            return not traits.users_in_a_row
        case "tool", "user":
            return not traits.user_after_result
        case "assistant", "assistant":
            are_apart = traits.text_beside_calls == "apart" and _has_calls(other)
            return not (traits.assistants_in_a_row or are_apart or _has_calls(run[-1]))
    return False


def _has_calls(message: Message) -> bool:
    return any(isinstance(part, ToolCall) for part in message.parts)


def _says_nothing(message: Message) -> bool:
    said = (isinstance(part, ToolCall) or part.text.strip() for part in message.parts)
    return message.role == "assistant" and not any(said)


def _needs_user(
    last: Message | None, message: Message, traits: TemplateTraits, *, has_user: bool
) -> bool:
    """Return whether a user's turn, perhaps empty, must come before the assistant's turn."""
    if not has_user and not traits.calls_first and _has_calls(message):
        return True
    if last is None or last.role == "system":
        return not traits.assistant_first
    if last.role != "assistant" or traits.assistants_in_a_row:
        return False
    return traits.calls == "text" or (not _has_calls(last) and _has_calls(message))


def _as_user(result: Message) -> Message:
    return replace(result, role="user", parts=(Text(_text(result.parts)),), name=None)


def _joined(messages: Sequence[Message]) -> Message:
    """Join messages into one message with all their texts. Only the last may have calls."""
    first = messages[0]
    parts = [part for message in messages for part in message.parts]
    said = _text([part for part in parts if isinstance(part, Text | ToolResult)])
    thoughts = [part for part in parts if isinstance(part, Reasoning)]
    result = next((part for part in first.parts if isinstance(part, ToolResult)), None)
    text = Text(said) if result is None else replace(result, text=said)
    calls = (part for part in parts if isinstance(part, ToolCall))
    return replace(first, parts=(*(_thought(thoughts) if thoughts else ()), text, *calls))


def _text(parts: Sequence[Part]) -> str:
    texts = [part.text for part in parts if not isinstance(part, ToolCall)]
    return _BETWEEN.join(text for text in texts if text.strip())
