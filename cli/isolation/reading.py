"""The prompts of the isolation tests, and the usage read from their answers."""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from cli.errors import ServerRefused
from cli.isolation.cases import TierCase

_MODULES = 2  # number of modules in a request with modules: an unnamed module and a named one
_FROM_ANSWERS = "tree", "answers"


@dataclass(frozen=True, slots=True)
class ProbePrompt:
    """The token ids of a prompt, and its text if it has any.

    `opening` is the published beginning: a chat's system message, or the beginning of a text. `ids`
    are the tokens of `opening` and `text` together.
    """

    ids: list[int]
    text: str = ""
    opening: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """The usage in an answer, in tokens. `tiers` holds the cached tokens by tier."""

    prompt_tokens: int
    cached_tokens: int
    tiers: dict[str, int] = field(default_factory=dict)
    accepted_drafts: int = 0  # number of the answer's tokens that were drafted from earlier answers
    # number of tokens of prompt modules, each of which is cached as a whole or not at all
    module_tokens: int = 0
    cached_module_tokens: int = 0

    def is_full(self, block_size: int) -> bool:
        """Return whether everything that can be cached was cached.

        Everything means all prompt modules, or all whole KV blocks before the last token. If a
        module is in a lower tier, its last block is always computed again.
        """
        if self.module_tokens:
            is_loaded = any(self.tiers.get(tier) for tier in (TierCase.HOST, TierCase.DISK))
            again = _MODULES * block_size if is_loaded else 0
            return self.cached_module_tokens >= self.module_tokens - again
        return self.cached_tokens >= (self.prompt_tokens - 1) // block_size * block_size


def reading_of(content: bytes) -> Reading:
    """Read the usage in an answer or event stream. Raises ServerRefused if no usage is there."""
    modules: dict[str, Any] = {}
    for line in content.splitlines():
        text = line.removeprefix(b"data:").strip()
        told = msgspec.json.decode(text) if text.startswith(b"{") else {}
        modules = (told.get("ratoon") or {}).get("modules") or modules
        usage = told.get("usage")
        if usage:
            details = usage.get("prompt_tokens_details") or {}
            answer = (usage.get("completion_tokens_details") or {}).get("ratoon") or {}
            drafts = answer.get("drafts") or {}
            return Reading(
                usage["prompt_tokens"],
                details.get("cached_tokens", 0),
                details.get("ratoon") or {},
                sum(drafts[one]["accepted_tokens"] for one in _FROM_ANSWERS if one in drafts),
                modules.get("tokens", 0),
                modules.get("cached_tokens", 0),
            )
    raise ServerRefused("an answer ended without its usage", status=200)
