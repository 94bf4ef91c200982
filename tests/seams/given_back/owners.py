"""Games with blocks that one thread lends and takes back. Answers may be late or never come.

No event loop runs: a seed gives one order of requests, answers, ends and deaths.
"""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import torch

from engine.exchange.seal import name_of
from engine.exchange.serving.events import Asked, Asker, Gone
from engine.exchange.serving.sending import BlocksToSend
from engine.exchange.serving.source import MOST_S, Source
from engine.exchange.wire import Ask
from prefix_cache.cache import PrefixCache
from prefix_cache.hashing import block_keys
from prefix_cache.namespace import Namespace, NamespacePath
from storage.disk.open_requests import OpenRequests
from storage.disk.staging import Staging
from storage.disk.wire import DiskEnded, DiskOutcome
from tests.seams.given_back.interleaving import NotGivenBack

SIZE, BLOCKS = 4, 24
FINGERPRINT = b"f" * 32
PATHS = [NamespacePath.single(Namespace(name * 16)) for name in (b"a", b"b")]
PROMPTS = [np.arange(at, at + 5 * SIZE, dtype=np.int32) for at in (0, 100)]


class _Answers:
    """A replacement of the sending thread. An asking engine leaves after a while."""

    def __init__(self) -> None:
        self.news: list[Asked | Gone] = []
        self.askers: list[Asker] = []  # asking engines that have not left

    def ask(self, asker: Asker, ask: Ask) -> None:
        self.askers.append(asker)
        self.news.append(Asked(asker, ask))

    def go(self, asker: Asker) -> None:
        self.askers.remove(asker)
        self.news.append(Gone(asker))

    def take(self) -> list[Asked | Gone]:
        news, self.news = self.news, []
        return news

    def found(
        self, asker: Asker, blocks: int, first_reads: dict[str, int], *, has_state: bool = False
    ) -> None:
        """Do nothing, since the asker has room for the blocks."""

    def units_of_state(self, state_slot: int) -> range:
        raise AssertionError(f"no state is sent of a model without: {state_slot}")

    def send(self, asker: Asker, blocks: BlocksToSend) -> None:
        """Do nothing, since the asker reads the blocks until it leaves."""

    def end(self, asker: Asker, why: str, *, is_all: bool) -> None:
        """Do nothing, since the asker leaves when it likes."""


def play_source(seed: int) -> int:
    """Let other engines ask for blocks and leave at random. Return the number of loans."""
    random, now, lent = Random(seed), 0.0, 0
    cache, answers = PrefixCache(num_blocks=BLOCKS, block_size=SIZE), _Answers()
    source = Source(cache, answers, FINGERPRINT)
    for number in range(40):
        match random.randrange(6):
            case 0 | 1:
                _compute(cache, random, now)
            case 2 | 3:
                answers.ask((b"other", number), _an_ask(random, number))
            case 4:
                now += random.choice((0.1, MOST_S))
            case _ if answers.askers:
                answers.go(random.choice(answers.askers))
        if random.randrange(2):
            source.turn(lambda _: None, now)
            cache.check_invariants()
            lent += cache.capacity.pool().leased > 0
    for asker in list(answers.askers):
        answers.go(asker)
    source.turn(lambda _: None, now)
    if cache.capacity.pool().leased or source.is_busy or source.is_exporting:
        raise NotGivenBack(f"blocks are lent to nobody with seed {seed}")
    return lent


def _compute(cache: PrefixCache, random: Random, now: float) -> None:
    """Cache a prompt, if there is room."""
    path, tokens = random.choice(PATHS), random.choice(PROMPTS)
    longer = np.append(tokens, np.int32(0))
    lease = cache.acquire(path, longer, owner="flow", now=now)
    if lease is not None:
        cache.commit(lease, longer, len(tokens), block_keys(path, tokens, SIZE), now=now)
        cache.release(lease, now=now)


def _an_ask(random: Random, number: int) -> Ask:
    path = random.choice(PATHS)
    said: dict[str, Any] = {
        "spans": tuple((start, name_of(one)) for start, one in path.spans),
        "token_ids": random.choice(PROMPTS).tobytes(),
        "fingerprint": FINGERPRINT if random.randrange(8) else b"another",
        "request_id": None if random.randrange(4) else "to come",
    }
    return Ask(number=number, salt=bytes(16), first=0, window=8, flow="flow", **said)


def play_staging(seed: int) -> int:
    """Read from a disk that is late or dies. Return the number of reads. Raises NotGivenBack."""
    random, now = Random(seed), 0.0
    staging, asked = Staging(4, 4096, torch.device("cpu")), OpenRequests(1.0, 1.0)
    buffers: dict[int, int] = {}  # buffers by the ticket of a pending read
    unanswered: list[int] = []  # tickets whose reads the process will still answer
    try:
        for _ in range(60):
            match random.randrange(6):
                case 0 | 1 | 2 if (buffer := staging.take()) is not None:
                    ticket = asked.read(buffer, now)
                    buffers[ticket] = buffer
                    unanswered.append(ticket)
                case 3 if unanswered:
                    ticket = unanswered.pop(random.randrange(len(unanswered)))
                    if not staging.answered(ticket):
                        asked.answered(DiskEnded(ticket, DiskOutcome.DONE))
                case 4:
                    now += random.choice((0.1, 2.0))
                case 5 if not random.randrange(6):
                    _die(staging, asked, unanswered)
            for ticket, buffer in asked.give_up_late_reads(now):
                staging.owe(ticket, buffer)
            if random.randrange(2):
                _give_back(staging, asked, buffers)
        tickets = max(buffers, default=0)
        _die(staging, asked, unanswered)
        _give_back(staging, asked, buffers)
        free = {staging.take() for _ in range(4)}
    finally:
        staging.close()
    if free != set(range(4)) or staging.num_free or buffers:
        raise NotGivenBack(f"buffers are lost or doubled with seed {seed}: {free} {buffers}")
    return tickets


def _die(staging: Staging, asked: OpenRequests, unanswered: list[int]) -> None:
    """Let the disk's process die."""
    unanswered.clear()
    asked.fail_all()
    staging.no_answers_to_come()


def _give_back(staging: Staging, asked: OpenRequests, buffers: dict[int, int]) -> None:
    for end in asked.take_ends():
        staging.give_back(buffers.pop(end.ticket))
