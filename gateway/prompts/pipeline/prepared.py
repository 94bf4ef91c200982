"""The prepared prompts of a request, and the `Generate` messages of its choices.

Elsewhere: how a prompt is prepared (`preparation.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from engine.link.messages import AdapterUse, Generate, Grammar, Mark, Priority, pack_token_ids
from gateway.caller import Caller
from gateway.diagnosis.comparison import Comparison
from gateway.diagnosis.seen import SeenPrompt
from gateway.errors import BadRequest
from gateway.prompts.generation_request import (
    TOKEN_BYTES,
    GenerationRequest,
    ModulesUsed,
    Origin,
)
from gateway.prompts.modules.joined import JoinedPrompt
from gateway.prompts.pipeline.sampling_limits import of_choice, within_context
from gateway.prompts.tokens.tokenizer import TokenIds
from prefix_cache.namespace import NamespacePath

# The maximum number of candidate tokens over all prompts of a request, since one message carries
# all candidates. Each prompt token counts as two more candidates.
_MAX_SCORED = 1 << 17

# Maximum number of tokens used of a prediction, as a multiple of the answer's maximum length. The
# factor is above 1, since an answer may leave out parts of its prediction. The engine indexes a
# prediction for each choice at no charge.
PREDICTED = 4


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prompt of a request, prepared for the engine."""

    token_ids: TokenIds
    path: NamespacePath
    keys: bytes
    grammar: Grammar | None
    tail: str | None  # end of the rendered chat, as in `Tokenised`
    prefill: str
    origin: Origin | None
    seen: SeenPrompt
    comparison: Comparison | None
    marks: tuple[Mark, ...]
    prediction: bytes  # packed token ids of the predicted answer
    question: int  # see `Generate.question`
    adapter: AdapterUse | None
    joined: JoinedPrompt | None = None
    modules: ModulesUsed | None = None

    @property
    def num_tokens(self) -> int:
        """The number of the prompt's tokens, including the modules' tokens."""
        return len(self.token_ids) if self.joined is None else self.joined.num_tokens

    @property
    def reach(self) -> int:
        """The tokens of the context that the prompt takes, including gaps between positions."""
        return len(self.token_ids) if self.joined is None else self.joined.reach

    @property
    def held(self) -> int:
        """The tokens that the cache holds for the prompt, its modules in whole blocks."""
        return len(self.token_ids) if self.joined is None else self.joined.held


def generates_of(
    wanted: GenerationRequest,
    prepared: Sequence[Prepared],
    caller: Caller,
    max_model_len: int,
    writer: str,
) -> tuple[Generate, ...]:
    """Make the `Generate` messages: one for each choice of each prompt, in order."""
    _check_scored(wanted, sum(len(prompt.token_ids) for prompt in prepared))
    generates: list[Generate] = []
    for number, prompt in enumerate(prepared):
        sampling = within_context(wanted, prompt.reach, prompt.held, max_model_len, caller.limits)
        joined = prompt.joined
        predicted = prompt.prediction[: TOKEN_BYTES * PREDICTED * sampling.max_tokens]
        if prompt.grammar is not None:
            sampling = msgspec.structs.replace(sampling, grammar=prompt.grammar)
        for choice in range(wanted.choices):
            generates.append(
                Generate(
                    request_id=f"{wanted.request_id}-{len(generates)}",
                    token_ids=prompt.seen.packed,
                    namespaces=prompt.path.spans,
                    block_keys=prompt.keys,
                    flow=caller.tenant_id,
                    weight=caller.weight,
                    priority=_lower(caller.priority, wanted.priority),
                    target_itl_s=caller.target_itl_ms / 1e3,
                    sampling=of_choice(sampling, choice),
                    use_cache=sampling.prompt_logprobs is None,
                    loads=wanted.loads,
                    cache_quota=caller.cache.shares,
                    writer=writer,
                    marks=prompt.marks,
                    drafts=wanted.drafts,
                    adapter=prompt.adapter,
                    embeds=wanted.embeds,
                    candidates=wanted.candidates[number] if wanted.candidates else b"",
                    prediction=predicted,
                    question=prompt.question,
                    modules=() if joined is None else joined.modules,
                    positions=b"" if joined is None else pack_token_ids(joined.positions),
                )
            )
    return tuple(generates)


def _check_scored(wanted: GenerationRequest, prompt_tokens: int) -> None:
    likeliest = wanted.sampling.prompt_logprobs
    if likeliest is None:
        return
    most = _MAX_SCORED // (likeliest + 2)
    if prompt_tokens * wanted.choices > most:
        raise BadRequest(
            f"the prompts of all choices have {prompt_tokens * wanted.choices} tokens; with "
            f"{likeliest} log-probabilities of each there may be {most}",
            code="too_many_logprobs",
            param="prompt_logprobs",
        )


def _lower(one: Priority, other: Priority) -> Priority:
    return "batch" if "batch" in (one, other) else "interactive"
