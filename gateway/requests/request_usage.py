"""The token counts of one request, as answers show them."""

from dataclasses import dataclass, field

from engine.link.event_messages import DraftCounts
from engine.link.stats.tier_stats import StateTier, TierTokens
from gateway.diagnosis.cache_miss import CacheMiss
from gateway.prompts.generation_request import ModulesUsed

PREDICTION = "prediction"  # the source of drafts from a request's own prediction


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request. `cached_tokens` counts prompt tokens that were not computed."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    tiers: TierTokens | None = None  # tiers of the cached tokens; None: not shown
    # tier of the reused recurrent state; with several prompts, the tier of the first prompt's state
    state_tier: StateTier | None = None
    # number of the `completion_tokens` that are reasoning; known at the end
    reasoning_tokens: int = 0
    cache_miss: CacheMiss | None = None  # why the prompt missed the cache, if the request asks
    # Prompt tokens written to the cache for each breakpoint, summed over the prompts.
    written: tuple[int, ...] = ()
    retained_s: tuple[float, ...] = ()
    # numbers of drafted and of accepted tokens, by source; known at the end
    drafts: DraftCounts = field(default_factory=dict)
    rejected_prediction_tokens: int = 0  # included in `completion_tokens`; known at the end
    modules: ModulesUsed | None = None

    @property
    def accepted_prediction_tokens(self) -> int:
        """The tokens of the answer that were drafted from the request's prediction."""
        return self.drafts.get(PREDICTION, (0, 0))[1]

    def written_by_seconds(self) -> dict[float, int]:
        """Group the written tokens by their retention time in seconds.

        Blocks before a mark are also before all later marks. A later mark may ask for longer
        retention.
        """
        written: dict[float, int] = {}
        longest = 0.0
        for tokens, seconds in reversed([*zip(self.written, self.retained_s, strict=False)]):
            longest = max(longest, seconds)
            written[longest] = written.get(longest, 0) + tokens
        return written
