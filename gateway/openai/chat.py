"""`/v1/chat/completions`: from the request to an `Ask`, and from events to the answer.

Knows: OpenAI's chat dialect. Does not know: how an answer is produced (`gateway/answering.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.admission import Ask, Chat
from gateway.choice import Delta, Event
from gateway.config import Bounds
from gateway.errors import BadRequest
from gateway.meter import Usage
from gateway.openai.logprobs import chat_logprobs
from gateway.openai.refusals import refuse_in_chat
from gateway.openai.rendering import FinishedChoice, Reply, usage_reply
from gateway.openai.replies import (
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatLogprobs,
    MessageDelta,
)
from gateway.openai.sampling import (
    checked_choices,
    checked_loads,
    checked_logprobs,
    priority,
    sampling_params,
    text_rules,
)
from gateway.openai.schema import ChatMessage, ChatRequest, TokenizeRequest
from gateway.openai.tools import tools_of
from gateway.tokenizer import Tokenizer

_MAX_VARIABLES = 32


def ask_of_chat(wire: ChatRequest, request_id: str, bounds: Bounds) -> Ask:
    """What the request asks for; BadRequest names the field that is wrong or not supported."""
    wire = refuse_in_chat(wire, bounds.max_messages)
    max_tokens = wire.max_completion_tokens or wire.max_tokens
    return Ask(
        request_id=request_id,
        prompts=(chat_of(wire.messages, wire),),
        choices=checked_choices(wire.n, prompts=1, bounds=bounds),
        sampling=sampling_params(
            wire,
            bounds,
            max_tokens=max_tokens or bounds.default_max_tokens,
            num_logprobs=_num_logprobs(wire, bounds),
        ),
        max_tokens_may_shrink=max_tokens is None,
        text=text_rules(wire, bounds),
        salt=wire.cache_salt,
        priority=priority(wire),
        loads=checked_loads(wire, bounds),
    )


def chat_of(messages: Sequence[ChatMessage], options: ChatRequest | TokenizeRequest) -> Chat:
    """The messages and tools as the template is given them."""
    continue_final = bool(options.continue_final_message)
    if continue_final and options.add_generation_prompt:
        raise BadRequest(
            "`add_generation_prompt` and `continue_final_message` exclude each other",
            param="continue_final_message",
        )
    if continue_final and messages[-1].role != "assistant":
        raise BadRequest(
            "`continue_final_message` needs a last message of the assistant",
            param="continue_final_message",
        )
    variables = options.chat_template_kwargs or {}
    if len(variables) > _MAX_VARIABLES or not all(name.isidentifier() for name in variables):
        raise BadRequest(
            f"`chat_template_kwargs` takes names of variables, at most {_MAX_VARIABLES}",
            param="chat_template_kwargs",
        )
    return Chat(
        messages=tuple(message_of(message, place) for place, message in enumerate(messages)),
        add_generation_prompt=not continue_final and options.add_generation_prompt is not False,
        continue_final_message=continue_final,
        variables=variables,
        tools=tools_of(options.tools),
    )


def message_of(message: ChatMessage, place: int) -> dict[str, str]:
    """Message number `place` as the template is given it."""
    if message.content is None:
        raise BadRequest(f"message {place} has no content", param=f"messages[{place}].content")
    content = message.content
    if not isinstance(content, str):
        content = "\n".join(part.text for part in content)
    # `developer` is the newer name for the same role; templates know the older one.
    role = "system" if message.role == "developer" else message.role
    rendered = {"role": role, "content": content}
    if message.name is not None:
        rendered["name"] = message.name
    if message.tool_call_id is not None:
        rendered["tool_call_id"] = message.tool_call_id
    return rendered


def _num_logprobs(wire: ChatRequest, bounds: Bounds) -> int | None:
    if wire.top_logprobs and not wire.logprobs:
        raise BadRequest("`top_logprobs` needs `logprobs`", param="top_logprobs")
    if not wire.logprobs:
        return None
    return checked_logprobs("top_logprobs", wire.top_logprobs or 0, bounds)


@dataclass(slots=True, kw_only=True)
class ChatReply(Reply):
    """Renders an answer as a chat completion, whole or in chunks."""

    tokenizer: Tokenizer

    def chunk(self, event: Event) -> ChatChunk | None:
        """The chunk for `event`; None when there is nothing to send."""
        if not isinstance(event, Delta):
            return self._chunk(ChatChunkChoice(event.index, MessageDelta(), None, event.reason))
        first = event.index not in self.begun
        if not (first or event.text or event.logprobs):
            return None
        self.begun.add(event.index)
        delta = MessageDelta("assistant", event.text) if first else MessageDelta(content=event.text)
        return self._chunk(ChatChunkChoice(event.index, delta, self._logprobs(event)))

    def text_chunk(self, index: int) -> ChatChunk:
        """A chunk of a choice with an empty text."""
        return self._chunk(ChatChunkChoice(index, MessageDelta(content="")))

    def usage_chunk(self, usage: Usage) -> ChatChunk:
        """The chunk after the last one, when usage was asked for."""
        return ChatChunk(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=[],
            usage=usage_reply(usage),
        )

    def whole(self, choices: Sequence[FinishedChoice], usage: Usage) -> ChatCompletion:
        """The whole answer."""
        return ChatCompletion(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=[self._choice(choice) for choice in choices],
            usage=usage_reply(usage),
        )

    def _chunk(self, choice: ChatChunkChoice) -> ChatChunk:
        return ChatChunk(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=[choice],
            usage=self.no_usage_yet,
        )

    def _choice(self, choice: FinishedChoice) -> ChatChoice:
        return ChatChoice(
            choice.index, AssistantMessage(choice.text), self._logprobs(choice), choice.reason
        )

    def _logprobs(self, choice: Delta | FinishedChoice) -> ChatLogprobs | None:
        if choice.logprobs is None:
            return None
        return chat_logprobs(self.tokenizer, choice.token_ids, choice.logprobs)
