"""A step may give a sequence several tokens, of which only the accepted tokens are used."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.drafting.draft import Draft
from engine.link.event_messages import Failed, Finished, Tokens
from engine.scheduling.row_data import step_of
from engine.scheduling.scheduled_rows import remaining_tokens, row_of, verify_row
from engine.scheduling.sequence_events import AddressedEvent
from engine.sequences.sequence import Sequence
from engine.sequences.sequence_cache import lease_of
from engine.step import Sampled
from prefix_cache.namespace import Namespace, NamespacePath
from tests.engine.rigs.checkpoints import Checkpoint
from tests.engine.rigs.hand_driven import random_prompt, sampling
from tests.seams.support.real_engine import Bounds, RealEngine

NAMESPACE = Namespace(b"n" * 16)
BLOCK = 16
PROMPT = random_prompt(BLOCK - 2)  # the third token of an answer begins the second block
MAX_TOKENS = 10


class House:
    """An engine, and one of its requests after the first token."""

    def __init__(self, checkpoint: Checkpoint, **how: Any) -> None:
        self.engine = RealEngine(str(checkpoint.model_dir), Bounds(64, BLOCK, 64, 4))
        self.plain = checkpoint.greedy(PROMPT, MAX_TOKENS)
        wish = sampling(**{"max_tokens": MAX_TOKENS, "ignore_eos": True, **how})
        self.engine.submit("a", PROMPT, wish, namespace=NAMESPACE)
        self.engine.step()

    @property
    def sequence(self) -> Sequence:
        [sequence] = self.engine.core.components.scheduler.running
        return sequence

    def verify(self, given: list[int], values: list[Sampled] | None = None) -> list[AddressedEvent]:
        """Run a step, from launch to commit, with the last token and the drafts `given`.

        `values`, if given, replace the step's samples.
        """
        parts, sequence = self.engine.core.components, self.sequence
        row = verify_row(sequence, Draft(tuple(given), "own"))
        assert parts.cache.extend(lease_of(sequence), row.end, now=parts.clock())
        step = step_of([row])
        sampled = parts.runner.launch(step.step).collect()
        parts.settler.begin(step)
        assert remaining_tokens(sequence) == 0, "it waits for the values"
        replies = parts.settler.settle(step, values or sampled, parts.clock())
        parts.settler.commit(parts.clock())
        parts.cache.check_invariants()
        return replies

    def committed(self) -> int:
        """Return how many blocks of the prompt and its answer are in the tree."""
        tokens = np.array([*PROMPT, *self.plain], np.int32)
        return self.engine.cache.tree.match(NamespacePath.single(NAMESPACE), tokens).found.device


def said(replies: list[AddressedEvent]) -> list[int]:
    events = [reply.event for reply in replies]
    return [one for event in events if isinstance(event, Tokens) for one in event.token_ids]


def end_of(replies: list[AddressedEvent]) -> Finished:
    last = replies[-1].event
    assert isinstance(last, Finished)
    assert not any(reply.is_last for reply in replies[:-1])
    return last


def test_values_that_were_given_rightly_are_all_appended_and_it_goes_on_from_there(
    checkpoint: Checkpoint,
) -> None:
    house = House(checkpoint)
    assert said(house.verify(house.plain[1:4])) == house.plain[1:5]
    sequence = house.sequence
    assert (sequence.num_pending, remaining_tokens(sequence)) == (0, 1)
    assert house.committed() == 1
    house.engine.run()
    steps = len(house.engine.steps)
    assert steps == MAX_TOKENS - 3, "three steps fewer"
    assert house.engine.link.tokens("a") == [house.plain[0], *house.plain[5:]]
    assert house.engine.finished("a").completion_tokens == MAX_TOKENS
    house.engine.expect_nothing_left()


@pytest.mark.parametrize("wrong", [1, 2, 3])
def test_what_follows_a_token_that_was_given_wrongly_is_dropped(
    checkpoint: Checkpoint, wrong: int
) -> None:
    house = House(checkpoint)
    given = house.plain[1:4]
    given[wrong - 1] = 299 - given[wrong - 1]
    assert said(house.verify(given)) == house.plain[1 : 1 + wrong]
    assert house.sequence.num_computed == house.sequence.num_tokens - 1
    assert house.committed() == (wrong > 1)
    house.engine.run()
    assert house.engine.link.tokens("a") == [house.plain[0], *house.plain[1 + wrong :]]
    house.engine.expect_nothing_left()


@pytest.mark.parametrize(("stop", "blocks"), [(1, 0), (2, 1), (4, 1)])
def test_a_stop_in_the_middle_ends_it_there_and_commits_what_was_served(
    checkpoint: Checkpoint, stop: int, blocks: int
) -> None:
    """The first token completes a block.

    The block is kept if the token is served, but not if the token stops the answer.
    """
    house = House(checkpoint, stop_token_ids=[checkpoint.greedy(PROMPT, MAX_TOKENS)[stop]])
    replies = house.verify(house.plain[1:4])
    assert said(replies) == house.plain[1:stop]
    end = end_of(replies)
    assert (end.reason, end.stop_token_id) == ("stop", house.plain[stop])
    assert end.completion_tokens == stop + 1
    assert house.engine.core.stats().generated_tokens == stop + 1
    assert house.committed() == blocks
    assert house.engine.cache.capacity.pool().leased == 0


def test_no_more_than_max_tokens_are_served(checkpoint: Checkpoint) -> None:
    house = House(checkpoint, max_tokens=3)
    replies = house.verify(house.plain[1:3])
    assert said(replies) == house.plain[1:3]
    assert (end_of(replies).reason, end_of(replies).completion_tokens) == ("length", 3)
    assert house.engine.cache.capacity.pool().leased == 0


def test_a_value_that_is_not_finite_fails_the_sequence_and_forgets_its_blocks(
    checkpoint: Checkpoint,
) -> None:
    house = House(checkpoint)
    values = [*map(Sampled, house.plain[1:3]), Sampled(None), Sampled(5)]
    replies = house.verify(house.plain[1:4], values)
    assert said(replies) == house.plain[1:3]
    assert isinstance(replies[-1].event, Failed)
    assert replies[-1].event.code == "numeric_failure"
    assert house.committed() == 0
    assert house.engine.cache.capacity.pool().leased == 0


def test_a_sequence_that_is_cancelled_meanwhile_has_none_of_them(checkpoint: Checkpoint) -> None:
    house = House(checkpoint)
    parts, sequence = house.engine.core.components, house.sequence
    step = step_of([row_of(sequence, 1), verify_row(sequence, Draft((5,), "own"))])
    parts.settler.begin(step)
    parts.settler.cancel(sequence, parts.clock())
    assert parts.settler.settle(step, map(Sampled, [1, 2, 3]), parts.clock()) == []
