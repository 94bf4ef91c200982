"""An engine without a model: it sends scripted tokens, and counts how requests end.

It implements `engine.link.interface.Engine`. Its prefix cache is a set of block keys, so reuse is
as in the real engine: namespaces share nothing. Any thread may read counters, and wait for them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, cast

import msgspec
import numpy as np

from engine.errors import EngineDied, EngineError
from engine.link.carrying_messages import (
    BeginImport,
    EndImport,
    ImportState,
    PrefixUnits,
    ReadPrefix,
    WriteImport,
)
from engine.link.erasure import Erasure
from engine.link.event_messages import (
    DraftCounts,
    Failed,
    Finished,
    Reused,
    Timing,
    TokenLogprobs,
    Tokens,
    WrittenAndRead,
)
from engine.link.gateway_end.in_time import in_time
from engine.link.interface import ANSWER_S, OnEnd, ReplicaHealth
from engine.link.messages import FlowQuota, Generate, Welcome
from engine.link.query import Query, R
from engine.link.query_messages import (
    AdapterDropped,
    AdapterRead,
    DropAdapter,
    Flush,
    Flushed,
    ForgetMarked,
    ListMarked,
    MarkedForgotten,
    MarkedPrefix,
    MarkedPrefixes,
    Pin,
    Pinned,
    Probe,
    Probed,
    ReadAdapter,
    StatsQuery,
    StatsReply,
    Unpin,
    Unpinned,
)
from engine.link.stats.engine_stats import EngineStats
from engine.link.stats.flow_stats import PinStats
from engine.link.stats.tier_stats import PoolStats, TierTokens
from engine.link.view_messages import (
    Overview,
    OverviewQuery,
    Prefixes,
    PrefixesQuery,
    Sequences,
    SequencesQuery,
    TreeLevel,
    TreeQuery,
)
from prefix_cache.hashing import block_keys
from prefix_cache.namespace import NamespacePath
from tests.doubles.engine.logprobs import pack_logprobs
from tests.doubles.gateway.keys import split_keys

Script = Callable[[Generate], Sequence[int]]
Logits = Callable[[Generate], bytes]  # float32 logit of each candidate
Pace = Callable[[Generate, int], Awaitable[None]]

EOS = 257
WELCOME = Welcome(
    engine_id="fake",
    fingerprint=b"fingerprint",
    vocab_size=260,
    block_size=16,
    max_model_len=4096,
    eos_token_ids=(EOS,),
    device="none",
    dtype="none",
    hidden_size=8,
)
ENGINE_SECONDS = 0.25  # reported seconds in the engine, the same for every sequence
TIMING = Timing(queue=0.001, match=0.002, load=0.004, prefill=0.008)


def parrot(request: Generate) -> list[int]:
    """Answer with the prompt's tokens."""
    return prompt_of(request)


def prompt_of(request: Generate) -> list[int]:
    """Return the prompt's token ids."""
    ids: list[int] = np.frombuffer(request.token_ids, "<i4").tolist()
    return ids


def embedding_of(prompt: Sequence[int]) -> bytes:
    """Return eight numbers that depend on every token of the prompt and on its place."""
    made = np.random.default_rng(list(prompt)).normal(size=WELCOME.hidden_size)
    return made.astype("<f4").tobytes()


def logits_of(request: Generate) -> bytes:
    """Return a logit for each candidate: how often the prompt has the token."""
    counts = [prompt_of(request).count(one) for one in candidates_of(request)]
    return np.array(counts, "<f4").tobytes()


def candidates_of(request: Generate) -> list[int]:
    """Return the token ids for which the request wants logits."""
    ids: list[int] = np.frombuffer(request.candidates, "<i4").tolist()
    return ids


def prediction_of(request: Generate) -> list[int]:
    """Return the token ids that the request expects the answer to repeat."""
    ids: list[int] = np.frombuffer(request.prediction, "<i4").tolist()
    return ids


def saying(text: str) -> Script:
    """Answer with `text`. Each byte of it is a token of the tiny tokenizer."""
    return lambda _: list(text.encode())


async def at_once(_: Generate, __: int) -> None:
    """Send tokens without delay, but let other tasks run between tokens."""
    await asyncio.sleep(0)


def hanging_at(position: int) -> Pace:
    """Send `position` tokens, then nothing until the request is cancelled."""

    async def pace(_: Generate, at: int) -> None:
        await (asyncio.Event().wait() if at >= position else asyncio.sleep(0))

    return pace


def failing_at(position: int, error: EngineError) -> Pace:
    """Send `position` tokens, then raise `error`."""

    async def pace(_: Generate, at: int) -> None:
        await asyncio.sleep(0)
        if at >= position:
            raise error

    return pace


def timed(first_s: float, gap_s: float) -> Pace:
    """Send the first token after `first_s` seconds, then a token every `gap_s`."""

    async def pace(_: Generate, at: int) -> None:
        await asyncio.sleep(gap_s if at else first_s)

    return pace


@dataclass(slots=True)
class Computed:
    """Token counts of a request. The whole prompt is computed at once, before the first token."""

    flow: str
    prompt: int
    cached: int
    generated: int = 0
    is_lost: bool = False  # the engine has died without an event


class FakeEngine:
    """An engine that sends the tokens of `script`, with the times and errors of `pace`."""

    def __init__(self, welcome: Welcome | None = WELCOME) -> None:
        self.welcome = welcome
        self.is_stalled = False
        self.handshake_error: str | None = None
        self.replicas: Mapping[str, ReplicaHealth] = {}
        self.router_answers: bool | None = None
        self._changed = threading.Condition()
        self.reset()

    def reset(self) -> None:
        """Restore the default script, an empty cache and zero counters."""
        self.script: Script = parrot
        self.logits: Logits = logits_of
        self.pace: Pace = at_once
        self.per_step = 1
        self.drafts: DraftCounts = {}  # the counts of drafts that are reported for every sequence
        self.requests: list[Generate] = []
        # token counts that the engine made itself, by request id
        self.computed: dict[str, Computed] = {}
        self.erasure: Erasure | None = None  # the erasure that is reported with each flush
        self.erasures: dict[str | None, Erasure] = {}  # other erasures, by the flush's id
        self.running = 0
        self.finished = 0
        self.failed = 0
        self.cancelled = 0
        self.pin_error: Exception | None = None
        self.pinned: dict[str, int] = {}
        self.flows: dict[str, FlowQuota] | None = None
        self.recorded: dict[str, str | None] = {}  # flows of recorded flushes, by flush id
        self.caches_answers = False  # as the real engine's default
        self._cached_keys: set[bytes] = set()
        self.marks: dict[str, dict[bytes, MarkedPrefix]] = {}  # marked prefixes by flow and id
        self.holds_queries = False  # True: queries about prefixes are not answered for now
        self.held_queries = 0  # number of these queries that wait for an answer
        self.forgotten_copies: list[tuple[str, bytes]] = []
        self._unread: dict[bytes, str] = {}  # keys that no request found yet, and their writers

    def lose_cache(self) -> None:
        """Drop all cached blocks."""
        self._cached_keys.clear()

    async def generate(
        self, request: Generate, on_end: OnEnd | None = None
    ) -> AsyncGenerator[Tokens | Finished, None]:
        """Yield the scripted tokens up to `max_tokens`, then the request's end."""
        self.requests.append(request)
        cached, cache = self._look_up(request)
        ended, did = False, Computed(request.flow, len(prompt_of(request)) - cached, cached)
        self.computed[request.request_id] = did
        self._count(running=1)
        try:
            written = self._mark(request, cached)
            script = list(self.script(request))
            planned = script[: request.sampling.max_tokens]
            while (told := did.generated) < len(planned):
                await self.pace(request, told)
                step = tuple(planned[told : told + self.per_step])
                did.generated += len(step)
                yield _tokens(request, step, None if told else cached, written)
            await self.pace(request, told)
            ended = True
            if self.caches_answers:
                self._cache_answer(request, planned)
            stopped = len(script) < request.sampling.max_tokens
            did.generated += stopped
            end = Finished(
                request_id=request.request_id,
                reason="stop" if stopped else "length",
                stop_token_id=EOS if stopped else None,
                stop_logprobs=_logprobs(request, EOS) if stopped else None,
                prompt_tokens=did.prompt + cached,
                reused=Reused(TierTokens(cached), written=written),
                computed_tokens=did.prompt,
                completion_tokens=did.generated,
                engine_seconds=ENGINE_SECONDS,
                cache=cache,
                prompt_logprobs=None if planned else _scores(request),
                drafts=self.drafts,
                embedding=embedding_of(prompt_of(request)) if request.embeds else b"",
                candidates=self.logits(request),
            )
            if on_end is not None:
                on_end(end)
            yield end
        except EngineError as error:
            ended = True
            self._count(failed=1)
            if not did.generated:  # the request was refused, so no token is sent
                did.prompt = did.cached = 0
            if on_end is not None and not isinstance(error, EngineDied):
                on_end(_failed(request, error, did))
            raise
        finally:
            if not ended and on_end is not None:
                on_end(_cancelled(request, did, cache))
            self._count(running=-1, cancelled=not ended, finished=ended)

    async def ask(self, query: Query[R], within_s: float | None = ANSWER_S) -> R:
        """Return the reply of `answer`, within `within_s` seconds."""
        return cast("R", await in_time(self.answer(query), within_s))

    async def answer(self, query: Query[Any]) -> object:
        """Reply to a query from the double's own data. Lists of sequences and nodes are empty."""
        if isinstance(query, ListMarked | Probe):
            await self._held()
        match query:
            case StatsQuery():
                return StatsReply(query_id="", stats=self._stats())
            case OverviewQuery():
                return self._overview()
            case SequencesQuery():
                return Sequences(query_id="", total=self.running, sequences=[])
            case TreeQuery(node=node):
                return TreeLevel(query_id="", is_known=node is None)
            case PrefixesQuery():
                return Prefixes(query_id="", prefixes=[], surveyed=0, nodes=0, age_s=0.0)
            case Flush(flush_id=flush_id):
                erasure = self.erasures.get(flush_id, self.erasure)
                return Flushed(query_id="", blocks=self._flush(), erasure=erasure)
            case ReadPrefix():
                return PrefixUnits(query_id="", unit_bytes=16, blocks=1)
            case BeginImport() | WriteImport() | EndImport():
                return ImportState(query_id="")
            case Pin():
                return Pinned(query_id="", blocks=self._pin(query))
            case ReadAdapter():
                return AdapterRead(query_id="", digest=bytes(32), rank=8, num_bytes=1024)
            case DropAdapter():
                return AdapterDropped(query_id="", blocks=2)
            case Unpin():
                return Unpinned(query_id="", blocks=self._unpin(query.pin_id))
            case Probe():
                return self._probe(query)
            case ListMarked():
                marks = self.marks.get(query.flow, {})
                return MarkedPrefixes(query_id="", prefixes=list(marks.values()))
            case ForgetMarked():
                return MarkedForgotten(query_id="", blocks=self._forget(query))
        raise AssertionError(query)

    def share_cache_of(self, other: FakeEngine) -> None:
        """Share one set of cached blocks with `other` from now on."""
        self._cached_keys, self._unread = other._cached_keys, other._unread

    async def _held(self) -> None:
        self.held_queries += 1
        while self.holds_queries:  # noqa: ASYNC110 (set by another thread)
            await asyncio.sleep(0.001)
        self.held_queries -= 1

    def flush_recorded(self, flushes: Mapping[str, str | None]) -> None:
        """Store the recorded flushes, without dropping any block."""
        self.recorded = dict(flushes)

    def partition(self, flows: Mapping[str, FlowQuota]) -> None:
        """Store the flows' quotas, without dividing any memory."""
        self.flows = dict(flows)

    def wait_until(self, holds: Callable[[FakeEngine], bool], timeout: float = 60.0) -> bool:
        """Wait until `holds(self)`; return False if it does not within `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: holds(self), timeout)

    def _stats(self) -> EngineStats:
        return EngineStats(
            engine_id="fake",
            fingerprint=b"fingerprint",
            uptime_s=1.0,
            running=self.running,
            waiting=0,
            preemptions=0,
            steps=0,
            generated_tokens=0,
            windows={},
            pool=PoolStats(block_size=16, total=1, free=1, used=0, evictable=0, leased=0),
            tree_nodes=0,
            tree_depth=0,
            flows={},
            pins=PinStats(most=1000, claimed=sum(self.pinned.values()), pinned=dict(self.pinned)),
        )

    def _overview(self) -> Overview:
        return Overview(
            query_id="",
            engine_id="fake",
            uptime_s=1.0,
            found=TierTokens(),
            computed_tokens=0,
            generated_tokens=0,
            waiting=0,
            running=self.running,
            loads_chosen=0,
            loads_refused=0,
        )

    def _flush(self) -> int:
        """Drop all cached blocks, even if the query names fewer, and return their number."""
        forgotten = len(self._cached_keys)
        self._cached_keys.clear()
        self._unread.clear()
        return forgotten

    def _pin(self, prefix: Pin) -> int:
        """Cache the prefix's blocks, or raise `pin_error`; return their number."""
        if self.pin_error is not None:
            raise self.pin_error
        keys = split_keys(prefix.block_keys)
        with self._changed:
            self.pinned[prefix.pin_id] = len(keys)
            self._cached_keys.update(keys)
            self._changed.notify_all()
        return len(keys)

    def _unpin(self, pin_id: str) -> int:
        """Unpin a prefix; its blocks stay cached. Return their number."""
        with self._changed:
            self._changed.notify_all()
            return self.pinned.pop(pin_id, 0)

    def _probe(self, query: Probe) -> Probed:
        """Count the tokens of the leading whole blocks that are cached."""
        ids = np.frombuffer(query.token_ids, "<i4")
        path = NamespacePath(query.namespaces)  # type: ignore[arg-type]
        keys = split_keys(block_keys(path, ids[:-1], WELCOME.block_size))
        hits = len(list(takewhile(self._cached_keys.__contains__, keys)))
        return Probed(query_id="", tiers=TierTokens(16 * hits), saved_seconds=0.25)

    def _forget(self, query: ForgetMarked) -> int | None:
        """Forget a prefix's mark, but keep its blocks. Record requests to forget unmarked ones."""
        if not query.is_marked:
            self.forgotten_copies.append((query.flow, query.prefix_id))
        found = self.marks.get(query.flow, {}).pop(query.prefix_id, None)
        return None if found is None else found.tokens // 16

    def _look_up(self, request: Generate) -> tuple[int, WrittenAndRead]:
        """Count the prompt's cached tokens, then cache all of its blocks."""
        keys = split_keys(request.block_keys) if request.use_cache else []
        hits = 0
        while hits < len(keys) and keys[hits] in self._cached_keys:
            hits += 1
        writers = [self._unread.pop(key) for key in keys[:hits] if key in self._unread]
        first_reads = {writer: 16 * writers.count(writer) for writer in writers}
        written = keys[hits:] if request.writer else []
        self._unread.update(dict.fromkeys(written, request.writer))
        self._cached_keys.update(keys)
        # The last token is always computed, since its logits are needed.
        cached = min(hits * 16, len(prompt_of(request)) - 1)
        return cached, WrittenAndRead(16 * len(written), first_reads)

    def _mark(self, request: Generate, cached: int) -> tuple[int, ...]:
        """Store the request's marks, and return the number of tokens written for each mark."""
        keys, start, written = split_keys(request.block_keys), cached, []
        for mark in request.marks:
            blocks = mark.num_tokens // 16
            written.append(max(16 * blocks - start, 0))
            start = max(start, 16 * blocks)
            if blocks:
                tiers = TierTokens(16 * blocks)
                prefix = MarkedPrefix(
                    keys[blocks - 1], 16 * blocks, tiers, mark.seconds, mark.seconds
                )
                self.marks.setdefault(request.flow, {})[prefix.prefix_id] = prefix
        return tuple(written)

    def _cache_answer(self, request: Generate, answer: Sequence[int]) -> None:
        """Cache the blocks of the answer too, without its last token, which is never computed."""
        ids = np.array([*prompt_of(request), *answer[:-1]], np.int32)
        path = NamespacePath(request.namespaces)  # type: ignore[arg-type]
        keys = block_keys(path, ids, WELCOME.block_size)
        self._cached_keys.update(split_keys(keys))

    def _count(
        self, *, running: int = 0, cancelled: int = 0, finished: int = 0, failed: int = 0
    ) -> None:
        with self._changed:
            self.running += running
            self.cancelled += cancelled
            self.finished += finished
            self.failed += failed
            self._changed.notify_all()


def _cancelled(request: Generate, did: Computed, cache: WrittenAndRead) -> Finished:
    return Finished(
        request_id=request.request_id,
        reason="cancelled",
        prompt_tokens=len(prompt_of(request)),
        reused=Reused(TierTokens(did.cached)),
        computed_tokens=did.prompt,
        completion_tokens=did.generated,
        engine_seconds=ENGINE_SECONDS,
        cache=cache,
    )


def _failed(request: Generate, error: EngineError, did: Computed) -> Failed:
    return Failed(
        request_id=request.request_id,
        code=error.code,
        message=error.message,
        reused=Reused(TierTokens(did.cached)) if did.generated else None,
        computed_tokens=did.prompt,
        completion_tokens=did.generated,
    )


def _tokens(
    request: Generate, step: tuple[int, ...], cached: int | None, written: tuple[int, ...]
) -> Tokens:
    told = [one for token in step if (one := _logprobs(request, token)) is not None]
    return Tokens(
        request_id=request.request_id,
        token_ids=step,
        logprobs=tuple(told) or None,
        reused=None if cached is None else Reused(TierTokens(cached), written=written),
        timing=None if cached is None else TIMING,
        prompt_logprobs=None if cached is None else _scores(request),
    )


def _logprobs(request: Generate, token: int) -> TokenLogprobs | None:
    """Return logprobs in which `token` is the likeliest, or None if the request wants none."""
    wanted = request.sampling.num_logprobs
    if wanted is None:
        return None
    return pack_logprobs(-0.5, [(token + i, -0.5 - i) for i in range(wanted)])


def _scores(request: Generate) -> tuple[TokenLogprobs, ...] | None:
    """Return logprobs of all prompt tokens but the first. Each token is the second likeliest."""
    wanted = request.sampling.prompt_logprobs
    if wanted is None:
        return None
    return tuple(
        msgspec.structs.replace(
            pack_logprobs(-1.5, [(token - 1, -0.5), (token, -1.5)][:wanted]), rank=2
        )
        for token in prompt_of(request)[1:]
    )
