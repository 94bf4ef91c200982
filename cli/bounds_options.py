"""The flags of `gateway.config.Bounds`: what is checked before any work is allocated.

Knows: one flag for every bound. Does not know: where they are enforced (`gateway`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from cli.options import flag
from gateway.config import Bounds

PANEL = "Bounds on one request or key"
_DEFAULTS = Bounds()


def bound(name: str, help_text: str) -> Any:
    """A bound of at least one; what goes beyond it is refused with 400, 413 or 429."""
    return flag(name, help_text, panel=PANEL, min=1)


@dataclass(frozen=True, slots=True)
class BoundsFlags:
    """What one request and one key may ask for: field for field those of `Bounds`."""

    max_body_bytes: Annotated[int, bound("--max-body-bytes", "Bytes of a request's body.")] = (
        _DEFAULTS.max_body_bytes
    )
    max_json_depth: Annotated[int, bound("--max-json-depth", "Depth of nested JSON.")] = (
        _DEFAULTS.max_json_depth
    )
    max_messages: Annotated[int, bound("--max-messages", "Messages of a chat.")] = (
        _DEFAULTS.max_messages
    )
    max_choices: Annotated[int, bound("--max-choices", "Choices of one prompt (n).")] = (
        _DEFAULTS.max_choices
    )
    max_prompts: Annotated[
        int, bound("--max-prompts", "Prompts of one completions request, times n.")
    ] = _DEFAULTS.max_prompts
    max_logprobs: Annotated[int, bound("--max-logprobs", "Alternatives per token.")] = (
        _DEFAULTS.max_logprobs
    )
    max_stops: Annotated[int, bound("--max-stops", "Stop strings.")] = _DEFAULTS.max_stops
    max_stop_chars: Annotated[int, bound("--max-stop-chars", "Characters of one stop string.")] = (
        _DEFAULTS.max_stop_chars
    )
    max_logit_bias: Annotated[int, bound("--max-logit-bias", "Entries of logit_bias.")] = (
        _DEFAULTS.max_logit_bias
    )
    allow_cache_load: Annotated[
        bool,
        flag(
            "--allow-cache-load",
            "Whether a request may say `cache.load`: auto, always or never.",
            panel=PANEL,
        ),
    ] = _DEFAULTS.allow_cache_load
    max_salt_chars: Annotated[int, bound("--max-salt-chars", "Characters of cache_salt.")] = (
        _DEFAULTS.max_salt_chars
    )
    max_streams_per_tenant: Annotated[
        int,
        bound(
            "--max-streams-per-tenant", "Choices of one tenant in flight, in each of the --workers."
        ),
    ] = _DEFAULTS.max_streams_per_tenant
    max_head_bytes: Annotated[
        int, bound("--max-head-bytes", "Bytes of the request line and headers.")
    ] = _DEFAULTS.max_head_bytes
    head_deadline_s: Annotated[
        float, bound("--head-deadline-s", "Seconds from a request's first byte to its last header.")
    ] = _DEFAULTS.head_deadline_s
    body_deadline_s: Annotated[
        float, bound("--body-deadline-s", "Seconds from there to the end of the body.")
    ] = _DEFAULTS.body_deadline_s
    default_max_tokens: Annotated[
        int, bound("--default-max-tokens", "Tokens of an answer to a chat that names none.")
    ] = _DEFAULTS.default_max_tokens
    stalled_write_s: Annotated[
        float,
        bound("--stalled-write-s", "Seconds after which a client that reads nothing is cut off."),
    ] = _DEFAULTS.stalled_write_s
