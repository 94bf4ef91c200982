"""The folding of deleted tenants' old flushes into one flush of everything.

A deleted tenant's flush would stay recorded for good, for engines that are away. Instead

    flush of t1 | flush of t2 | ... an hour or more ... | flush of w      all deleted, all old
                          becomes      "w": flush everything

Every engine that connects is sent all recorded flushes. An engine that knows the id w has done w
and the earlier flushes, and does nothing. An engine that does not know w has been away since. Such
an engine drops all its blocks, of the deleted tenants and of all others.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from gateway.state.records import CacheFlush

# seconds after which an engine that is still absent loses all its KV blocks
KEPT_S = 30 * 86_400.0
# maximum number of recorded flushes of deleted tenants; an engine remembers four times as many ids
MOST_KEPT = 16_384
# Minimum seconds between a folded flush and the flush that replaces it. Another gateway's flush
# reaches an engine two seconds later, and clocks may differ.
APART_S = 3_600.0


class Folding(NamedTuple):
    """A flush of everything, and the tenants whose flushes it replaces."""

    into: CacheFlush
    tenant_ids: Sequence[str]


def folding(
    flushes: Sequence[CacheFlush], tenant_ids: Collection[str], now: float
) -> Folding | None:
    """Choose the flushes to fold, the oldest first; None: no flush is folded.

    `tenant_ids` are the existing tenants, and `now` is seconds since the epoch.
    """
    there = {None, *tenant_ids}
    deleted = [one for one in flushes if one.tenant_id not in there]
    old = sum(one.at < now - KEPT_S for one in deleted)
    few = deleted[: max(old, len(deleted) - MOST_KEPT)]
    if not few:
        return None
    last = few[-1]
    known = [one for one in few if one.at <= last.at - APART_S]
    everything = [one for one in flushes if one.tenant_id is None]
    if not known or any(one.at > last.at - APART_S for one in everything):
        return None
    into = CacheFlush(id=last.id, tenant_id=None, at=last.at, again_s=last.again_s)
    return Folding(into, [one.tenant_id for one in (*known, last) if one.tenant_id is not None])
