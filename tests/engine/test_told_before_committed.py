"""Blocks are committed after the tokens of their step are sent, and before the next look-up."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from engine.link.event_messages import WrittenAndRead
from engine.link.messages import Cancel, FromEngine
from prefix_cache.namespace import NamespacePath
from tests.doubles.engine.fake_runner import VOCAB_SIZE
from tests.doubles.engine.memory_link import MemoryLink
from tests.engine.rigs.rig import CLIENT, NAMESPACE, Rig, generate


class WatchedLink(MemoryLink):
    """A link that records the number of cached tokens whenever a message is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.found = list[int]()
        self.look: Callable[[], int] | None = None

    def send(self, client: bytes, message: FromEngine) -> bool:
        if self.look is not None:
            self.found.append(self.look())
        return super().send(client, message)


PROMPT = tuple(range(12))


def watched(overlap_scheduling: bool = False) -> tuple[Rig, WatchedLink]:
    """Make an engine with a link that records how many tokens of `PROMPT` are in the tree."""
    link = WatchedLink()
    rig = Rig(link=link, overlap_scheduling=overlap_scheduling)
    path, tokens = NamespacePath.single(NAMESPACE), np.array(PROMPT, np.int32)
    link.look = lambda: rig.cache.tree.match(path, tokens).found.total * rig.cache.block_size
    return rig, link


@pytest.mark.parametrize("overlap_scheduling", [False, True])
def test_a_token_is_told_before_its_prompt_can_be_found(overlap_scheduling: bool) -> None:
    rig, link = watched(overlap_scheduling)
    rig.submit(generate("a", PROMPT, max_tokens=3))
    while not link.found:
        rig.step()
    assert link.look is not None
    assert (link.found, link.look()) == ([0], 12)
    rig.run()
    assert link.found == [0, 12, 12]


@pytest.mark.parametrize("overlap_scheduling", [False, True])
def test_one_that_ends_with_its_first_token_has_committed(overlap_scheduling: bool) -> None:
    rig, link = watched(overlap_scheduling)
    rig.submit(generate("a", PROMPT, max_tokens=1, writer="ann"))
    rig.run()
    assert link.found == [12]
    assert rig.finished("a").cache == WrittenAndRead(12)


def test_of_a_client_that_is_gone_what_was_computed_stays() -> None:
    """Keep the computed blocks of a client that has gone, although its requests end before the
    commit.
    """
    rig, link = watched()
    for name in ("a", "b"):
        rig.submit(generate(name, [*PROMPT, ord(name) % VOCAB_SIZE], max_tokens=30))
    link.gone.add(CLIENT)
    rig.step(3)
    assert rig.core.is_idle
    assert link.look is not None
    assert link.look() == 12
    rig.expect_nothing_left()


def test_what_a_cancelled_request_computed_stays() -> None:
    """Keep the computed blocks of a request that is cancelled while it has a row in a pending
    step.
    """
    rig, link = watched(overlap_scheduling=True)
    rig.submit(generate("a", PROMPT, max_tokens=50))
    rig.step(2)
    rig.link.say(Cancel("a"))
    rig.run()
    assert link.look is not None
    assert link.look() == 12
    rig.expect_nothing_left()
