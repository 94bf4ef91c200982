"""The choice of answers to check, and their checks, one at a time.

    started --picked--> watched --ended--> waiting --idle--> running --> agreed | differed
                           |                 ^  |               |
                           `-> dropped       |  `-> dropped     `--others wait--> waiting
                                             `-------------------------------------'

While an answer is watched, the log probabilities of its tokens are kept as they were sampled. A
request (the check) then scores prompt and answer, and neither reads nor writes the cache. A check
belongs to no tenant, evicts nothing, and counts for no limit. It starts when no other request
exists, or after LATE_S seconds even if a few sequences decode. If another request waits, the check
is cancelled, and starts again later.

Elsewhere: the running of requests (`core.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import msgspec

from engine.link.event_messages import Event, Finished, TokenLogprobs
from engine.link.messages import Generate, SamplingParams, pack_token_ids
from engine.link.stats.engine_stats import SentinelStats
from engine.sentinel.comparison import compare
from engine.sentinel.report import AnswerOrigin, Reporter
from engine.sequences.request_checks import MAX_PROMPT_REPORT
from engine.sequences.sequence import Sequence, WatchedAnswer

NOBODY = ""  # flow of checks; it has no quota and no part of a tier
LATE_S = 30.0  # busy seconds after which a check may run at the same time as a few decodes
BESIDE = 8  # number of batch slots for each sequence that may decode during a check
WATCHED_S = 60.0  # seconds after which another answer may be watched instead
KEPT_S = 300.0  # seconds after which an answer that was not checked is dropped
TRIES = 5
REQUEST_ID = "sentinel-"
_SCORED = SamplingParams(max_tokens=0, temperature=0.0, prompt_logprobs=0)
_REPORTED = 16  # bytes of log probabilities of one token

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Check:
    """An answer to be computed again: its tokens and the log probabilities that clients got."""

    flow: str
    request: Generate
    first: int
    served: list[float]
    origin: AnswerOrigin
    since: float
    tries: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """The load of an engine without the sentinel's checks, in sequences."""

    alive: int
    waiting: int  # number of those in `alive` that are waiting or loading


class Sentinel:
    """The sentinel of one engine. Used by one thread only."""

    def __init__(
        self,
        reporter: Reporter,
        has_room: Callable[[int], bool],
        *,
        share: float,
        max_running: int,
        max_model_len: int,
        dtype: str,
    ) -> None:
        """Check a fraction `share` of the answers to cached prompts, between 0 and 1.

        `has_room(n)` returns whether n tokens fit into the free blocks.
        """
        self._reporter = reporter
        self._has_room = has_room
        self._share = share
        self._most_beside = max_running // BESIDE
        self._max_model_len = max_model_len
        self._dtype = dtype
        self._due = 0.0  # sum of `share` over the answers since the last chosen one
        self._watched: Sequence | None = None
        self._watched_since = 0.0
        self._check: _Check | None = None
        self._numbers = count()
        self._running: str | None = None
        self.stats = SentinelStats()

    @property
    def running(self) -> str | None:
        """The id of the request that computes an answer again, or None."""
        return self._running

    @property
    def has_one(self) -> bool:
        """True if an answer is waiting to be computed again, or is being computed."""
        return self._check is not None

    def started(self, sequence: Sequence, now: float) -> None:
        """Watch a sequence that has just started for the first time, if it should be checked.

        If a long answer has been watched for too long, only its first tokens will be checked, so
        that other answers are checked too.
        """
        if not self._share or not self._may_check(sequence):
            return
        self._due = min(self._due + self._share, 1.0)
        if self._due < 1.0:
            return
        if self._watched is not None and now - self._watched_since > WATCHED_S:
            self.ended(self._watched, now)
        if self._watched is not None or self._check is not None:
            return
        self._due = 0.0
        is_told = sequence.sampling.num_logprobs is not None
        if not is_told:
            sequence.sampling = msgspec.structs.replace(sequence.sampling, num_logprobs=0)
        sequence.watch, self._watched = WatchedAnswer(is_told), sequence
        self._watched_since = now

    def ended(self, sequence: Sequence, now: float) -> None:
        """Keep the answer of a watched sequence that has ended, if it has one and may be kept."""
        watch = sequence.watch
        if sequence is not self._watched or watch is None:
            return
        self._watched = None
        room = self._max_model_len - 1 - sequence.prompt_len
        served = watch.logprobs[: max(room, 0)]
        is_whole = len(watch.logprobs) == sequence.num_output
        if not served or not is_whole or not sequence.use_cache:
            self._drop()
            return
        length = sequence.prompt_len + len(served)
        self._check = _Check(
            flow=sequence.flow,
            request=Generate(
                request_id="",
                token_ids=pack_token_ids(sequence.tokens[:length]),
                namespaces=sequence.path.spans,
                block_keys=b"",
                flow=NOBODY,
                priority="batch",
                sampling=_SCORED,
                use_cache=False,
                is_counted=False,
                drafts=False,
                adapter=sequence.adapter,
            ),
            first=sequence.prompt_len,
            served=served,
            origin=self._reporter.origin(sequence, len(served)),
            since=now,
        )

    def failed(self, sequence: Sequence) -> None:
        """Forget a watched sequence that has failed."""
        if sequence is self._watched:
            self._watched = None
            self._drop()

    def due(self, load: Load, now: float) -> Generate | None:
        """Return the request to start now, or None if no request is due."""
        check = self._check
        if check is None or self._running is not None:
            return None
        if now - check.since > KEPT_S or check.tries >= TRIES:
            self._drop()
            return None
        is_late = now - check.since > LATE_S
        most = self._most_beside if is_late else 0
        if load.waiting or load.alive > most or not self._has_room(check.first + len(check.served)):
            return None
        check.tries += 1
        self._running = f"{REQUEST_ID}{next(self._numbers)}"
        return msgspec.structs.replace(check.request, request_id=self._running)

    def give_way(self) -> str | None:
        """Stop the running check. Return the id of the request for the caller to cancel.

        The check will be due again later.
        """
        running, self._running = self._running, None
        return running

    def forget(self, flow: str | None) -> str | None:
        """Drop the kept answer if it belongs to `flow`. If `flow` is None, drop any answer.

        Return the id of the request to cancel, or None.
        """
        if self._check is None or flow not in (None, self._check.flow):
            return None
        self._drop()
        return self.give_way()

    def heard(self, event: Event) -> None:
        """Compare the answer with the result of the request that computed it again."""
        check = self._check
        if check is None or event.request_id != self._running:
            return
        self._running = None
        scores = event.prompt_logprobs if isinstance(event, Finished) else None
        if scores is None:
            self._drop()
        else:
            self._compare(check, scores)

    def _compare(self, check: _Check, scores: tuple[TokenLogprobs, ...]) -> None:
        again = [one.chosen for one in scores[check.first - 1 :]]
        comparison = compare(check.served, again, check.first, self._dtype)
        before, self._check = self.stats, None
        self.stats = msgspec.structs.replace(
            before,
            checked=before.checked + 1,
            tokens=before.tokens + len(again),
            differed=before.differed + comparison.differs,
            largest=max(before.largest, comparison.mean / comparison.bound),
        )
        if comparison.differs:
            report = self._reporter.report(check.origin, comparison)
            _log.error(
                "an answer from the cache is not what the model computes without it; please send "
                "us this line, which has none of its text: %s",
                msgspec.json.encode(report).decode(),
            )

    def _drop(self) -> None:
        self._check = None
        self.stats = msgspec.structs.replace(self.stats, dropped=self.stats.dropped + 1)

    def _may_check(self, sequence: Sequence) -> bool:
        sampling = sequence.sampling
        return (
            sequence.num_computed > 0
            and sequence.use_cache
            and sequence.modules is None  # prompts with modules are not checked
            and sampling.max_tokens > 0
            and sampling.prompt_logprobs is None
            and len(sequence.tokens) * _REPORTED <= MAX_PROMPT_REPORT
        )
