"""`/v1/completions`: from the request to an `Ask`, and from events to the answer.

Knows: OpenAI's dialect of text completions. Does not know: how an answer is produced
(`gateway/answering.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gateway.admission import Ask
from gateway.choice import Delta, Event
from gateway.config import Bounds
from gateway.meter import Usage
from gateway.openai.logprobs import Offsets, completion_logprobs
from gateway.openai.prompts import prompts_of
from gateway.openai.refusals import refuse_in_completion
from gateway.openai.rendering import FinishedChoice, Reply, usage_reply
from gateway.openai.replies import Completion, CompletionChoice, CompletionLogprobs
from gateway.openai.sampling import (
    checked_choices,
    checked_loads,
    checked_logprobs,
    priority,
    sampling_params,
    text_rules,
)
from gateway.openai.schema import CompletionRequest
from gateway.tokenizer import Tokenizer

_DEFAULT_MAX_TOKENS = 16  # OpenAI's own


def ask_of_completion(
    wire: CompletionRequest, request_id: str, bounds: Bounds, context: int
) -> Ask:
    """What the request asks for; BadRequest names the field that is wrong or not supported.

    Token ids that are certainly more than `context` are refused before they are read.
    """
    refuse_in_completion(wire)
    prompts = prompts_of(wire.prompt, bounds.max_prompts, context)
    num_logprobs = None
    if wire.logprobs is not None:
        num_logprobs = checked_logprobs("logprobs", wire.logprobs, bounds)
    return Ask(
        request_id=request_id,
        prompts=prompts,
        choices=checked_choices(wire.n, prompts=len(prompts), bounds=bounds),
        sampling=sampling_params(
            wire,
            bounds,
            max_tokens=wire.max_tokens or max(_DEFAULT_MAX_TOKENS, wire.min_tokens or 0),
            num_logprobs=num_logprobs,
        ),
        max_tokens_may_shrink=wire.max_tokens is None,
        text=text_rules(wire, bounds),
        salt=wire.cache_salt,
        priority=priority(wire),
        loads=checked_loads(wire, bounds),
    )


@dataclass(slots=True, kw_only=True)
class CompletionReply(Reply):
    """Renders an answer as a text completion, whole or in chunks."""

    tokenizer: Tokenizer
    ask: Ask
    echo: bool
    offsets: dict[int, Offsets] = field(default_factory=dict)  # by choice, while it streams

    def chunk(self, event: Event) -> Completion | None:
        """The chunk for `event`; None when there is nothing to send."""
        if not isinstance(event, Delta):
            return self._completion([CompletionChoice(event.index, "", None, event.reason)])
        text = event.text if event.index in self.begun else self._echo(event.index) + event.text
        self.begun.add(event.index)
        if not (text or event.logprobs):
            return None
        offsets = self.offsets.setdefault(event.index, self._offsets())
        logprobs = self._logprobs(event, offsets)
        return self._completion([CompletionChoice(event.index, text, logprobs)])

    def text_chunk(self, index: int) -> Completion:
        """A chunk of a choice with an empty text."""
        return self._completion([CompletionChoice(index, "")])

    def usage_chunk(self, usage: Usage) -> Completion:
        """The chunk after the last one, when usage was asked for."""
        return self._completion([], usage)

    def whole(self, choices: Sequence[FinishedChoice], usage: Usage) -> Completion:
        """The whole answer."""
        return self._completion([self._choice(choice) for choice in choices], usage)

    def _choice(self, choice: FinishedChoice) -> CompletionChoice:
        text = self._echo(choice.index) + choice.text
        logprobs = self._logprobs(choice, self._offsets())
        return CompletionChoice(choice.index, text, logprobs, choice.reason)

    def _completion(
        self, choices: list[CompletionChoice], usage: Usage | None = None
    ) -> Completion:
        return Completion(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=choices,
            usage=self.no_usage_yet if usage is None else usage_reply(usage),
        )

    def _echo(self, index: int) -> str:
        """What comes before a choice: its prompt, if that is to be echoed."""
        if not self.echo:
            return ""
        prompt = self.ask.prompts[index // self.ask.choices]
        if isinstance(prompt, np.ndarray):
            return self.tokenizer.decode(
                prompt.tolist(), skip_special_tokens=self.ask.text.skip_special_tokens
            )
        return str(prompt)

    def _offsets(self) -> Offsets:
        return Offsets(self.tokenizer, skip_special_tokens=self.ask.text.skip_special_tokens)

    def _logprobs(
        self, choice: Delta | FinishedChoice, offsets: Offsets
    ) -> CompletionLogprobs | None:
        if choice.logprobs is None:
            return None
        return completion_logprobs(self.tokenizer, choice.token_ids, choice.logprobs, offsets)
