"""The queries of flows about their own prefixes: find cached ones, list retained ones."""

from __future__ import annotations

from engine.errors import InvalidRequest
from engine.link.codec import DecodeError, unpack_token_ids
from engine.link.query_messages import (
    ListMarked,
    MarkedPrefix,
    MarkedPrefixes,
    Probe,
    Probed,
)
from engine.link.stats.tier_stats import TierTokens
from engine.scheduling.step_times import StepTimes
from engine.sequences.intake import path_of
from engine.sequences.prefix_loads import state_tier
from prefix_cache.cache import PrefixCache
from prefix_cache.tree.probe import probe
from storage.move import Tier


class PrefixQueries:
    """The answers to queries on prefixes. Used by one thread only."""

    def __init__(self, cache: PrefixCache, times: StepTimes) -> None:
        self._cache = cache
        self._times = times

    def answer(self, query: Probe | ListMarked, now: float) -> Probed | MarkedPrefixes:
        """Answer a query about a flow's prefixes."""
        match query:
            case Probe():
                return self._probed(query)
            case ListMarked():
                found = self._cache.retained.listed(query.flow, now=now)
                size = self._cache.block_size
                prefixes = [
                    MarkedPrefix(
                        prefix_id=one.prefix_id,
                        tokens=one.num_blocks * size,
                        tiers=TierTokens(*(one.held[tier] * size for tier in Tier)),
                        seconds=one.retained_for,
                        left=one.left,
                    )
                    for one in found
                ]
                return MarkedPrefixes(query_id=query.query_id, prefixes=prefixes)

    def _probed(self, query: Probe) -> Probed:
        try:
            path = path_of(query.namespaces, query.adapter_start)
            token_ids = unpack_token_ids(query.token_ids)
        except (DecodeError, InvalidRequest) as error:
            code = InvalidRequest.code
            return Probed(
                query_id=query.query_id, tiers=TierTokens(), code=code, message=str(error)
            )
        size = self._cache.block_size
        found, partial, matched = probe(self._cache.tree, path, token_ids)
        device = (found.device + found.coming) * size + partial
        tiers = TierTokens(device, found.host * size, found.disk * size)
        saved = self._times.prefill(0, tiers.total) if self._times.is_measured else None
        beyond = matched if matched > tiers.total else 0
        return Probed(
            query_id=query.query_id,
            tiers=tiers,
            saved_seconds=saved,
            matched=beyond,
            state_tier=state_tier(found, tiers),
        )
