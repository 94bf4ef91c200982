"""The flags of `gateway.config.Bounds`: what is checked before any work is done for a request.

Knows: one flag for every bound. Does not know: where the bounds are enforced (`gateway`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from cli.options import flag
from gateway.config import Bounds

PANEL = "Bounds on one request or tenant"
_DEFAULTS = Bounds()


def bound(name: str, help_text: str) -> Any:
    """A bound of at least one; requests beyond it are refused with 400, 413, 429 or 431."""
    return flag(name, help_text, panel=PANEL, min=1)


@dataclass(frozen=True, slots=True)
class BoundsFlags:
    """What one request and one tenant may ask for: field for field those of `Bounds`."""

    max_body_bytes: Annotated[int, bound("--max-body-bytes", "Most bytes of a request's body.")] = (
        _DEFAULTS.max_body_bytes
    )
    max_json_depth: Annotated[int, bound("--max-json-depth", "Most levels of nested JSON.")] = (
        _DEFAULTS.max_json_depth
    )
    max_messages: Annotated[int, bound("--max-messages", "Most messages of a chat.")] = (
        _DEFAULTS.max_messages
    )
    max_choices: Annotated[int, bound("--max-choices", "Most choices of one prompt (n).")] = (
        _DEFAULTS.max_choices
    )
    max_prompts: Annotated[
        int, bound("--max-prompts", "Most prompts of one completions request, times n.")
    ] = _DEFAULTS.max_prompts
    max_logprobs: Annotated[int, bound("--max-logprobs", "Most alternatives for each token.")] = (
        _DEFAULTS.max_logprobs
    )
    max_stops: Annotated[int, bound("--max-stops", "Most stop strings.")] = _DEFAULTS.max_stops
    max_stop_chars: Annotated[
        int, bound("--max-stop-chars", "Most characters of a stop string.")
    ] = _DEFAULTS.max_stop_chars
    max_logit_bias: Annotated[int, bound("--max-logit-bias", "Most entries of logit_bias.")] = (
        _DEFAULTS.max_logit_bias
    )
    allow_cache_load: Annotated[
        bool,
        flag(
            "--allow-cache-load",
            "Let tenants set `cache.load` to auto, always or never, as the operator may.",
            panel=PANEL,
        ),
    ] = _DEFAULTS.allow_cache_load
    max_salt_chars: Annotated[int, bound("--max-salt-chars", "Most characters of cache_salt.")] = (
        _DEFAULTS.max_salt_chars
    )
    max_streams_per_tenant: Annotated[
        int,
        bound("--max-streams-per-tenant", "Most choices of a tenant in flight, in each worker."),
    ] = _DEFAULTS.max_streams_per_tenant
    max_head_bytes: Annotated[
        int, bound("--max-head-bytes", "Most bytes of the request line and headers.")
    ] = _DEFAULTS.max_head_bytes
    head_deadline_s: Annotated[
        float,
        bound("--head-deadline-s", "Most seconds from a request's first byte to its last header."),
    ] = _DEFAULTS.head_deadline_s
    body_deadline_s: Annotated[
        float,
        bound("--body-deadline-s", "Most seconds from its last header to the end of its body."),
    ] = _DEFAULTS.body_deadline_s
    default_max_tokens: Annotated[
        int, bound("--default-max-tokens", "max_tokens of a chat that sets none.")
    ] = _DEFAULTS.default_max_tokens
    stalled_write_s: Annotated[
        float,
        bound("--stalled-write-s", "Seconds after which a client that reads nothing is cut off."),
    ] = _DEFAULTS.stalled_write_s
