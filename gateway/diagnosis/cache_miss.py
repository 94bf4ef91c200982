"""The reason why a prompt missed the cache, the cost of the miss, and advice.

A tenant is told only about its own prompts. If blocks left the cache, the tenant learns only
whether its requested retention had passed (`expired`) or not (`evicted`). Only the operator can see
which tenant caused an eviction.
"""

from typing import Literal

import msgspec

from gateway.diagnosis.advice import ADVICE
from gateway.diagnosis.comparison import Change, Comparison, Divergence
from gateway.diagnosis.parts import PartKind

Reason = Literal[
    "none",
    "never_seen",
    "previous_not_found",
    "unavailable",
    "model_changed",
    "salt_changed",
    "group_changed",
    "below_minimum",
    "tools_changed",
    "system_changed",
    "messages_changed",
    "template_changed",
    "evicted",
    "expired",
    "no_state",
]
_OF_KIND: dict[PartKind | None, Reason] = {
    "tools": "tools_changed",
    "system": "system_changed",
    "messages": "messages_changed",
    None: "template_changed",
}


class CacheMiss(msgspec.Struct, frozen=True, kw_only=True):
    """A cache miss: its reason (the change that lost most tokens), its place and its cost.

    None means unknown. `matched_tokens` is set if fewer tokens could be used than were cached,
    since a recurrent state was missing. Without the change, `reusable_tokens` of the earlier prompt
    could have been reused. Of these, `lost_tokens` were computed again, in `lost_ms` at this
    prompt's speed. `token` is the first lost token, and `part` the request's field that holds it.
    `before` and `after` are the texts of the two prompts around the token.
    """

    reason: Reason
    compared_with: str | None = None
    cached_tokens: int
    matched_tokens: int | msgspec.UnsetType = msgspec.UNSET
    reusable_tokens: int | None = None
    lost_tokens: int | None = None
    lost_ms: float | None = None
    part: str | None = None
    token: int | None = None
    change: Change | None = None
    before: str | None = None
    after: str | None = None
    advice: str | None = None


def cache_miss(
    compared: Comparison, cached: int, s_per_token: float | None, matched: int = 0
) -> CacheMiss:
    """Return why no more than `cached` tokens of a prompt came from the cache.

    `matched` counts the tokens that were cached. `matched` exceeds `cached` if the recurrent state
    at the end of these tokens was missing. `s_per_token` is the seconds to compute an uncached
    token, or None if unknown.
    """
    seen = compared.seen
    unknown = _without_costs(compared, cached)
    if unknown is not None or seen is None:
        return CacheMiss(
            reason=unknown or "never_seen",
            compared_with=None if seen is None else seen.request_id,
            cached_tokens=cached,
            advice=ADVICE.get(unknown or "never_seen"),
        )
    reusable = _reusable(compared)
    lost = max(0, reusable - cached)
    reason = _reason(compared, cached, reusable, lost)
    if reason in ("evicted", "expired") and matched >= cached + compared.block_size:
        reason = "no_state"
    told = CacheMiss(
        reason=reason,
        compared_with=seen.request_id,
        cached_tokens=cached,
        matched_tokens=matched if matched > cached else msgspec.UNSET,
        reusable_tokens=reusable,
        lost_tokens=lost,
        lost_ms=None if s_per_token is None else round(1000 * lost * s_per_token, 3),
        advice=ADVICE.get(reason),
    )
    return _placed(told, compared.divergence)


def _placed(told: CacheMiss, at: Divergence | None) -> CacheMiss:
    if told.reason in ("evicted", "expired", "no_state"):
        return msgspec.structs.replace(told, token=told.cached_tokens)
    if at is None or told.reason != _OF_KIND[at.kind]:
        return told
    return msgspec.structs.replace(
        told,
        part=at.part,
        token=at.token,
        change=at.change,
        before=at.before,
        after=at.after,
        advice=ADVICE.get(at.change, told.advice),
    )


def _without_costs(compared: Comparison, cached: int) -> Reason | None:
    """Return a reason whose costs are not shown, if any applies.

    A caller with another salt must not even see a prompt's length.
    """
    new, seen = compared.new, compared.seen
    if not compared.is_known:
        return "unavailable"
    if seen is None and compared.named is not None:
        return "previous_not_found"
    if seen is not None and seen.salt != new.salt:
        return "salt_changed"
    prompt = len(new.token_ids)
    if cached >= prompt - 1:
        return "none"
    if prompt <= compared.block_size:
        return "below_minimum"
    return "never_seen" if seen is None else None


def _reusable(compared: Comparison) -> int:
    """Count the reusable tokens: the earlier prompt's whole KV blocks.

    The last token of the new prompt is excluded, since it is always computed.
    """
    assert compared.seen is not None
    kept = len(compared.seen.token_ids) // compared.block_size * compared.block_size
    return min(kept, len(compared.new.token_ids) - 1)


def _reason(compared: Comparison, cached: int, reusable: int, lost: int) -> Reason:
    """Find the reason that lost most tokens, or "none" if less than a KV block was lost."""
    new, seen, block = compared.new, compared.seen, compared.block_size
    assert seen is not None
    if lost < block:
        return "none"
    if seen.group_id != new.group_id:
        return "group_changed"
    if seen.fingerprint != new.fingerprint:
        return "model_changed"
    unchanged = min(compared.common, reusable)
    gone, changed = unchanged - cached, reusable - unchanged
    if gone >= block and gone >= changed:
        return "expired" if _has_lapsed(compared, cached) else "evicted"
    return "none" if compared.divergence is None else _OF_KIND[compared.divergence.kind]


def _has_lapsed(compared: Comparison, cached: int) -> bool:
    assert compared.seen is not None
    asked = [mark.seconds for mark in compared.seen.marks if mark.num_tokens > cached]
    return bool(asked) and compared.age_s >= max(asked)
