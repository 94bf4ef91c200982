"""Chats as clients of OpenAI's API send them. Each text is a unique word to find in the prompt."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from gateway.prompts.chats.chat_json import ChatMessage, message_of
from gateway.prompts.chats.messages import Message

# Chats without calls, in the notation of `sent`.
PLAIN = (
    *("u", "s u", "d u", "s u a u", "s s u", "s d u", "s d s u a u", "sl u", "s0 u", "s_ u"),
    *("u s", "u s u", "u s s u", "u a s u", "u a d", "s u a s u a u", "s u a u s", "u d a s u"),
    *("u u", "u u a u u", "u u u", "u a a u", "u a a a u", "a u", "a a u", "s a u", "a u a u"),
    *("s", "s s", "d", "ul a ul", "u a0 u", "u0", "u_", "u u0 u", "u a_ u", "u ar u"),
)
CALLING = (
    *("u ac t", "s u ac t", "u ac0 t", "u ac_ t", "u ac t a u", "u ac t ac t", "u ac t0"),
    *("u ac tl", "u acx t", "u acx t a u", "u acx t acx t", "u acx t acx t a u acx t"),
    *("u arc t", "u arcx t", "u acc t t1", "u accx t t1", "u acc t t1 a u"),
    *("u arccx t t1 ac t", "u acc t t1 acc t t1", "u acc t1 t", "u accx t1 t a u"),
    *("u ac t u", "u ac t s", "u ac t s a u", "u ac t u u", "u acc t t1 u", "u ac t d u a u"),
    *("ac t", "s ac t", "ac t a u", "acc t t1 u"),
    *("s u a u ac t a u ac t acc t t1 a s u", "s d u acx t acx t u acx t s ac t"),
)
WORD = re.compile(r"w\d+x")
ROLES = {"s": "system", "d": "developer", "u": "user", "a": "assistant", "t": "tool"}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Tells the {name[4:]}.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "A city."}},
                "required": ["city"],
            },
        },
    }
    for name in ("get_weather", "get_time")
]


def sent(spelled: str) -> list[dict[str, Any]]:
    """Return the messages of a chat: `s`, `d`, `u`, `a`, `t` name the roles, in order.

    The roles are system, developer, user, assistant and tool. After an `a`: `c` for each call, `x`
    for a text beside calls, `r` for reasoning. After any role: `0` for an empty text, `_` for a
    blank one, `l` for a list of texts. `t1` is the result of the second of the preceding calls.
    """
    chat: list[dict[str, Any]] = []
    called: list[str] = []
    for letters in spelled.split():
        word = f"w{len(chat)}x"
        message: dict[str, Any] = {"role": ROLES[letters[0]], "content": _content(letters, word)}
        if "r" in letters:
            message["reasoning_content"] = f"thought{len(chat)}"
        if message["role"] == "tool":
            message["tool_call_id"] = called[int("1" in letters)]
        if "c" in letters:
            called = [f"call_{len(chat)}_{number}" for number in range(letters.count("c"))]
            message["tool_calls"] = [_call(one, len(chat)) for one in called]
            message["content"] = message["content"] if "x" in letters else None
        chat.append(message)
    return chat


def _content(letters: str, word: str) -> Any:
    if "0" in letters:
        return ""
    if "l" in letters:
        return [{"type": "text", "text": text} for text in (word, "and more")]
    return "  " if "_" in letters else word


def _call(call_id: str, place: int) -> dict[str, Any]:
    number = int(call_id[-1])
    arguments = json.dumps({"city": f"w{place}{number + 1}x"})
    function = {"name": TOOLS[number]["function"]["name"], "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def messages(spelled: str) -> list[Message]:
    """Return the chat in the form in which a dialect passes it to a template."""
    read = msgspec.convert(sent(spelled), list[ChatMessage])
    return [message_of(one, place) for place, one in enumerate(read)]


def words(spelled: str) -> list[str]:
    """List the words that the prompt must contain once each, in this order."""
    return WORD.findall(json.dumps(sent(spelled)))


def called(spelled: str) -> tuple[str, ...]:
    """Return the words in the chat's calls."""
    return tuple(word for one in sent(spelled) for word in _in_calls(one).values())


def returned(spelled: str) -> dict[str, str]:
    """Map each word in the chat's results to the word in that result's call."""
    chat = sent(spelled)
    calls = {call: word for one in chat for call, word in _in_calls(one).items()}
    results = (
        (one["tool_call_id"], WORD.findall(json.dumps(one)))
        for one in chat
        if "tool_call_id" in one
    )
    return {word: calls[call] for call, found in results for word in found}


def _in_calls(message: dict[str, Any]) -> dict[str, str]:
    """Return the words in a message's calls, by the call's id."""
    calls = message.get("tool_calls", ())
    return {one["id"]: WORD.findall(one["function"]["arguments"])[0] for one in calls}


def ends_of_turns(spelled: str) -> list[int]:
    """Return the numbers of messages after which the model may answer, since no call lacks its
    result.
    """
    words = spelled.split()
    speak = "".join(word[0] for word in words)
    ends = (end for end in range(1, len(words) + 1) if speak[:end].strip("sd"))
    return [end for end in ends if "c" not in words[end - 1] and speak[end : end + 1] != "t"]
