"""The blocks that an engine sends from its cache, the accepted namespace names, and the limits of
waiting.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from engine.exchange.seal import name_of
from engine.exchange.serving.events import Asked, Asker, Gone
from engine.exchange.serving.sending import BlocksToSend
from engine.exchange.serving.source import MOST_ASKS, MOST_S, Source
from engine.exchange.wire import Ask
from prefix_cache.cache import PrefixCache
from prefix_cache.hashing import block_keys
from prefix_cache.namespace import Namespace, NamespacePath

SIZE = 4
A, B = Namespace(b"a" * 16), Namespace(b"b" * 16)
TOKENS = np.arange(5 * SIZE, dtype=np.int32)
FINGERPRINT = b"f" * 32
ASKER: Asker = (b"other", 1)


@dataclass
class Answers:
    """A double of the sending thread, which records its orders."""

    news: list[Asked | Gone] = field(default_factory=list)
    sent: list[BlocksToSend] = field(default_factory=list)
    ended: list[tuple[Asker, str, bool]] = field(default_factory=list)
    blocks_found: int = 0
    has_state: bool = False

    @property
    def positions(self) -> list[int]:
        """Return the positions of all sent blocks."""
        return [one.first + at for one in self.sent for at in range(len(one))]

    def take(self) -> list[Asked | Gone]:
        news, self.news = self.news, []
        return news

    def found(
        self, asker: Asker, blocks: int, first_reads: dict[str, int], *, has_state: bool = False
    ) -> None:
        del asker, first_reads
        self.blocks_found, self.has_state = blocks, has_state

    def units_of_state(self, state_slot: int) -> range:
        return range(1000 + 2 * state_slot, 1002 + 2 * state_slot)

    def send(self, asker: Asker, blocks: BlocksToSend) -> None:
        del asker
        self.sent.append(blocks)

    def end(self, asker: Asker, why: str, *, is_all: bool) -> None:
        self.ended.append((asker, why, is_all))


class Rig:
    """A cache with one tenant's prompt, and its askers."""

    def __init__(self) -> None:
        self.cache = PrefixCache(num_blocks=16, block_size=SIZE)
        self.answers = Answers()
        self.source = Source(self.cache, self.answers, FINGERPRINT)
        self.put(NamespacePath.single(A))

    def put(self, path: NamespacePath) -> None:
        tokens = np.append(TOKENS, np.int32(0))
        lease = self.cache.acquire(path, tokens, owner="flow", now=0.0)
        assert lease is not None
        keys = block_keys(path, TOKENS, SIZE)
        self.cache.commit(lease, tokens, len(TOKENS), keys, now=0.0)
        self.cache.release(lease, now=0.0)

    def ask(self, *, asker: Asker = ASKER, **fields: Any) -> None:
        """Ask for the prompt, and let the source send its blocks."""
        said: dict[str, Any] = {
            "number": asker[1],
            "fingerprint": FINGERPRINT,
            "salt": bytes(16),
            "spans": ((0, name_of(A)),),
            "token_ids": TOKENS.tobytes(),
            "first": 0,
            "window": 8,
            "flow": "flow",
        }
        self.answers.news.append(Asked(asker, Ask(**(said | fields))))
        self.turn()

    def turn(self) -> None:
        self.source.turn(lambda _: None, 0.0)
        self.cache.check_invariants()

    @property
    def leased(self) -> int:
        return self.cache.capacity.pool().leased


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_what_is_there_is_sent_and_held_until_it_is_read(rig: Rig) -> None:
    rig.ask(first=2)
    keys = block_keys(NamespacePath.single(A), TOKENS, SIZE)
    [sent] = rig.answers.sent
    assert (sent.first, len(sent), sent.keys) == (2, 3, keys[2 * 16 :])
    assert sent.token_ids == TOKENS[2 * SIZE :].astype("<i4").tobytes()
    assert sent.path == NamespacePath.single(A)
    assert rig.answers.ended == [(ASKER, "", True)]
    assert rig.leased == 5
    rig.answers.news.append(Gone(ASKER))
    rig.turn()
    assert rig.leased == 0
    assert not rig.source.is_busy


@pytest.mark.parametrize("name", [name_of(B), bytes(A), b"", b"?" * 16])
def test_a_name_that_is_not_the_namespaces_finds_nothing(rig: Rig, name: bytes) -> None:
    """Find nothing for another tenant's name, nor for the namespace itself, which an engine never
    sends.
    """
    rig.ask(spans=((0, name),))
    assert not rig.answers.sent
    assert rig.answers.ended == [(ASKER, "", True)]
    rig.ask(asker=(b"other", 2))  # positive control
    assert rig.answers.positions == [0, 1, 2, 3, 4]


def test_a_path_is_followed_as_far_as_its_namespaces_are_here(rig: Rig) -> None:
    rig.put(NamespacePath(((0, B), (2, A))))
    for spans, blocks in (
        (((0, name_of(B)), (2, name_of(A))), 5),
        (((0, name_of(B)), (2, b"?" * 16)), 2),
        (((0, b"?" * 16), (2, name_of(A))), 0),
    ):
        rig.answers.sent.clear()
        rig.ask(asker=(b"other", 2 + blocks), spans=spans)
        assert len(rig.answers.positions) == blocks


def test_tokens_decide_not_names(rig: Rig) -> None:
    tokens = TOKENS.copy()
    tokens[3 * SIZE + 1] += 1
    rig.ask(token_ids=tokens.tobytes())
    assert rig.answers.positions == [0, 1, 2]


@pytest.mark.parametrize(
    "fields",
    [
        {"fingerprint": b"g" * 32},
        {"token_ids": TOKENS.tobytes()[:-1]},
        {"token_ids": TOKENS.tobytes()[:-4]},
        {"spans": ()},
        {"spans": ((1, name_of(A)),)},
        {"spans": ((0, name_of(A)), (0, name_of(A)))},
        {"salt": b""},
        {"first": -1},
        {"window": 0},
    ],
)
def test_what_is_no_ask_is_refused(rig: Rig, fields: dict[str, Any]) -> None:
    rig.ask(**fields)
    [(asker, why, is_all)] = rig.answers.ended
    assert (asker, bool(why), is_all) == (ASKER, True, False)
    assert (rig.answers.sent, rig.leased) == ([], 0)


def test_one_that_asks_for_what_lies_after_the_end_gets_nothing(rig: Rig) -> None:
    rig.ask(first=1000)
    assert (rig.answers.sent, rig.answers.ended) == ([], [(ASKER, "", True)])


def test_no_more_are_answered_at_once_than_so_many(rig: Rig) -> None:
    for number in range(MOST_ASKS + 1):
        rig.ask(asker=(b"other", number))
    assert [one for one in rig.answers.ended if one[1]] == [
        ((b"other", MOST_ASKS), "it sends to many already", False)
    ]


def test_nobody_is_lent_to_for_ever(rig: Rig) -> None:
    rig.ask()
    rig.source.turn(lambda _: None, MOST_S - 1)
    assert rig.answers.ended == [(ASKER, "", True)]
    for now in (MOST_S + 1, MOST_S + 2):
        rig.source.turn(lambda _: None, now)
    assert rig.answers.ended[1:] == [(ASKER, "it takes too long", False)]
    assert rig.source.is_exporting, "until it is seen to read no more"


class StatefulRig(Rig):
    """A cache of a model with states. It has the state after the prompt's first `kept` blocks."""

    def __init__(self, kept: int) -> None:
        self.kept = kept
        self.cache = PrefixCache(num_blocks=16, block_size=SIZE, num_states=9)
        self.answers = Answers()
        self.source = Source(self.cache, self.answers, FINGERPRINT)
        self.put(NamespacePath.single(A))

    def put(self, path: NamespacePath) -> None:
        tokens = np.append(TOKENS, np.int32(0))
        lease = self.cache.acquire(path, tokens, owner="flow", now=0.0)
        assert lease is not None
        assert lease.states is not None
        end = self.kept * SIZE
        self.cache.states.want(lease, [end])
        self.slot = lease.states.next_out()
        self.cache.states.launched(lease, end, self.slot)
        keys = block_keys(path, TOKENS, SIZE)
        self.cache.commit(lease, tokens, len(TOKENS), keys, now=0.0)
        self.cache.release(lease, now=0.0)


def test_blocks_are_sent_with_the_last_state_and_hold_it() -> None:
    rig = StatefulRig(kept=3)
    rig.ask(first=1)
    blocks, units = rig.answers.sent
    assert (rig.answers.blocks_found, rig.answers.has_state) == (3, True)
    assert (blocks.first, len(blocks)) == (1, 2)
    assert (units.first, units.slots) == (3, np.array(unit_slots(rig), "<i4").tobytes())
    last, bound = blocks.place(1, 2), units.place(1, 2)
    assert (bound.position, bound.keys, bound.token_ids) == (4, last.keys, last.token_ids)
    assert rig.answers.ended == [(ASKER, "", True)]
    assert rig.cache.checkpoints.num_pinned == 1
    rig.answers.news.append(Gone(ASKER))
    rig.turn()
    assert (rig.leased, rig.cache.checkpoints.num_pinned) == (0, 0)


@pytest.mark.parametrize("first", [3, 4])
def test_blocks_up_to_a_state_that_the_asker_has_are_not_sent(first: int) -> None:
    rig = StatefulRig(kept=3)
    rig.ask(first=first)
    assert not rig.answers.sent
    assert rig.answers.ended == [(ASKER, "", True)]


def unit_slots(rig: StatefulRig) -> range:
    return rig.answers.units_of_state(rig.slot)
