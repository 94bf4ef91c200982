"""The conversion of the common fields of chat and text completions to a `GenerationRequest`.

Admission checks token ids and the context length.
"""

from engine.link.messages import Loads, LogitBias, SamplingParams, pack_logit_bias
from gateway.config import Bounds
from gateway.diagnosis.comparison import Explain
from gateway.dialects.explaining import modules_of
from gateway.dialects.openai.requests.schema import Generating
from gateway.errors import BadRequest
from gateway.prompts.generation_request import (
    AnswerForm,
    CacheMark,
    GenerationRequest,
    Prompt,
    TextRules,
)
from gateway.prompts.sampling_defaults import SamplingDefaults

_MAX_ID = 2**31 - 1  # the engine reads ids as int32


def generation_request(
    wire: Generating,
    request_id: str,
    prompts: tuple[Prompt, ...],
    bounds: Bounds,
    defaults: SamplingDefaults,
    *,
    max_tokens: int | None,
    default_max_tokens: int,
    num_logprobs: tuple[str, int] | None,
    echoed_logprobs: int | None = None,
    form: AnswerForm,
    explain: Explain | None = None,
    prediction: str = "",
    marks: tuple[CacheMark, ...] = (),
) -> GenerationRequest:
    """Convert `wire` into a generation request; raise BadRequest for a wrong field.

    `defaults` are the values of absent fields. `num_logprobs` holds the name and the value of the
    field that asks for log-probabilities. `echoed_logprobs` is the number of log-probabilities for
    each token of an echoed prompt.
    """
    if wire.stream_options is not None and not wire.stream:
        raise BadRequest("`stream_options` needs `stream`", param="stream_options")
    choices = wire.n or 1
    at_most("n", choices, bounds.max_choices)
    at_most("prompt", len(prompts), bounds.max_prompts)
    at_most("n", choices * len(prompts), bounds.max_prompts)
    if num_logprobs is not None:
        at_most(*num_logprobs, bounds.max_logprobs)
    longest = default_max_tokens if max_tokens is None else max_tokens
    wanted_logprobs = None if num_logprobs is None else num_logprobs[1]
    prompt_logprobs = _prompt_logprobs(wire, bounds, echoed_logprobs)
    return GenerationRequest(
        request_id=request_id,
        prompts=prompts,
        choices=choices,
        sampling=_sampling(
            wire,
            bounds,
            defaults,
            longest,
            wanted_logprobs,
            prompt_logprobs,
        ),
        max_tokens_may_shrink=max_tokens is None,
        text=_text_rules(wire, bounds),
        salt=wire.cache_salt,
        # A request may have a lower priority than its tenant, but no higher priority.
        priority="batch" if wire.service_tier == "flex" else "interactive",
        loads=checked_loads(wire, bounds),
        form=form,
        explain=explain,
        marks=marks,
        drafts=wire.drafts is not False,
        prediction=prediction,
        modules=modules_of(wire.ratoon),
    )


def _sampling(
    wire: Generating,
    bounds: Bounds,
    defaults: SamplingDefaults,
    max_tokens: int,
    num_logprobs: int | None,
    prompt_logprobs: int | None,
) -> SamplingParams:
    at_most("logit_bias", len(wire.logit_bias or ()), bounds.max_logit_bias)
    at_most("stop_token_ids", len(wire.stop_token_ids or ()), bounds.max_stops)
    if wire.min_tokens is not None and wire.min_tokens > max_tokens:
        raise BadRequest("`min_tokens` is greater than `max_tokens`", param="min_tokens")
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=wire.min_tokens or 0,
        temperature=_or(wire.temperature, defaults.temperature),
        # vLLM's clients send -1 to turn `top_k` off
        top_k=defaults.top_k if wire.top_k is None else max(0, wire.top_k),
        top_p=_or(wire.top_p, defaults.top_p),
        min_p=_or(wire.min_p, defaults.min_p),
        presence_penalty=_or(wire.presence_penalty, 0.0),
        frequency_penalty=_or(wire.frequency_penalty, 0.0),
        repetition_penalty=_or(wire.repetition_penalty, defaults.repetition_penalty),
        logit_bias=_logit_bias(wire.logit_bias),
        seed=wire.random_seed if wire.seed is None else wire.seed,
        num_logprobs=num_logprobs,
        prompt_logprobs=prompt_logprobs,
        stop_token_ids=frozenset(wire.stop_token_ids or ()),
        ignore_eos=bool(wire.ignore_eos),
    )


def _prompt_logprobs(wire: Generating, bounds: Bounds, echoed: int | None) -> int | None:
    asked = wire.prompt_logprobs
    if asked is None:
        return echoed
    if wire.stream:
        raise BadRequest("`prompt_logprobs` is not for streams", param="prompt_logprobs")
    at_most("prompt_logprobs", asked, bounds.max_logprobs)
    return max(asked, echoed or 0)


def _text_rules(wire: Generating, bounds: Bounds) -> TextRules:
    stops = [wire.stop] if isinstance(wire.stop, str) else wire.stop or []
    at_most("stop", len(stops), bounds.max_stops)
    if not all(stops):
        raise BadRequest("a stop string is empty", param="stop")
    if any(len(stop) > bounds.max_stop_chars for stop in stops):
        raise BadRequest(
            f"a stop string has more than {bounds.max_stop_chars} characters", param="stop"
        )
    return TextRules(
        stops=tuple(dict.fromkeys(stops)),
        include_stop=bool(wire.include_stop_str_in_output),
        skip_special_tokens=wire.skip_special_tokens is not False,
        shows_prompt_ids=bool(wire.return_token_ids),
    )


def checked_loads(wire: Generating, bounds: Bounds) -> Loads:
    """Return which cached blocks may be loaded from lower tiers.

    Raises BadRequest if requests may not choose.
    """
    asked = None if wire.cache is None else wire.cache.load
    if asked is not None and not bounds.allow_cache_load:
        raise BadRequest(
            "`cache.load` is not allowed on this server", code="not_allowed", param="cache.load"
        )
    return asked or "auto"


def _logit_bias(bias: dict[int, float] | None) -> LogitBias:
    """Pack the logit bias once for all choices. Admission checks its ids with the vocabulary."""
    if not bias:
        return LogitBias()
    if not 0 <= min(bias) <= max(bias) <= _MAX_ID:
        raise BadRequest("a token id is not in the vocabulary", param="logit_bias")
    return pack_logit_bias(bias)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def at_most(param: str, count: int, bound: int) -> None:
    """Raise BadRequest for the field `param` if `count` exceeds `bound`."""
    if count > bound:
        raise BadRequest(f"`{param}` is {count}, at most {bound} are allowed", param=param)
