from __future__ import annotations

from handbook.checkpoint import SHIPPED
from handbook.feed import CURRICULUM, Feed, Stage, lengths_at


def test_the_curriculum_goes_from_short_to_long() -> None:
    longest = [max(lengths_at(CURRICULUM, progress)) for progress in (0.0, 0.1, 0.5, 1.0)]
    assert longest == sorted(longest)
    assert longest[0] == 256
    assert longest[-1] == 4096


def test_a_stage_holds_until_the_next_begins() -> None:
    curriculum = (Stage(0.0, (8,)), Stage(0.5, (16, 32)))
    assert lengths_at(curriculum, 0.49) == (8,)
    assert lengths_at(curriculum, 0.5) == (16, 32)


def test_workers_write_batches_of_the_asked_tokens_and_end_with_the_context() -> None:
    feed = Feed(SHIPPED, (Stage(0.0, (64,)),), tokens=256, seed=0)
    with feed.running(workers=1):
        batches = [feed.next() for _ in range(3)]
    assert {batch.ids.shape for batch in batches} == {(4, 65)}
    assert len({batch.ids.tobytes() for batch in batches}) == 3
