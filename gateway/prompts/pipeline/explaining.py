"""The memory of prompts that admission fills, and their comparison by `gateway/diagnosis`."""

from collections.abc import Iterator, Sequence
from functools import partial

from engine.link.messages import Mark, Welcome
from gateway.caller import Caller
from gateway.diagnosis.comparison import Comparison, Explain, compare
from gateway.diagnosis.misses import LastMisses
from gateway.diagnosis.parts import PartKind, PromptPart
from gateway.diagnosis.seen import SeenPrompt, SeenPrompts, digest_of_salt
from gateway.processes.fair_executor import Steps
from gateway.prompts.chats.forms import Tool
from gateway.prompts.chats.messages import Message, ToolCall
from gateway.prompts.generation_request import (
    AdmittedRequest,
    ChatPrompt,
    GenerationRequest,
    Prompt,
)
from gateway.prompts.tokens.tokenizer import Tokenizer


class Explaining:
    """Compares a tenant's prompts with the tenant's earlier prompts. Thread-safe."""

    def __init__(
        self, memory: SeenPrompts | None, tokenizer: Tokenizer, misses: LastMisses | None = None
    ) -> None:
        self._memory = memory
        self._misses = misses
        self._decode = partial(tokenizer.decode, skip_special_tokens=False)

    def compared(
        self,
        wanted: GenerationRequest,
        prompt: Prompt,
        seen: SeenPrompt,
        caller: Caller,
        block_size: int,
    ) -> Steps[Comparison | None]:
        """Compare `seen`, which was made of `prompt`, with an earlier prompt.

        Returns None unless the request asks for the comparison, or the tenant looks at its misses.
        """
        explain = wanted.explain
        if explain is None and len(wanted.prompts) == 1 and self._is_watched(caller):
            explain = Explain(None, _parts(prompt))
        if explain is None:
            return None
        if self._memory is None:
            return Comparison(seen, block_size, is_known=False)
        memory, decode = self._memory, self._decode
        return (yield from compare(memory, caller.tenant_id, seen, explain, block_size, decode))

    def _is_watched(self, caller: Caller) -> bool:
        return self._misses is not None and self._misses.is_watched(caller.tenant_id)

    def remember(self, admitted: AdmittedRequest) -> None:
        """Remember the prompt, once the engine has computed it."""
        if self._memory is not None and admitted.seen is not None:
            self._memory.remember(admitted.generates[0].flow, admitted.seen)


def as_seen(
    wanted: GenerationRequest,
    prompt: Prompt,
    packed: bytes,
    caller: Caller,
    welcome: Welcome,
    marks: tuple[Mark, ...],
) -> SeenPrompt:
    """Make the remembered form of `prompt`, whose tokens are `packed`."""
    chat = prompt if isinstance(prompt, ChatPrompt) else ChatPrompt(messages=())
    effort = (chat.variables or {}).get("reasoning_effort")
    return SeenPrompt(
        wanted.request_id,
        packed,
        tuple(tool["function"]["name"] for tool in chat.tools or ()),
        bool(chat.messages) and chat.messages[0].role == "system",
        welcome.fingerprint,
        caller.group_id,
        digest_of_salt(wanted.salt),
        marks,
        effort if isinstance(effort, str) else None,
    )


def _parts(prompt: Prompt) -> tuple[PromptPart, ...] | None:
    if not isinstance(prompt, ChatPrompt):
        return None
    return (*tool_parts(prompt.tools), *message_parts(prompt.messages))


def tool_parts(tools: Sequence[Tool] | None) -> Iterator[PromptPart]:
    """Yield the tools of a chat, by their places in the request."""
    for place, tool in enumerate(tools or ()):
        yield PromptPart(f"tools[{place}]", "tools", tool["function"]["name"])


def message_parts(messages: Sequence[Message]) -> Iterator[PromptPart]:
    """Yield the messages of a chat, by their places in the request."""
    for place, message in enumerate(messages):
        kind: PartKind = "system" if message.role == "system" else "messages"
        for part in message.parts:
            text = part.name if isinstance(part, ToolCall) else part.text
            yield PromptPart(f"messages[{place}]", kind, text)
