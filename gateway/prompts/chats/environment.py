"""The move of an agent's environment (directory, date, git) out of its system prompt.

Agents write their environment between tags, in the middle of constant instructions. The tags are
`<env>` (opencode, Continue, Claude Code), `<cwd>` (pi), `<context name="gitStatus">`, and
`<session_context>` (Copilot). Templates put tools after the system prompt, so a changed environment
makes all tools miss the cache.
"""

import re
from collections.abc import Sequence

from gateway.prompts.chats.messages import Message, Part, Text

_OPENING = re.compile(
    r"^<(env|environment|environment_context|session_context|cwd|context)(?: [^<>\n]*)?>$",
    re.MULTILINE,
)


def split_environment(system: str) -> tuple[str, str]:
    """Return `system` without the tagged environment texts, and these texts with their tags."""
    kept, moved, cursor = list[str](), list[str](), 0
    unclosed = set[str]()
    for opening in _OPENING.finditer(system):
        tag = opening[1]
        if opening.start() < cursor or tag in unclosed:
            continue
        closing = f"\n</{tag}>"
        end = system.find(closing, opening.end())
        if end < 0:
            unclosed.add(tag)
            continue
        end += len(closing)
        kept.append(system[cursor : opening.start()])
        moved.append(system[opening.start() : end])
        cursor = end
    return "".join([*kept, system[cursor:]]), "\n".join(moved)


def environment_of(messages: Sequence[Message]) -> str:
    """Return the environment in the system prompt, or "" if it cannot move.

    The environment cannot move if no user's text follows the system prompt.
    """
    place = _first_turn(messages)
    is_text = place < len(messages) and messages[place].role == "user"
    if not is_text or not any(isinstance(part, Text) for part in messages[place].parts):
        return ""
    split = map(_split, messages[:place])
    return "\n".join(said for _, said in split if said)


def environment_last(messages: Sequence[Message], environment: str) -> tuple[Message, ...]:
    """Move `environment` from the system prompt to the beginning of the first user turn."""
    if not environment:
        return tuple(messages)
    place = _first_turn(messages)
    system = [message for message, _ in map(_split, messages[:place])]
    if place == len(messages):
        return tuple(system)
    first = messages[place]
    turn = Message(first.role, tuple(_begun(one, environment) for one in first.parts), first.name)
    return (*system, turn, *messages[place + 1 :])


def _first_turn(messages: Sequence[Message]) -> int:
    return next((at for at, one in enumerate(messages) if one.role != "system"), len(messages))


def _split(message: Message) -> tuple[Message, str]:
    texts = [part.text for part in message.parts if isinstance(part, Text)]
    kept, moved = split_environment("".join(texts))
    if not moved:
        return message, ""
    return Message(message.role, (Text(kept),), message.name), moved


def _begun(part: Part, moved: str) -> Part:
    return Text(f"{moved}\n\n{part.text}") if isinstance(part, Text) else part
