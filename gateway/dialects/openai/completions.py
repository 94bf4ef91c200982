"""The route `/v1/completions`: requests become `GenerationRequest`s, and events become chunks."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from msgspec import UnsetType

from gateway.config import Bounds
from gateway.dialects.explaining import explain_of, ratoon_reply
from gateway.dialects.finished_choice import FinishedChoice
from gateway.dialects.lazy_json import LazyList, listed_now
from gateway.dialects.openai.answers.logprobs import Offsets, completion_logprobs
from gateway.dialects.openai.answers.prompt_logprobs import prompt_logprobs
from gateway.dialects.openai.answers.rendering import ReplyFormat, scored, usage_reply
from gateway.dialects.openai.answers.replies import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    UsageReply,
)
from gateway.dialects.openai.requests.prompts import prompts_of
from gateway.dialects.openai.requests.sampling import generation_request
from gateway.dialects.openai.requests.schema import CompletionRequest
from gateway.dialects.openai.requests.structured_outputs import text_form
from gateway.dialects.openai_cache import marks_of
from gateway.generation.choice import ChoiceEnded, Delta, Event
from gateway.prompts.chats.chat_json import refuse_unsupported, unsupported
from gateway.prompts.generation_request import GenerationRequest, Prompt
from gateway.prompts.sampling_defaults import DIALECT_DEFAULTS, SamplingDefaults
from gateway.requests.request_usage import Usage

_DEFAULT_MAX_TOKENS = 16  # OpenAI's default


def request_of_completion(
    wire: CompletionRequest,
    request_id: str,
    bounds: Bounds,
    context: int,
    defaults: SamplingDefaults = DIALECT_DEFAULTS,
) -> GenerationRequest:
    """Convert `wire` into a generation request; raise BadRequest for a wrong field.

    A list of token ids that does not fit into `context` is refused before it is parsed.
    """
    _refuse(wire)
    return generation_request(
        wire,
        request_id,
        prompts_of(wire.prompt, bounds.max_prompts, context),
        bounds,
        defaults,
        max_tokens=wire.max_tokens,
        default_max_tokens=max(_DEFAULT_MAX_TOKENS, wire.min_tokens or 0),
        num_logprobs=None if wire.logprobs is None else ("logprobs", wire.logprobs),
        echoed_logprobs=wire.logprobs if wire.echo else None,
        form=text_form(wire),
        explain=explain_of(wire.ratoon, None),
        marks=marks_of(wire.prompt_cache_retention, wire.prompt_cache_options),
    )


def _refuse(wire: CompletionRequest) -> None:
    refuse_unsupported(wire)
    if wire.best_of is not None and wire.best_of != (wire.n or 1):
        raise unsupported("best_of")


@dataclass(slots=True, kw_only=True)
class CompletionReply(ReplyFormat):
    """A renderer of an answer as a text completion, whole or in chunks."""

    echoed: tuple[Prompt, ...]
    choices: int
    skip_special_tokens: bool
    has_logprobs: bool = False
    # number of candidates for each prompt token, in vLLM's form; None: no log-probabilities
    prompt_logprobs: int | None = None
    offsets: dict[int, Offsets] = field(default_factory=dict)

    def piece(self, event: Event) -> CompletionChoice | None:
        """Write the choice of a chunk for `event`, with the text that `event` adds."""
        if not isinstance(event, Delta):
            ids = self.token_ids(event)
            logprobs = self._logprobs(event)
            return CompletionChoice(event.index, "", logprobs, event.reason, token_ids=ids)
        text = event.text if event.index in self.begun else self._echo(event.index) + event.text
        self.begun.add(event.index)
        logprobs = self._logprobs(event)
        ids, prompt = self.token_ids(event), self.prompt_ids(event)
        if not (text or logprobs or ids or prompt):
            return None
        return CompletionChoice(event.index, text, logprobs, prompt_token_ids=prompt, token_ids=ids)

    def reply(
        self, choices: Sequence[CompletionChoice], usage: UsageReply | UnsetType | None
    ) -> Completion:
        """Write the answer, or a chunk of it, with the `choices`."""
        return Completion(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=choices,
            usage=usage,
            provider=self.provider,
        )

    def whole(self, choices: Sequence[FinishedChoice], usage: Usage) -> Completion:
        """Write the whole answer. Each choice is made when it is encoded."""
        made = LazyList(len(choices), lambda at: self._choice(choices[at]), at_once=1)
        reply = self.reply(made, usage_reply(usage))
        return msgspec.structs.replace(reply, ratoon=ratoon_reply(usage))

    def _choice(self, choice: FinishedChoice) -> CompletionChoice:
        return CompletionChoice(
            choice.index,
            self._echo(choice.index) + choice.text,
            self._logprobs(choice),
            choice.end.reason,
            prompt_logprobs=prompt_logprobs(self.tokenizer, choice.prompt, self.prompt_logprobs),
            prompt_token_ids=self.prompt_ids(choice),
            token_ids=self.token_ids(choice),
        )

    def _echo(self, index: int) -> str:
        if not self.echoed:
            return ""
        prompt = self.echoed[index // self.choices]
        if isinstance(prompt, np.ndarray):
            return self.tokenizer.decode(
                prompt.tolist(), skip_special_tokens=self.skip_special_tokens
            )
        return str(prompt)

    def _logprobs(self, choice: Event | FinishedChoice) -> CompletionLogprobs | None:
        """Write the log-probabilities of an echoed prompt's tokens and of the choice's.

        The token that stopped the choice is included where its id is shown, and after an echo.
        lm-eval, which scores prompts, asks for one token and reads all tokens before the last.
        """
        has_echo = bool(self.echoed) and self.has_logprobs
        echoed = None if isinstance(choice, ChoiceEnded) or not has_echo else choice.prompt
        token_ids, reported = scored(choice, with_stop=self.shows_ids or has_echo)
        if reported is None and echoed is None:
            return None
        offsets = self.offsets.get(choice.index)
        if offsets is None:
            offsets = Offsets(self.tokenizer, skip_special_tokens=self.skip_special_tokens)
            self.offsets[choice.index] = offsets
        listed = LazyList if isinstance(choice, FinishedChoice) else listed_now
        return completion_logprobs(
            self.tokenizer, token_ids, reported or (), offsets, echoed, listed=listed
        )
