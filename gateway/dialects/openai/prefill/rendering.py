"""The common part of answers to requests that generate nothing. No such answer is a stream."""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.dialects.openai.answers.replies import PromptDetails
from gateway.dialects.openai.prefill.replies import PromptUsage
from gateway.dialects.openai_shape import CacheWrites, cached_by_tier, limit_headers
from gateway.dialects.prefill_request import NoStream
from gateway.requests.request_usage import Usage
from gateway.tenant_limits import RateStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeReply(NoStream):
    """The base of OpenAI's renderers of answers that generate nothing."""

    model: str

    def headers(self, standing: RateStatus) -> Mapping[str, str]:
        return limit_headers(standing)


def prompt_details(usage: Usage) -> PromptDetails:
    """Write the numbers of prompt tokens read from the cache and written to the cache."""
    writes, tiers = CacheWrites.of(usage), cached_by_tier(usage)
    return PromptDetails(usage.cached_tokens, sum(usage.written), writes, tiers)


def prompt_usage(usage: Usage) -> PromptUsage:
    """Write the usage of a request that generates nothing."""
    return PromptUsage(
        prompt_tokens=usage.prompt_tokens,
        total_tokens=usage.prompt_tokens,
        prompt_tokens_details=prompt_details(usage),
    )
