"""A replay of prompts and given answers through the drafters, without a model.

Several texts run at once, and the next text starts when a text ends. A draft's tokens are accepted
while they agree with the answer. Prompts and answers enter a prefix cache, as on a server.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field
from itertools import count
from time import thread_time

import numpy as np

from cli.simulation.drafted_texts import DraftedText
from engine.config import StepSettings
from engine.drafting.composition import choose_drafts
from engine.drafting.draft import Draft, DraftSource
from engine.drafting.lengths import StepSeconds
from engine.link.messages import SamplingParams
from engine.sequences.sequence import Sequence
from prefix_cache.cache import PrefixCache
from prefix_cache.hashing import block_keys
from prefix_cache.namespace import NamespacePath, derive_namespace

BLOCK_SIZE = 16


@dataclass(slots=True)
class SourceCounts:
    """The drafts of one source, and their drafted and accepted tokens."""

    drafts: int = 0
    drafted: int = 0
    accepted: int = 0


@dataclass(slots=True)
class LoadCounts:
    """The counts of a replay with some number of texts at once."""

    rows: int
    tokens: int = 0
    row_steps: int = 0
    seconds: float = 0.0
    plain_seconds: float = 0.0  # predicted seconds to generate the same tokens without drafts
    # CPU seconds in each step that decodes all `rows` texts: for drafting while the device waits,
    # and for preparing the next drafts while the device computes.
    drafting_seconds: list[float] = field(default_factory=list)
    preparing_seconds: list[float] = field(default_factory=list)
    sources: dict[DraftSource, SourceCounts] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Running:
    sequence: Sequence
    answer: list[int]

    @property
    def left(self) -> int:
        return len(self.answer) - self.sequence.num_output


class DraftReplay:
    """A cache and drafters through which texts are replayed, one load after another."""

    def __init__(self, num_tokens: int, step_seconds: StepSeconds) -> None:
        """Create a cache of `num_tokens` tokens. `step_seconds` predicts the time of a step."""
        self._cache = PrefixCache(num_blocks=num_tokens // BLOCK_SIZE, block_size=BLOCK_SIZE)
        most = StepSettings().max_running
        self._drafting = choose_drafts(self._cache.tree, step_seconds, most_rows=most)
        self._step_seconds = step_seconds
        self._ids = count(1)
        self._now = 0.0

    def run(self, texts: Ordered[DraftedText], rows: int) -> LoadCounts | None:
        """Replay all texts, `rows` at once.

        Returns None if the cache has no room for `rows` texts.
        """
        counts, waiting, running = LoadCounts(rows), list(reversed(texts)), list[_Running]()
        while waiting or running:
            while waiting and len(running) < rows:
                started = self._start(waiting[-1])
                if started is None:
                    return None
                waiting.pop()
                running.append(started)
            if not self._step(running, counts):
                return None
            for one in [one for one in running if not one.left]:
                running.remove(one)
                self._end(one.sequence)
        return counts

    def _start(self, text: DraftedText) -> _Running | None:
        self._now += 1.0
        namespace = derive_namespace(b"simulation", b"", (text.tenant,))
        path, length = NamespacePath.single(namespace), len(text.prompt)
        keys = block_keys(path, text.prompt, BLOCK_SIZE)
        lease = self._cache.acquire(path, text.prompt, owner=text.tenant, now=self._now)
        if lease is None:
            return None
        sequence = Sequence(
            request_id="",
            client=b"",
            flow=text.tenant,
            weight=1.0,
            path=path,
            block_keys=keys,
            sampling=SamplingParams(max_tokens=len(text.answer)),
            prompt_len=length,
            arrived=self._now,
            tokens=np.concatenate([text.prompt, np.zeros(len(text.answer), np.int32)]),
            num_tokens=length,
        )
        sequence.hold(lease, next(self._ids))
        self._cache.commit(lease, text.prompt, length, keys, now=self._now)
        self._drafting.prepare(sequence)
        answer: list[int] = text.answer.tolist()
        sequence.append(answer[0])
        return _Running(sequence, answer)

    def _step(self, running: list[_Running], counts: LoadCounts) -> bool:
        """Decode a token and the accepted draft of each text. Return False if the cache is full."""
        self._now += 1.0
        decodes = [one.sequence for one in running if one.left]
        began = thread_time()
        drafts = self._drafting.propose(decodes) if decodes else {}
        proposed = thread_time()
        for sequence in decodes:
            self._drafting.prepare(sequence)
        if len(decodes) == counts.rows:
            counts.drafting_seconds.append(proposed - began)
            counts.preparing_seconds.append(thread_time() - proposed)
        rows, drafted = len(decodes), sum(len(draft.token_ids) for draft in drafts.values())
        before = counts.tokens
        for one in running:
            if one.left and not self._advance(one, drafts.get(one.sequence), counts):
                return False
        counts.row_steps += rows
        counts.seconds += self._step_seconds(rows + drafted) or 0.0
        counts.plain_seconds += (
            (self._step_seconds(rows) or 0.0) * (counts.tokens - before) / max(rows, 1)
        )
        return True

    def _advance(self, one: _Running, draft: Draft | None, counts: LoadCounts) -> bool:
        sequence, at = one.sequence, one.sequence.num_output
        accepted = 0
        if draft is not None:
            last = min(len(draft.token_ids), one.left - 1)
            while accepted < last and draft.token_ids[accepted] == one.answer[at + accepted]:
                accepted += 1
            of_source = counts.sources.setdefault(draft.source, SourceCounts())
            of_source.drafts += 1
            of_source.drafted += len(draft.token_ids)
            of_source.accepted += accepted
        for token_id in one.answer[at : at + accepted + 1]:
            sequence.append(token_id)
        counts.tokens += accepted + 1
        return self._commit(sequence)

    def _commit(self, sequence: Sequence) -> bool:
        lease, known = sequence.lease, sequence.num_tokens
        if lease is None or not self._cache.extend(lease, known, now=self._now):
            return False
        keys = sequence.block_keys
        self._cache.commit(lease, sequence.token_ids, known - 1, keys, now=self._now)
        return True

    def _end(self, sequence: Sequence) -> None:
        self._drafting.ended(sequence)
        if sequence.lease is not None:
            self._cache.release(sequence.lease, now=self._now)
