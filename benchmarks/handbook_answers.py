"""An engine in this process that answers questions about handbooks, and is judged."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.config import EngineConfig
from engine.link.event_messages import Finished
from engine.link.messages import Generate, SamplingParams, pack_token_ids
from engine.main import build_core
from engine.startup.loading import OpenedModel
from handbook.texts.cases import HandbookCase
from prefix_cache.hashing import block_keys
from prefix_cache.namespace import Namespace, NamespacePath
from tests.doubles.engine.memory_link import MemoryLink

LONGEST_ANSWER = 48


def room_for(cases: Sequence[HandbookCase], block_size: int) -> int:
    """Count the tokens of a pool that keeps the handbooks of all these cases cached."""
    longest = max(len(case.prompt) for case in cases)
    return len(cases) * (longest + LONGEST_ANSWER + 2 * block_size)


class AskedEngine:
    """An engine that answers rounds of questions and judges the answers."""

    def __init__(self, config: EngineConfig, opened: OpenedModel) -> None:
        self._link = MemoryLink(sleeps=True)
        self._core = build_core(config, opened, self._link)
        self._block_size = config.cache.block_size
        self._asked = 0

    def right(self, cases: Sequence[HandbookCase], *, cached: bool) -> list[bool]:
        """Ask all questions at once, and return whether each greedy answer is right.

        With `cached`, all handbooks must be found in the cache. Otherwise, no handbook may be
        found.
        """
        names = [self._ask(case) for case in cases]
        self._core.step()
        while not self._core.is_idle:
            self._core.step()
        answers = [self._answer(name, cached=cached) for name in names]
        return [answer == case.answer for answer, case in zip(answers, cases, strict=True)]

    def _ask(self, case: HandbookCase) -> str:
        self._asked += 1
        path = NamespacePath.single(Namespace(case.handbook.to_bytes(16)))
        ids = np.array(case.prompt, np.int32)
        request = Generate(
            request_id=str(self._asked),
            token_ids=pack_token_ids(case.prompt),
            namespaces=path.spans,
            block_keys=block_keys(path, ids, self._block_size),
            flow="flow",
            sampling=SamplingParams(max_tokens=LONGEST_ANSWER, temperature=0.0),
        )
        self._link.say(request)
        return request.request_id

    def _answer(self, name: str, *, cached: bool) -> list[int]:
        last = self._link.last(name)
        assert isinstance(last, Finished), last
        assert (2 * last.reused.tokens > last.prompt_tokens) == cached
        assert cached or not last.reused.tokens
        stop = [] if last.stop_token_id is None else [last.stop_token_id]
        return self._link.tokens(name) + stop
