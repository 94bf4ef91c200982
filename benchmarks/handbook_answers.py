"""Questions about handbooks with their answers, and an engine in this process to answer them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from engine.config import EngineConfig
from engine.link.event_messages import Finished
from engine.link.messages import Generate, SamplingParams, pack_token_ids
from engine.main import build_core
from engine.startup.loading import OpenedModel
from handbook.training.rows import TOKENS_PER_FACT, frame
from handbook.training.text import make_handbook, make_messages, make_questions
from prefix_cache.hashing import block_keys
from prefix_cache.namespace import Namespace, NamespacePath
from tests.doubles.engine.memory_link import MemoryLink

LONGEST_ANSWER = 48


@dataclass(frozen=True, slots=True)
class Case:
    """A chat of token ids up to its answer, and the right answer with its end."""

    handbook: int  # number of the handbook, which has its own namespace
    prompt: list[int]
    answer: list[int]


def draw_cases(tokenizer: Tokenizer, number: int, questions: int, tokens: int) -> list[Case]:
    """Draw questions about held-out handbook number `number`, of about `tokens` tokens each."""
    handbook = make_handbook(number, max(1, tokens // TOKENS_PER_FACT))
    cases = []
    for question in make_questions(handbook, number, questions):
        messages = make_messages(handbook, (question,))
        messages.append({"role": "assistant", "content": question.answer})
        segments = [tokenizer.encode(message["content"]).ids for message in messages]
        roles = [message["role"] for message in messages]
        ids, _ = frame(roles, segments, tokenizer.get_vocab())
        answer = len(segments[-1]) + 1
        cases.append(Case(number, ids[:-answer], ids[-answer:]))
    return cases


def room_for(cases: Sequence[Case], block_size: int) -> int:
    """Count the tokens of a pool that keeps the handbooks of all these cases cached."""
    longest = max(len(case.prompt) for case in cases)
    return len(cases) * (longest + LONGEST_ANSWER + 2 * block_size)


class AskedEngine:
    """An engine that answers rounds of questions, and a judge of its answers."""

    def __init__(self, config: EngineConfig, opened: OpenedModel) -> None:
        self._link = MemoryLink(sleeps=True)
        self._core = build_core(config, opened, self._link)
        self._block_size = config.cache.block_size
        self._asked = 0

    def right(self, cases: Sequence[Case], *, cached: bool) -> list[bool]:
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

    def _ask(self, case: Case) -> str:
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
