"""From OpenAI's sampling fields to the engine's `SamplingParams`, and to `TextRules`.

Knows: defaults, and the deployment's bounds on counts. Does not know: the vocabulary and the
context length, which admission checks.
"""

from __future__ import annotations

from engine.messages import Loads, Priority, SamplingParams
from gateway.admission import TextRules
from gateway.config import Bounds
from gateway.errors import BadRequest
from gateway.openai.schema import Generating


def sampling_params(
    wire: Generating, bounds: Bounds, *, max_tokens: int, num_logprobs: int | None
) -> SamplingParams:
    """How to choose tokens; BadRequest names the field that exceeds a bound."""
    at_most("logit_bias", len(wire.logit_bias or ()), bounds.max_logit_bias)
    at_most("stop_token_ids", len(wire.stop_token_ids or ()), bounds.max_stops)
    if wire.min_tokens is not None and wire.min_tokens > max_tokens:
        raise BadRequest("`min_tokens` is greater than `max_tokens`", param="min_tokens")
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=wire.min_tokens or 0,
        temperature=_or(wire.temperature, 1.0),
        top_k=max(0, wire.top_k or 0),  # vLLM's clients say -1 for off
        top_p=_or(wire.top_p, 1.0),
        min_p=_or(wire.min_p, 0.0),
        presence_penalty=_or(wire.presence_penalty, 0.0),
        frequency_penalty=_or(wire.frequency_penalty, 0.0),
        repetition_penalty=_or(wire.repetition_penalty, 1.0),
        logit_bias=wire.logit_bias or {},
        seed=wire.seed,
        num_logprobs=num_logprobs,
        stop_token_ids=tuple(dict.fromkeys(wire.stop_token_ids or ())),
        ignore_eos=bool(wire.ignore_eos),
    )


def checked_choices(n: int | None, *, prompts: int, bounds: Bounds) -> int:
    """The number of choices of each prompt; BadRequest if it exceeds a bound."""
    choices = n or 1
    at_most("n", choices, bounds.max_choices)
    at_most("prompt", prompts, bounds.max_prompts)
    at_most("n", choices * prompts, bounds.max_prompts)
    return choices


def checked_logprobs(param: str, wanted: int, bounds: Bounds) -> int:
    """`wanted`, the number of top log-probabilities; BadRequest if it exceeds the bound."""
    at_most(param, wanted, bounds.max_logprobs)
    return wanted


def priority(wire: Generating) -> Priority:
    """`service_tier: flex` makes a request batch; only the tenant's record can do the opposite."""
    return "batch" if wire.service_tier == "flex" else "interactive"


def text_rules(wire: Generating, bounds: Bounds) -> TextRules:
    """How tokens become the text that is shown."""
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
    )


def checked_loads(wire: Generating, bounds: Bounds) -> Loads:
    """Whether to load prefixes from lower tiers; BadRequest if requests may not choose that."""
    asked = None if wire.cache is None else wire.cache.load
    if asked is not None and not bounds.allow_cache_load:
        raise BadRequest(
            "`cache.load` is not allowed on this server", code="not_allowed", param="cache.load"
        )
    return asked or "auto"


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def at_most(param: str, count: int, bound: int) -> None:
    """BadRequest when there are more of `param` than `bound`."""
    if count > bound:
        raise BadRequest(f"`{param}` is {count}, at most {bound} are allowed", param=param)
